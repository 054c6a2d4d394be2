"""Which work items the batches of this node are changing, so that no batch decides by what another is about to change.

An acknowledgement and the result that follows it are often only a moment apart, and so in two batches that are under
way together. The second would see the work item as it was before the first, conflict, and begin again. Waiting is
quicker. Correctness does not depend on these locks, only speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet


class LocalLocks:
    """Work items by id, each with the end of the batch that holds it."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Event] = {}

    async def take(self, work_ids: AbstractSet[str]) -> None:
        """Wait until no other batch holds any of these, then hold them. A waiting batch holds none, so no cycle."""
        while taken := work_ids & self._ends.keys():
            await self._ends[next(iter(taken))].wait()
        self._ends.update(dict.fromkeys(work_ids, asyncio.Event()))

    def give_back(self, work_ids: AbstractSet[str]) -> None:
        """Those that were taken together are given back together."""
        end = None
        for work_id in work_ids:
            end = self._ends.pop(work_id)
        if end is not None:
            end.set()
