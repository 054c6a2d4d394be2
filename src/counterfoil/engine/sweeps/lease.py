"""The sweep that keeps the node's lease alive, and looks by itself for what no neighbour's word may have told."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName


class LeaseSweep:
    """See engine/sweeps/sweep.py. It runs several times in each lease."""

    name = SweepName.LEASE

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        await self._engine.keep_lease()
        return 0

    async def next_due(self) -> int | None:
        keep_every = self._engine.lease.keep_every_ms
        return None if keep_every is None else self._engine.context.clock() + keep_every
