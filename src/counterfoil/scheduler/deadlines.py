"""The sweep over clocks: active work that was silent past its deadline."""

from __future__ import annotations

import asyncio

from counterfoil.engine import Engine
from counterfoil.engine.expire import ExpireOverdue
from counterfoil.engine.wakeups import SweepName


class DeadlineSweep:
    """See scheduler/sweep.py."""

    name = SweepName.DEADLINES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        engine = self._engine
        found = await engine.store.read("find_overdue", now=now, limit=limit)
        commands = (ExpireOverdue(work_id, engine.context.retry_rules()) for (work_id,) in found)
        return sum(await asyncio.gather(*(engine.commit.submit(command) for command in commands)))

    async def next_due(self) -> int | None:
        due: int | None = (await self._engine.store.read("next_clock"))[0][0]
        return due
