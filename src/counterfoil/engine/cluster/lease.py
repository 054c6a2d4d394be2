"""The node's lease: while it holds, attempts in flight belong to the node; when it lapses, other nodes reclaim them.

The protocol. The store counts a lease by its own clock, and a lease that has lapsed is never renewed. The node counts
from before its request, by a clock that goes on while the process is stopped, so for the node the lease always ends
before it does for the store. Without a lease the node claims nothing and sends nothing. A node that renews too late
gets a new id: it no longer sends what it claimed under the old one, and a reply of such an attempt is recorded only if
no other node has reclaimed the attempt (see ``RecordReply``).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

import structlog

from counterfoil.engine.context import EngineContext
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.protocol import Nodes

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The one of Linux that also counts while the machine sleeps."""

log = structlog.get_logger(__name__)


def ever_running() -> float:
    """Seconds by a clock that cannot be set, and that goes on while the process is stopped."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """Renewed by a sweep, through ``Membership``."""

    def __init__(
        self,
        nodes: Nodes,
        context: EngineContext,
        lease_ms: int | None,
        monotonic: Callable[[], float] = ever_running,
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

    def holds(self, node_id: str | None) -> bool:
        """Whether attempts claimed under this id may still be sent: no other node can have reclaimed them."""
        return self._lease_ms is None or (self.held and node_id == self._context.node_id)

    @property
    def keep_every_ms(self) -> int | None:
        """Often enough that two renewals in a row may fail."""
        return None if self._lease_ms is None else self._lease_ms // 3

    async def keep(self) -> None:
        """Join or renew; raises StoreFailure, and then the lease lapses by itself."""
        if self._lease_ms is None:
            return
        asked = self._monotonic()
        others = await self._nodes.renew(self._context.node_id, self._lease_ms) if self._joined else None
        if others is None:
            self._until = -math.inf
            if self._joined:
                old, self._context.node_id = self._context.node_id, self._context.new_id()
                log.warning("lease_lapsed", was=old, now=self._context.node_id)
            asked = self._monotonic()
            await self._nodes.join(self._context.node_id, self._lease_ms)
            others = await self._nodes.renew(self._context.node_id, self._lease_ms) or 0
            self._joined = True
        self.others = others
        self._until = asked + self._lease_ms / 1000

    async def keep_on(self) -> None:
        """Renew until cancelled: for a node that is stopping, whose sweeps no longer run."""
        while self.keep_every_ms is not None:
            await asyncio.sleep(self.keep_every_ms / 1000)
            with contextlib.suppress(StoreFailure):
                await self.keep()

    async def leave(self) -> None:
        """Give it back; raises StoreFailure."""
        if self._joined:
            self._until = -math.inf
            await self._nodes.leave(self._context.node_id)
