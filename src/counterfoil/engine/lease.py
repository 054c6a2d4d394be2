"""The node's lease: as long as it holds, what the node is sending is its own; when it lapses, others take it over.

The protocol. The store counts a lease by its own clock, and one that has lapsed never lives again. The node counts
from before it asked, by a clock that goes on while the process is stopped, so it always believes its lease to end
before the store does. It claims nothing and sends nothing without it. A node that comes back late gets a new id: what
it was sending under the old one belongs to whoever takes it, and a reply that it still records counts only while
nobody has (see ``RecordReply``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import structlog

from counterfoil.engine.context import EngineContext
from counterfoil.store.protocol import Nodes

log = structlog.get_logger(__name__)


class Lease:
    """Kept alive by a sweep (scheduler/lease.py)."""

    def __init__(
        self,
        nodes: Nodes,
        context: EngineContext,
        lease_ms: int | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._context = context
        self._lease_ms = lease_ms
        self._monotonic = monotonic
        self._until = -math.inf
        self._joined = False
        self.others = 0
        """How many other nodes there were at the last renewal."""

    @property
    def held(self) -> bool:
        """Whether the node may claim and send now. None: a store of one process needs no lease."""
        return self._lease_ms is None or self._monotonic() < self._until

    @property
    def keep_every_ms(self) -> int | None:
        """Often enough that two renewals in a row may fail."""
        return None if self._lease_ms is None else self._lease_ms // 3

    async def keep(self) -> None:
        """Join or renew; raises StoreFailure, and then the lease runs out by itself."""
        if self._lease_ms is None:
            return
        asked = self._monotonic()
        others = await self._nodes.renew(self._context.node_id, self._lease_ms) if self._joined else None
        if others is None:
            if self._joined:
                old, self._context.node_id = self._context.node_id, self._context.new_id()
                log.warning("lease_lapsed", was=old, now=self._context.node_id)
            asked = self._monotonic()
            await self._nodes.join(self._context.node_id, self._lease_ms)
            others = await self._nodes.renew(self._context.node_id, self._lease_ms) or 0
            self._joined = True
        self.others = others
        self._until = asked + self._lease_ms / 1000

    async def leave(self) -> None:
        """Give it back; raises StoreFailure."""
        if self._joined:
            self._until = -math.inf
            await self._nodes.leave(self._context.node_id)
