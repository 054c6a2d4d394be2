"""Counterfoil: async steps completed by webhook, one receipt and one outcome each."""

from counterfoil.version import __version__

__all__ = ["__version__"]
