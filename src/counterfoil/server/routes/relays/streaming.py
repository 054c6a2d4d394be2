"""The stream of a relay: server-sent events, one for each request that the worker behind it is to be sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from aiohttp import web

from counterfoil.server.answers import json_text
from counterfoil.server.connections import connection_of
from counterfoil.server.routes import EngineFacade
from counterfoil.transport.relay import RelayConnection

KEEP_ALIVE_SECONDS = 10.0
_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # a proxy that buffers would hold requests back
    "X-Content-Type-Options": "nosniff",
    "Server": "counterfoil",
}


async def relay_stream(
    request: web.Request, engine: EngineFacade, name: str, *, max_response_bytes: int
) -> web.StreamResponse:
    """Be the relay of this name until the client leaves, another one takes its place, or the engine stops."""
    response = web.StreamResponse(headers=_HEADERS)
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    connection = engine.relays.connect(name)
    try:
        with contextlib.suppress(ConnectionError):  # the client may leave at any moment
            await response.prepare(request)
            hello = {
                "name": name,
                "node_id": engine.context.node_id,
                "webhook_base_url": engine.context.webhook_base_url,
                "max_response_bytes": max_response_bytes,
            }
            await response.write(_event("hello", hello))
            await _follow(request, response, connection)
    finally:
        engine.relays.disconnect(connection)
    return response


async def _follow(request: web.Request, response: web.StreamResponse, connection: RelayConnection) -> None:
    loop, client = asyncio.get_running_loop(), connection_of(request)
    if client is not None:
        client.when_half_closed(connection.ring)
    while not connection.closed and not (client is not None and client.half_closed):
        waiting = await connection.next(KEEP_ALIVE_SECONDS)
        if waiting is not None:
            document = waiting.hand_over(loop.time())
            if document is not None:
                await response.write(_event("request", document))
        elif not connection.closed:
            await response.write(b": keep-alive\n\n")
    if connection.replaced:
        await response.write(_event("replaced", {"name": connection.name}))


def _event(kind: str, document: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json_text(document))
