"""The sweep over cancel calls: workers that are still to be told."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName


class CancelCallSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.CANCEL_CALLS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        return await self._engine.cancel_caller.make_due(now, min(limit, 64))

    async def next_due(self) -> int | None:
        due: int | None = (await self._engine.store.read("next_call"))[0][0]
        return due
