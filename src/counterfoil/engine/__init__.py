"""Use cases: one file each, all of them behind ``Engine``."""

from counterfoil.engine.context import EngineContext, new_id, system_clock
from counterfoil.engine.engine import Engine, Limits

__all__ = ["Engine", "EngineContext", "Limits", "new_id", "system_clock"]
