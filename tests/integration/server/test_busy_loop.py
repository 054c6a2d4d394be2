"""A client is not timed out for the engine's own slowness: what has arrived is read before its time is up."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop
from aiohttp import web

from counterfoil.server.answers import json_response
from counterfoil.server.connections import ConnectionLimits, Connections
from counterfoil.server.fast_path.protocol import FastRunner
from counterfoil.server.listening import listen
from counterfoil.server.plain import PlainRunner
from tests.eventually import eventually

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECONDS = 0.4


async def sent_while_the_loop_is_blocked(runner_type: type[FastRunner | PlainRunner]) -> bytes:
    """The answer to a request that arrives while the event loop is kept busy for longer than a head may take."""

    async def health(request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/healthz", health)
    connections = Connections(ConnectionLimits(header=SECONDS, keepalive=SECONDS))
    runner = runner_type(app, connections=connections, shutdown_timeout=1)
    await runner.setup()
    sockets = await listen("127.0.0.1", 0, runner.connection, connections)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", sockets.port)

        async def accepted() -> bool:
            return bool(connections._open)

        await eventually(accepted)
        writer.write(GET)
        await asyncio.sleep(0)  # uvloop sends at the end of a turn
        time.sleep(2 * SECONDS)
        answer = await asyncio.wait_for(reader.read(12), 5)
        writer.close()
        return answer
    finally:
        sockets.close()
        await runner.cleanup()


@pytest.mark.parametrize("runner_type", [FastRunner, PlainRunner], ids=["fast", "plain"])
def test_a_request_that_waits_to_be_read_is_answered(runner_type: type[FastRunner | PlainRunner]) -> None:
    """On uvloop, whose timers run before what has arrived is read."""
    assert uvloop.run(sent_while_the_loop_is_blocked(runner_type)) == b"HTTP/1.1 200"
