"""The command line: one module per command group."""

from counterfoil.cli.main import main

__all__ = ["main"]
