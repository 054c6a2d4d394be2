"""Word from node to node: what one has committed may be what another waits for.

Told are flows that have changed (streams and long polls), steps that have room again, and that something due found no
place here. Words gather for a moment and are sent together, after the commit and apart from it; a store drops them as
it likes. Nothing depends on them: every sweep, and every reader, also looks by itself from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import structlog

from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.feed import Feed
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.protocol import Nodes

GATHER_SECONDS = 0.01
BUSY_SECONDS = 0.05
MANY_FLOWS = 32
"""Where more than so many flows change in a moment, words gather longer: telling and hearing costs every node, and the
database, as much as several of the changes that are told."""
LAST_WORDS_SECONDS = 1.0
MOST_FLOWS = 180
"""More flows than fit into one message are told as «any»."""

log = structlog.get_logger(__name__)


class Peers:
    """Tells the other nodes, and hears them."""

    def __init__(self, nodes: Nodes, context: EngineContext, lease: Lease, feed: Feed) -> None:
        self._nodes = nodes
        self._context = context
        self._lease = lease
        self._feed = feed
        self._flows: set[str] = set()
        self._steps: set[str] = set()
        self._due = False
        self._sending: asyncio.Task[None] | None = None
        self.room_for: Callable[[Iterable[str]], None] = lambda steps: None
        """Called with steps of which something has come back elsewhere."""
        self.due: Callable[[], None] = lambda: None
        """Called when another node has due work that it has no place for."""
        self.met: Callable[[], None] = lambda: None
        """Called when word comes from another node, where none was known of."""
        nodes.heard = self._heard

    def tell(self, flows: Iterable[str] = (), steps: Iterable[str] = (), *, due: bool = False) -> None:
        """Gather; nothing is said while there is nobody to hear it."""
        if not self._lease.others:
            return
        self._flows.update(flows)
        self._steps.update(steps)
        self._due = self._due or due
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="peers")

    def greet(self) -> None:
        """Let the others hear of this node: what they do where they are not alone, they do from now on."""
        self.tell(due=True)

    async def finish(self) -> None:
        """Say what is still to be said, if that is soon done: nobody hears of it later from a node that leaves."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=LAST_WORDS_SECONDS)
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
            words: dict[str, Any] = {"from": self._context.node_id, "due": due, "steps": sorted(steps)[:MOST_FLOWS]}
            words["flows"] = sorted(flows) if len(flows) <= MOST_FLOWS else None
            text = orjson.dumps(words).decode()
            if len(text) > 7_900:  # ids may be long, and a message may not
                text = orjson.dumps({**words, "flows": None, "steps": []}).decode()
            try:
                await self._nodes.notify(text)
            except StoreFailure as failure:
                log.debug("neighbours_not_told", reason=str(failure))

    def _heard(self, message: str) -> None:
        try:
            words = orjson.loads(message)
            sender, flows, steps, due = words["from"], words["flows"], words["steps"], words["due"]
        except (ValueError, KeyError, TypeError):
            return  # somebody else uses the same channel
        if sender == self._context.node_id:
            return
        if not self._lease.others:
            self._lease.others = 1  # until it is counted, when the lease is renewed
            self.met()
        if flows is None:
            self._feed.ring_all()
        else:
            self._feed.ring(flows)
        if steps:
            self.room_for(steps)
        if due:
            self.due()
