"""The sweep over schedules: flows that are to start by themselves."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName


class ScheduleSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.SCHEDULES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        return await self._engine.schedules.fire_due(now, limit) if self._may_start else 0

    async def next_due(self) -> int | None:
        if not self._may_start:
            return None
        due: int | None = (await self._engine.store.read("next_schedule"))[0][0]
        return due

    @property
    def _may_start(self) -> bool:
        """A start claims what it can send at once: that needs a node that still sends, and is known to be alive."""
        return self._engine.accepting and self._engine.lease.held
