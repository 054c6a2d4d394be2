"""Which work the batches of this node have in hand, so that none of them decides by what another is about to change.

An acknowledgement and the result that follows it are often only a moment apart, and so in two batches that are under
way together. The second would see the work as it was before the first, write nothing, and begin again. It is quicker
to wait. It is no lock: nothing depends on it but time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet


class LocalLocks:
    """Work items by id, each with the end of the batch that has it."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Event] = {}

    async def take(self, work_ids: AbstractSet[str]) -> None:
        """Wait until no other batch has any of these, then have them. Who waits has none: nobody waits in a circle."""
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
