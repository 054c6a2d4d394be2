"""Use cases: one file each, all of them behind ``Engine``."""

from counterfoil.engine.context import EngineContext, Retention, system_clock
from counterfoil.engine.engine import Engine, Limits
from counterfoil.store.unit_of_work.unit import new_id

__all__ = ["Engine", "EngineContext", "Limits", "Retention", "new_id", "system_clock"]
