"""The journal as server-sent events: replayed from the client's last event, then followed, without a gap.

The journal in the store is the only source; the feed is merely a bell that says when to look again. A stream
subscribes before its first read, so what is committed in between rings the bell, and a slow client reads later
instead of being buffered for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from aiohttp import web

from counterfoil.domain.errors import UnknownFlow
from counterfoil.domain.journal.events import EventType
from counterfoil.engine.queries.feed import FeedReader
from counterfoil.server.connections import connection_of
from counterfoil.server.requests import last_event_id
from counterfoil.server.routes import EngineFacade

BATCH = 500
KEEP_ALIVE_SECONDS = 15.0
GATHER_SECONDS = 0.02
"""How long the stream over all flows waits for further commits: a busy engine makes thousands a second."""
WRITE_BYTES = 65_536

FINAL_EVENTS: frozenset[str] = frozenset({EventType.FLOW_COMPLETED, EventType.FLOW_FAILED, EventType.FLOW_CANCELLED})


async def flow_stream(request: web.Request, engine: EngineFacade, flow_id: str) -> web.StreamResponse:
    """One flow's journal from its beginning; ends after the event that ended the flow."""
    seen = last_event_id(request) or 0
    with engine.feed.subscribe(flow_id) as subscription:
        _, over = await engine.queries.result(flow_id, 0)  # raises for an unknown flow
        stream = _Stream(request, engine, subscription, flow_id)
        await stream.follow(seen, over=over)
    return stream.response


async def global_stream(request: web.Request, engine: EngineFacade) -> web.StreamResponse:
    """The journal of all flows, from now on or behind ``Last-Event-ID``; it ends with the server."""
    seen = last_event_id(request)
    with engine.feed.subscribe(None) as subscription:
        start = seen if seen is not None else await engine.queries.last_seq()
        stream = _Stream(request, engine, subscription, None)
        await stream.follow(start, over=False)
    return stream.response


class _Stream:
    """One answer that follows the journal."""

    def __init__(
        self, request: web.Request, engine: EngineFacade, subscription: FeedReader, flow_id: str | None
    ) -> None:
        self._request = request
        self._engine = engine
        self._subscription = subscription
        self._flow_id = flow_id
        self._connection = connection_of(request)
        if self._connection is not None:
            self._connection.when_half_closed(subscription.ring)
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # a proxy that buffers would hold events back
                "X-Content-Type-Options": "nosniff",
                "Server": "counterfoil",
            }
        )

    async def follow(self, seen: int, *, over: bool) -> None:
        """Send everything behind ``seen``; ``over``: the flow has ended already, nothing more will come."""
        with contextlib.suppress(ConnectionError):  # the client may leave at any moment
            await self.response.prepare(self._request)
            if self._request.method == "HEAD":
                return
            await self.response.write(b"retry: 3000\n\n")
            while not self._engine.feed.closed:
                rows = await self._engine.queries.journal_after(seen, self._flow_id, BATCH)
                if rows:
                    seen = rows[-1][0]
                    for text in _texts(rows):
                        await self.response.write(text)
                    over = over or any(kind in FINAL_EVENTS for _, kind, _ in rows)
                elif self._is_half_closed() or (over and await self._is_over()):
                    break
                else:
                    over = False
                    await self._wait()

    def _is_half_closed(self) -> bool:
        """Whether the client sends nothing more: most likely it has left, and if not, it has all events so far."""
        return self._connection is not None and self._connection.half_closed

    async def _is_over(self) -> bool:
        """Looked up rather than concluded: a flow that ended may have been redriven."""
        if self._flow_id is None:
            return False
        try:
            _, over = await self._engine.queries.result(self._flow_id, 0)
        except UnknownFlow:  # it was pruned meanwhile
            return True
        return over

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._subscription.wait(KEEP_ALIVE_SECONDS)
        if loop.time() - began >= KEEP_ALIVE_SECONDS - 0.5:  # timers may fire a moment early
            await self.response.write(b": keep-alive\n\n")
        elif self._flow_id is None:
            await asyncio.sleep(GATHER_SECONDS)


def _texts(rows: Iterable[tuple[int, str, bytes]]) -> Iterator[bytes]:
    """The events as text, in pieces of a size that suits one write."""
    text = bytearray()
    for seq, kind, document in rows:
        text += b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind.encode(), document)
        if len(text) >= WRITE_BYTES:
            yield bytes(text)
            text.clear()
    if text:
        yield bytes(text)
