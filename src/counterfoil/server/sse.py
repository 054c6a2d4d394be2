"""The journal as server-sent events: replayed from the client's last event, then followed, without a gap.

The journal in the store is the only source; the feed is merely a bell that says when to look again. A stream
subscribes before its first read, so what is committed in between rings the bell, and a slow client reads later
instead of being buffered for. Between two rings nothing is read, and one read follows a ring, or a few if it brought
more than a page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from aiohttp import web

from counterfoil.domain.journal.event_types import FLOW_STATUS_OF
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus
from counterfoil.engine.queries.feed import FeedReader
from counterfoil.engine.queries.queries import StreamedEvent
from counterfoil.server.connections import connection_of
from counterfoil.server.requests import last_event_id
from counterfoil.server.routes import EngineFacade

BATCH = 500
KEEP_ALIVE_SECONDS = 15.0
GATHER_SECONDS = 0.02
"""How long the stream over all flows waits for further commits: a busy engine makes thousands a second."""
WRITE_BYTES = 65_536
_STATES: dict[str, FlowStatus] = {kind.value: status for kind, status in FLOW_STATUS_OF.items()}


async def flow_stream(request: web.Request, engine: EngineFacade, flow_id: str) -> web.StreamResponse:
    """One flow's journal from its beginning; ends after the event that ended the flow."""
    seen = last_event_id(request) or 0
    with engine.feed.subscribe(flow_id) as subscription:
        over = await engine.queries.has_ended(flow_id)  # raises for an unknown flow
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
                events, more = await self._engine.queries.journal_after(seen, self._flow_id, BATCH)
                for text in _texts(events):
                    await self.response.write(text)
                if events:
                    seen = events[-1][0]
                    over = self._flow_id is not None and _is_over(events, before=over)
                elif more:  # held back until another transaction has ended
                    await asyncio.sleep(GATHER_SECONDS)
                if more or (over and self._subscription.take()):  # what comes now may be a redrive
                    continue
                if over or self._is_half_closed():
                    break
                await self._wait()

    def _is_half_closed(self) -> bool:
        """Whether the client sends nothing more: most likely it has left, and if not, it has all events so far."""
        return self._connection is not None and self._connection.half_closed

    async def _wait(self) -> None:
        """Wait for a commit that brings an event. Nothing is read before: what other nodes commit rings, too."""
        while not await self._subscription.wait(KEEP_ALIVE_SECONDS):
            await self.response.write(b": keep-alive\n\n")
        if self._flow_id is None:
            await asyncio.sleep(GATHER_SECONDS)


def _is_over(events: Iterable[StreamedEvent], *, before: bool) -> bool:
    """Whether the flow of these events has ended: one that failed may have been redriven. ``before``: until them."""
    states = [_STATES[kind] for _, kind, _ in events if kind in _STATES]
    return states[-1] in FINAL_FLOWS if states else before


def _texts(events: Iterable[StreamedEvent]) -> Iterator[bytes]:
    """The events as text, in pieces of a size that suits one write."""
    text = bytearray()
    for seq, kind, document in events:
        text += b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, kind.encode(), document)
        if len(text) >= WRITE_BYTES:
            yield bytes(text)
            text.clear()
    if text:
        yield bytes(text)
