"""The sweep over deliveries: subscribers that are still to be told."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName


class DeliverySweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.DELIVERIES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        return await self._engine.notifier.make_due(now, limit)

    async def next_due(self) -> int | None:
        notifier = self._engine.notifier
        if notifier.is_full:
            return None  # whoever comes back wakes the sweep
        due: int | None = (await self._engine.store.read("next_delivery", busy=notifier.busy()))[0][0]
        return due
