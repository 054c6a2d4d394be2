"""The sweep over dead senders: attempts that a process was sending which is no longer there.

With the embedded store there is one process at a time, so every sender but this one is dead. It runs after the
start beside the ordinary work, in small batches: however much was under way, the engine is ready at once.
"""

from __future__ import annotations

import asyncio

from counterfoil.engine import Engine
from counterfoil.engine.expire import ReclaimOrphan
from counterfoil.engine.wakeups import SweepName


class OrphanSweep:
    """See scheduler/sweep.py."""

    name = SweepName.ORPHANS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        engine = self._engine
        context = engine.context
        found = await engine.store.read("find_orphaned", owner=context.node_id, limit=limit)
        commands = (ReclaimOrphan(work_id, context.retry_rules(), context.node_id) for (work_id,) in found)
        return sum(await asyncio.gather(*(engine.commit.submit(command) for command in commands)))

    async def next_due(self) -> int | None:
        return None
