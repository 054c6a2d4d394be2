"""Notifications between nodes: what one node has committed may be what another waits for.

A notification names flows that have changed (for streams and long polls), steps that have room again, and whether due
work found no place on the sending node. Changes are gathered for a moment and sent together, after the commit and apart
from it; the store may drop notifications. Nothing depends on them: every sweep and every reader also looks at its own
interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
import structlog

from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.feed import Feed
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.sending_room import SendingRoom
from counterfoil.store.group_commit.batch_sizes import BatchSizer
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.protocol import Nodes

GATHER_SECONDS = 0.01
BUSY_SECONDS = 0.05
MANY_FLOWS = 32
"""Where more than so many flows change in a moment, changes are gathered longer: a notification costs every node, and
the database, as much as several of the changes that it names."""
LAST_NOTIFICATION_SECONDS = 1.0
MOST_FLOWS = 180
"""With more flows than this a notification names none of them, which means «any»."""

log = structlog.get_logger(__name__)


class Peers:
    """Notifies the other nodes, and acts upon their notifications."""

    def __init__(
        self,
        nodes: Nodes,
        context: EngineContext,
        lease: Lease,
        feed: Feed,
        wakeups: Wakeups,
        room: SendingRoom,
        sizer: BatchSizer,
    ) -> None:
        self._nodes = nodes
        self._context = context
        self._lease = lease
        self._feed = feed
        self._wakeups = wakeups
        self._room = room
        self._sizer = sizer
        self._flows: set[str] = set()
        self._steps: set[str] = set()
        self._due = False
        self._sending: asyncio.Task[None] | None = None
        nodes.listen(self._heard)

    @property
    def has_others(self) -> bool:
        return self._lease.others > 0

    def tell(self, flows: Iterable[str] = (), steps: Iterable[str] = (), *, due: bool = False) -> None:
        """Gather for the next notification; nothing is sent while this node is the only one."""
        if not self._lease.others:
            return
        self._flows.update(flows)
        self._steps.update(steps)
        self._due = self._due or due
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="peers")

    def greet(self) -> None:
        """Let the other nodes know of this one, so that they notify it from now on."""
        self.tell(due=True)

    async def finish(self) -> None:
        """Send what is gathered, within a short time: this node is leaving."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=LAST_NOTIFICATION_SECONDS)
        await self.stop()

    async def stop(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._flows or self._steps or self._due:
            await asyncio.sleep(GATHER_SECONDS)
            if len(self._flows) > MANY_FLOWS:
                await asyncio.sleep(BUSY_SECONDS)
            flows, self._flows = self._flows, set()
            steps, self._steps = self._steps, set()
            due, self._due = self._due, False
            content: dict[str, Any] = {"from": self._context.node_id, "due": due, "steps": sorted(steps)[:MOST_FLOWS]}
            content["flows"] = sorted(flows) if len(flows) <= MOST_FLOWS else None
            text = orjson.dumps(content).decode()
            if len(text) > 7_900:  # PostgreSQL takes 8,000 bytes, and ids may be long
                text = orjson.dumps({**content, "flows": None, "steps": []}).decode()
            try:
                await self._nodes.notify(text)
            except StoreFailure as failure:
                log.debug("peers_not_notified", reason=str(failure))

    def _heard(self, message: str) -> None:
        try:
            content = orjson.loads(message)
            sender, flows, steps, due = content["from"], content["flows"], content["steps"], content["due"]
        except (ValueError, KeyError, TypeError):
            return  # another program uses the same channel
        if sender == self._context.node_id:
            return
        if not self._lease.others:
            self._lease.others = 1  # until they are counted, when the lease is renewed
            self._sizer.expect_others(1)
        if flows is None:
            self._feed.ring_all()
        else:
            self._feed.ring(flows)
        if steps:
            self._room.make(steps)
        if due:
            self._wakeups.now(SweepName.REQUEUE)
