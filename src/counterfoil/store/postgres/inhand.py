"""Which work the batches of this node have in hand, so that none of them decides by what another is about to change.

An acknowledgement and the result that follows it are often only a moment apart, and so in two batches that are under
way together. The second would see the work as it was before the first, write nothing, and begin again. It is quicker
to wait. It is no lock: nothing depends on it but time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class InHand:
    """Work items by id, each with the end of the batch that has it."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def take(self, work_ids: Iterable[str]) -> AsyncIterator[None]:
        """Wait until no other batch has any of these, then have them. Who waits has none: nobody waits in a circle."""
        wanted = frozenset(work_ids)
        while taken := wanted & self._ends.keys():
            await self._ends[next(iter(taken))].wait()
        end = asyncio.Event()
        self._ends.update(dict.fromkeys(wanted, end))
        try:
            yield
        finally:
            for work_id in wanted:
                del self._ends[work_id]
            end.set()
