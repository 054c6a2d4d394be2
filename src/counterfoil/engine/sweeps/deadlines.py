"""The sweep over clocks: active work that was silent past its deadline."""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.expire import ExpireOverdue
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find


class DeadlineSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.DEADLINES

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        rules = self._engine.context.retry_rules
        find = Find.of("find_overdue", now=now, limit=limit)
        return sum(await self._engine.commit.submit(ForEach(find, lambda work_id: ExpireOverdue(work_id, rules()))))

    async def next_due(self) -> int | None:
        due: int | None = (await self._engine.store.read("next_clock"))[0][0]
        return due
