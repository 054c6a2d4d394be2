"""Use cases by concept, all of them behind ``Engine``; ``assemble`` makes one."""

from counterfoil.engine.assembly import Limits, assemble
from counterfoil.engine.context import EngineContext, Retention, system_clock
from counterfoil.engine.engine import Engine
from counterfoil.store.unit_of_work.unit import new_id

__all__ = ["Engine", "EngineContext", "Limits", "Retention", "assemble", "new_id", "system_clock"]
