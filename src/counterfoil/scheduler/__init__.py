"""The sweeps: what the engine does by itself, when something is due."""

from counterfoil.scheduler.loop import SweepLoop

__all__ = ["SweepLoop"]
