"""Notifications between nodes: what one node has committed may be what another waits for.

A notification names flows with new events (for streams), flows that have ended (for long polls), steps that have room
again, and whether due work found no place on the sending node. Changes are gathered for a moment and sent together,
after the commit and apart from it; the store may drop notifications. Nothing depends on them: every sweep looks at its
own interval, and streams and long polls look when the lease is renewed.
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
from counterfoil.engine.queries.results import Results
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
"""With more flows than this a notification names none of those that changed, or that ended, which means «any»."""
MOST_BYTES = 7_900
"""PostgreSQL takes 8,000, and ids may be long."""

log = structlog.get_logger(__name__)


class Peers:
    """Notifies the other nodes, and acts upon their notifications."""

    def __init__(
        self,
        nodes: Nodes,
        context: EngineContext,
        lease: Lease,
        feed: Feed,
        results: Results,
        wakeups: Wakeups,
        room: SendingRoom,
        sizer: BatchSizer,
    ) -> None:
        self._nodes = nodes
        self._context = context
        self._lease = lease
        self._feed = feed
        self._results = results
        self._wakeups = wakeups
        self._room = room
        self._sizer = sizer
        self._flows: set[str] = set()
        self._ended: set[str] = set()
        self._steps: set[str] = set()
        self._due = False
        self._sending: asyncio.Task[None] | None = None
        nodes.listen(self._heard)

    @property
    def has_others(self) -> bool:
        return self._lease.others > 0

    def tell(
        self,
        flows: Iterable[str] = (),
        steps: Iterable[str] = (),
        *,
        ended: Iterable[str] = (),
        due: bool = False,
    ) -> None:
        """Gather for the next notification; nothing is sent while this node is the only one."""
        if not self._lease.others:
            return
        self._flows.update(flows)
        self._ended.update(ended)
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
        while self._flows or self._ended or self._steps or self._due:
            await asyncio.sleep(GATHER_SECONDS)
            if len(self._flows) > MANY_FLOWS:
                await asyncio.sleep(BUSY_SECONDS)
            message = self._message()
            try:
                await self._nodes.notify(message)
            except StoreFailure as failure:
                log.debug("peers_not_notified", reason=str(failure))

    def _message(self) -> str:
        """What was gathered, and is not gathered any more."""
        flows, self._flows = self._flows, set()
        ended, self._ended = self._ended, set()
        steps, self._steps = self._steps, set()
        due, self._due = self._due, False
        content: dict[str, Any] = {"from": self._context.node_id, "due": due, "steps": sorted(steps)[:MOST_FLOWS]}
        content["ended"] = sorted(ended) if len(ended) <= MOST_FLOWS else None
        content["flows"] = sorted(flows) if len(flows) + len(content["ended"] or ()) <= MOST_FLOWS else None
        dropped: tuple[dict[str, Any], ...] = ({}, {"flows": None}, {"ended": None, "steps": []})
        for each in dropped:  # until it is short enough
            content.update(each)
            text = orjson.dumps(content)
            if len(text) <= MOST_BYTES:
                break
        return text.decode()

    def _heard(self, message: str) -> None:
        try:
            content = orjson.loads(message)
            sender, steps, due = content["from"], content["steps"], content["due"]
            flows = _names(content["flows"])
            ended = _names(content["ended"]) if "ended" in content else flows  # of an earlier release, any may have
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
        if ended is None:
            self._results.look_again()
        else:
            self._results.read_ended(ended)
        if steps:
            self._room.make(steps)
        if due:
            self._wakeups.now(SweepName.REQUEUE)


def _names(value: Any) -> list[str] | None:
    """The ids of a notification; None: any."""
    return None if value is None else [name for name in value if isinstance(name, str)]
