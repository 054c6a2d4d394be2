"""The command line: one file for each noun."""

from counterfoil.cli.main import main

__all__ = ["main"]
