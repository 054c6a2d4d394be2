"""Clients that send slowly, or nothing, or do not read: each is timed out, and none keeps the others out."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from urllib.parse import urlsplit

import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.acceptance.scenario import dispatched
from tests.acceptance.starving import (
    HALF_BODY,
    HALF_HEAD,
    HALF_REQUESTS,
    descriptor_limit,
    half_requests,
    open_descriptors,
)
from tests.contract import published
from tests.eventually import elapsed, eventually
from tests.rawhttp import post_bytes, raw_connection
from tests.wire import Api

SHORT = {
    "header_timeout_ms": "400",
    "body_timeout_ms": "600",
    "keepalive_timeout_ms": "800",
    "write_timeout_ms": "800",
}
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=["true", "false"], ids=["fast", "plain"])
async def impatient(new_engine: NewEngine, request: pytest.FixtureRequest) -> EngineProcess:
    """An engine with short timeouts, with and without the fast path.

    The contract is made beforehand: the engine would close the connection of a client that is busy with that.
    """
    published()
    engine = new_engine(**SHORT, fast_path=request.param)
    await engine.start()
    return engine


async def counted(api: Api, name: str) -> float:
    """A sample of the metrics, labels included in its name."""
    text = (await api.get("/metrics")).content.decode()
    found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


# ------------------------------------------------------------------------------------------------ timeouts


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("text", "reason"), [(HALF_HEAD, "header_timeout"), (HALF_BODY, "body_timeout")], ids=["head", "body"]
)
async def test_half_a_request_is_answered_408(
    impatient: EngineProcess, client_of: ClientOf, text: bytes, reason: str
) -> None:
    """With the envelope of every refusal; then the connection is closed."""
    async with raw_connection(impatient.url) as connection:
        connection.send(text)
        answer = await connection.answer(within=5)
        assert (answer.status, answer.body["error"]["code"]) == (408, "REQUEST_TIMEOUT")
        assert await connection.ended()
    name = f'counterfoil_connections_ended_total{{reason="{reason}"}}'
    assert await counted(client_of(impatient), name) == 1


@pytest.mark.sqlite_only
@pytest.mark.parametrize("text", [HALF_HEAD, HALF_BODY], ids=["head", "body"])
async def test_a_byte_now_and_then_does_not_prolong_it(impatient: EngineProcess, text: bytes) -> None:
    async with raw_connection(impatient.url) as connection:
        connection.send(text)
        begun = time.monotonic()
        answer = asyncio.ensure_future(connection.answer(within=10))
        while not answer.done():
            assert time.monotonic() - begun < 5
            connection.send(b" ")
            await elapsed(0.05)
        assert answer.result().status == 408


@pytest.mark.sqlite_only
@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another request"])
async def test_a_completion_whose_body_does_not_arrive_is_answered_408(
    impatient: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, before: bytes
) -> None:
    """The time runs from its head; a byte now and then does not prolong it, and nothing is recorded."""
    api = client_of(impatient)
    flow_id, received = await dispatched(api, endpoint)
    head, body = post_bytes(received.webhook_url, b'{"success": true}' + b" " * 500)
    async with raw_connection(impatient.url) as connection:
        if before:
            connection.send(before)
            assert (await connection.answer()).status == 200
        connection.send(head)
        begun = time.monotonic()
        answer = asyncio.ensure_future(connection.answer(within=10))
        while not answer.done():
            assert time.monotonic() - begun < 5
            connection.send(b" ")
            await elapsed(0.05)
        assert (answer.result().status, answer.result().body["error"]["code"]) == (408, "REQUEST_TIMEOUT")
        assert time.monotonic() - begun >= 0.5
        with contextlib.suppress(ConnectionError):
            assert await connection.ended()
    assert await counted(api, 'counterfoil_connections_ended_total{reason="body_timeout"}') == 1
    assert (await api.work(flow_id))["status"] == "active"
    async with raw_connection(impatient.url) as connection:
        connection.send(head + body)
        assert (await connection.answer()).status == 200


@pytest.mark.sqlite_only
async def test_a_connection_that_says_nothing_is_closed(impatient: EngineProcess) -> None:
    """Before its first request after the time for a head, behind one after that for the next request."""
    async with raw_connection(impatient.url) as silent, raw_connection(impatient.url) as idle:
        idle.send(GET)
        assert (await idle.answer()).status == 200
        begun = time.monotonic()
        assert await silent.ended(within=5)
        assert time.monotonic() - begun < 0.75
        assert await idle.ended(within=5)
        assert time.monotonic() - begun >= 0.75


@pytest.mark.sqlite_only
async def test_a_body_may_come_late_on_a_connection_that_was_idle(impatient: EngineProcess) -> None:
    """The time for it runs from its own head, not from the last request."""
    async with raw_connection(impatient.url) as connection:
        for _ in range(2):
            connection.send(GET)
            assert (await connection.answer()).status == 200
            await elapsed(0.5)
        connection.send(HALF_BODY[:-1])
        await elapsed(0.3)
        connection.send(b"{" + b" " * 498 + b"}")
        assert (await connection.answer()).status == 422


async def test_long_polls_and_streams_are_not_cut(
    impatient: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """Silence is not the client's fault while the engine has to answer."""
    api = client_of(impatient)
    flow_id, received = await dispatched(api, endpoint)
    poll = asyncio.ensure_future(api.get(f"/api/v1/flows/{flow_id}/result", wait="20"))
    async with api.session.get(f"{impatient.url}/api/v1/flows/{flow_id}/stream") as stream:
        await elapsed(2.0)
        await api.succeed(received, a=1)
        assert (await poll).ok()["outputs"] == {"a": 1}
        assert b"flow_completed" in await stream.read()


async def test_a_reader_that_stops_reading_is_cut_off(
    impatient: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """Its descriptor and what is buffered for it are given back."""
    api = client_of(impatient)
    await api.put_step("job", endpoint.url("/job"))
    for _ in range(60):
        await api.start("job", init={"text": "x" * 200_000})
    parts = urlsplit(impatient.url)
    with contextlib.closing(socket.socket()) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((parts.hostname, parts.port))
        stalled.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 0\r\n\r\n")
        name = 'counterfoil_connections_ended_total{reason="write_timeout"}'

        async def cut() -> bool:
            return await counted(api, name) == 1

        await eventually(cut, within=15)


# ------------------------------------------------------------------------------------------------ the cap


@pytest.mark.parametrize("text", HALF_REQUESTS.values(), ids=HALF_REQUESTS)
async def test_half_requests_beyond_the_descriptors_keep_no_client_out(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, text: bytes
) -> None:
    """400 of them with ``ulimit -n 300``: others are served, attempts are sent, and the log tells."""
    engine = new_engine()
    await engine.start(prepare=descriptor_limit(300))
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"), work={"max_retries": 0})
    async with half_requests(engine.url, 400, text):
        await eventually(lambda: "connections_limited" in engine.output())
        assert open_descriptors(engine) < 290
        for number in range(5):
            flow_id = await api.start("job")
            await api.succeed(await endpoint.received("/job", number + 1), n=number)
            assert (await api.final(flow_id))["outputs"] == {"n": number}
        assert (await api.get("/readyz")).status == 200
        assert await counted(api, 'counterfoil_connections_ended_total{reason="evicted"}') > 0
    assert "descriptors_exhausted" not in engine.output()
    assert "RETRIES_EXHAUSTED" not in engine.output()
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--store", engine.store_url)
    assert code == 0, output + errors


@pytest.mark.sqlite_only
@pytest.mark.parametrize("fast_path", ["true", "false"], ids=["fast", "plain"])
async def test_the_longest_idle_makes_room_first(new_engine: NewEngine, fast_path: str) -> None:
    engine = new_engine(max_connections="2", fast_path=fast_path)
    await engine.start()
    async with contextlib.AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(raw_connection(engine.url)) for _ in range(2)]
        for connection in (first, second, *[first] * 50):  # the clock of the engine's loop counts milliseconds
            connection.send(GET)
            assert (await connection.answer()).status == 200
        third = await stack.enter_async_context(raw_connection(engine.url))
        third.send(GET)
        assert (await third.answer()).status == 200
        assert await second.ended()
        first.send(GET)
        assert (await first.answer()).status == 200


@pytest.mark.sqlite_only
@pytest.mark.parametrize("fast_path", ["true", "false"], ids=["fast", "plain"])
async def test_when_all_are_busy_a_newcomer_is_told_to_come_again(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, fast_path: str
) -> None:
    """With 503 and Retry-After, and served as soon as one of them is done."""
    engine = new_engine(max_connections="3", fast_path=fast_path)
    await engine.start()
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    received = await endpoint.received("/job")
    poll = f"GET /api/v1/flows/{flow_id}/result?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    head, body = post_bytes(received.webhook_url, b'{"success": true}')
    async with contextlib.AsyncExitStack() as stack:
        *busy, last = [await stack.enter_async_context(raw_connection(engine.url)) for _ in range(3)]
        for connection in (*busy, last):
            connection.send(GET + poll)
            assert (await connection.answer()).status == 200  # so the poll behind it has been read as well

        async def refused() -> bool:
            async with raw_connection(engine.url) as newcomer:
                newcomer.send(GET)
                answer = await newcomer.answer()
            if answer.status == 200:
                return False
            assert (answer.status, answer.body["error"]["code"]) == (503, "UNAVAILABLE")
            assert int(answer.headers["retry-after"]) > 0
            return True

        await eventually(refused)
        assert "connections_limited" in engine.output()
        last.writer.close()

        async def completed() -> bool:
            async with raw_connection(engine.url) as newcomer:
                newcomer.send(head + body)
                return (await newcomer.answer()).status == 200

        await eventually(completed)
        for connection in busy:
            assert (await connection.answer()).body["status"] == "completed"
