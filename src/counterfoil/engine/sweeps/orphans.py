"""The sweep over dead senders: attempts that a node was sending which is no longer there.

With the embedded store there is one process at a time, so every sender but this one is dead; on a shared one they are
those whose lease has lapsed. After a start it runs beside the ordinary work, in small batches: however much was under
way, the engine is ready at once.
"""

from __future__ import annotations

from counterfoil.engine import Engine
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.expire import ReclaimOrphan
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.unit_of_work.read_set import Find


class OrphanSweep:
    """See engine/sweeps/sweep.py."""

    name = SweepName.ORPHANS

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self, now: int, limit: int) -> int:
        context = self._engine.context
        find = Find.of("find_orphaned", owner=context.node_id, limit=limit)
        reclaim = ForEach(find, lambda work_id, owner: ReclaimOrphan(work_id, owner, context.retry_rules()))
        return sum(await self._engine.commit.submit(reclaim))

    async def next_due(self) -> int | None:
        """When the first lease of another node lapses, if it is not renewed."""
        context = self._engine.context
        left: int | None = (await self._engine.store.read("next_lapse", owner=context.node_id))[0][0]
        return None if left is None else context.clock() + left
