"""What a client may rely on that sends all its requests and then shuts down its side: every answer comes."""

from __future__ import annotations

import asyncio

from counterfoil.testing import StepEndpoint
from tests.acceptance.scenario import dispatched
from tests.rawhttp import RawConnection, post_bytes, raw_connection
from tests.wire import Api

SUCCESS = b'{"success": true, "outputs": {"a": 1}}'
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def complete_and_shut_down(api: Api, endpoint: StepEndpoint, *pieces: int) -> None:
    """A completion, cut at these places, then a half-close: it is recorded and answered, then the engine closes."""
    flow_id, received = await dispatched(api, endpoint)
    data = b"".join(post_bytes(received.webhook_url, SUCCESS))
    async with raw_connection(api.url) as connection:
        await _send(connection, data, *pieces)
        answer = await connection.answer(within=10)
        assert (answer.status, answer.body["verdict"]) == (200, "accepted")
        assert await connection.ended()
    assert (await api.final(flow_id))["outputs"] == {"a": 1}


async def pipeline_and_shut_down(api: Api, endpoint: StepEndpoint) -> None:
    """Several requests, a completion among them: all are answered, in order."""
    _, received = await dispatched(api, endpoint)
    completion = b"".join(post_bytes(received.webhook_url, SUCCESS))
    async with raw_connection(api.url) as connection:
        await _send(connection, completion + GET * 40 + completion + GET)
        statuses = [(await connection.answer(within=10)).status for _ in range(43)]
        assert statuses == [200] * 41 + [400, 200]
        assert await connection.ended()


async def poll_and_shut_down(api: Api, endpoint: StepEndpoint) -> None:
    """A long poll waits on, and answers; a stream ends behind what there is."""
    flow_id, received = await dispatched(api, endpoint)
    async with raw_connection(api.url) as poll, raw_connection(api.url) as stream:
        poll.send(f"GET /api/v1/flows/{flow_id}/result?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        stream.send(f"GET /api/v1/flows/{flow_id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        poll.writer.write_eof()
        stream.writer.write_eof()
        told = await asyncio.wait_for(stream.reader.read(), 10)
        assert b"work_dispatched" in told
        assert told.endswith(b"0\r\n\r\n")
        await api.succeed(received, a=1)
        assert (await poll.answer(within=10)).body["outputs"] == {"a": 1}
        assert await poll.ended()


async def break_off_and_shut_down(api: Api) -> None:
    """Half a body that will never be whole is refused; half a head is not worth an answer."""
    async with raw_connection(api.url) as body, raw_connection(api.url) as head:
        half = post_bytes(f"{api.url}/api/v1/flows", b"{}", {"Content-Length": "500"})
        await _send(body, b"".join(half))
        answer = await body.answer(within=10)
        assert (answer.status, answer.body["error"]["code"]) == (400, "BAD_REQUEST")
        assert await body.ended()
        await _send(head, GET[:-2])
        assert await head.ended()


async def break_off_a_completion_and_shut_down(api: Api, endpoint: StepEndpoint) -> None:
    """A completion whose body will never be whole is refused as such, wherever it stands, and is not recorded."""
    flow_id, received = await dispatched(api, endpoint)
    half = b"".join(post_bytes(received.webhook_url, SUCCESS))[:-3]
    for before in (b"", GET):
        async with raw_connection(api.url) as connection:
            if before:
                connection.send(before)
                assert (await connection.answer()).status == 200
            await _send(connection, half, len(half) - 5)
            answer = await connection.answer(within=10)
            assert (answer.status, answer.body["error"]["code"]) == (422, "INVALID_RESULT")
            assert await connection.ended()
    assert (await api.work(flow_id))["status"] == "active"


async def _send(connection: RawConnection, data: bytes, *places: int) -> None:
    for begin, end in zip((0, *places), (*places, len(data)), strict=True):
        connection.send(data[begin:end])
        await connection.writer.drain()
        await asyncio.sleep(0)
    connection.writer.write_eof()
