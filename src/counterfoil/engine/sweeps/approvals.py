"""The sweep over approvals: those that nobody gave in time."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName


class ApprovalSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.APPROVALS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        return await self._engine.control.expire_approvals(now, limit)

    async def next_due(self) -> int | None:
        due: int | None = (await self._engine.store.read("next_approval"))[0][0]
        return due
