"""What is sent on a connection beside plain requests, to a real process, on the event loop that it runs on."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf
from tests.acceptance.processes import EngineProcess
from tests.acceptance.scenario import dispatched
from tests.by_hand import locked
from tests.half_close import (
    break_off_a_completion_and_shut_down,
    break_off_and_shut_down,
    complete_and_shut_down,
    pipeline_and_shut_down,
    poll_and_shut_down,
)
from tests.rawhttp import RawConnection, post_bytes, raw_connection

SUCCESS = b'{"success": true, "outputs": {"a": 1}}'
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
MEBIBYTE = 2**20


# ------------------------------------------------------------------------------------------------ half-close


@pytest.mark.parametrize("pieces", [(), (30,), (30, 200)])
async def test_a_half_close_behind_a_completion(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, pieces: tuple[int, ...]
) -> None:
    await complete_and_shut_down(client_of(engine), endpoint, *pieces)


@pytest.mark.sqlite_only
async def test_a_half_close_behind_other_requests(
    shared_engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(shared_engine)
    await pipeline_and_shut_down(api, endpoint)
    await poll_and_shut_down(api, endpoint)
    await break_off_and_shut_down(api)
    await break_off_a_completion_and_shut_down(api, endpoint)


# ------------------------------------------------------------------------------------------------ malformed


async def refused(connection: RawConnection) -> str:
    answer = await connection.answer()
    assert (answer.status, answer.body["error"]["code"]) == (400, "BAD_REQUEST")
    assert await connection.ended()
    return str(answer.body["error"]["message"])


@pytest.mark.sqlite_only
@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0", "11.1"])
async def test_other_versions_are_refused(shared_engine: EngineProcess, version: str) -> None:
    async with raw_connection(shared_engine.url) as connection:
        connection.send(GET.replace(b"1.1", version.encode()))
        await refused(connection)


@pytest.mark.sqlite_only
async def test_http_1_0_is_served(shared_engine: EngineProcess) -> None:
    async with raw_connection(shared_engine.url) as connection:
        connection.send(GET.replace(b"1.1", b"1.0"))
        assert (await connection.answer()).status == 200
        assert await connection.ended()


CODINGS = [
    "gzip, chunked",
    "identity, chunked",
    "chunked, chunked",
    "chunked, identity",
    "identity",
    "gzip",
    "chunked;q=1",
    "chunked,",
    "xchunked",
    "chunked\r\nTransfer-Encoding: chunked",
    "gzip\r\nTransfer-Encoding: chunked",
    "chunked\r\nTransfer-Encoding: identity",
]


@pytest.mark.sqlite_only
@pytest.mark.parametrize("coding", CODINGS)
async def test_other_transfer_codings_are_refused(
    shared_engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, coding: str
) -> None:
    """Also of a completion, which is not recorded then."""
    api = client_of(shared_engine)
    flow_id, received = await dispatched(api, endpoint)
    head, _ = post_bytes(received.webhook_url, b"")
    head = re.sub(rb"Content-Length: 0", b"Transfer-Encoding: " + coding.encode(), head)
    async with raw_connection(shared_engine.url) as connection:
        connection.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(SUCCESS), SUCCESS))
        await refused(connection)
    assert (await api.flow(flow_id))["status"] == "active"


@pytest.mark.sqlite_only
async def test_chunks_are_taken_in_http_1_1_alone(
    shared_engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    _, received = await dispatched(client_of(shared_engine), endpoint)
    head, _ = post_bytes(received.webhook_url, b"")
    head = re.sub(rb"Content-Length: 0", b"Transfer-Encoding: Chunked", head)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SUCCESS), SUCCESS)
    async with raw_connection(shared_engine.url) as old, raw_connection(shared_engine.url) as new:
        old.send(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        assert "chunked" in await refused(old)
        new.send(head + body)
        assert (await new.answer()).status == 200


GARBAGE = {
    "bytes": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "words": b"what is this\r\n\r\n",
    "another version": GET.replace(b"1.1", b"2.0"),
    "a bad chunk": b"POST /api/v1/flows HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
}


@pytest.mark.sqlite_only
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("before", [1, 2, 40])
async def test_garbage_behind_valid_requests_does_not_swallow_their_answers(
    shared_engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, garbage: bytes, before: int
) -> None:
    """In one piece: each request is answered, then the rest gets its 400."""
    api = client_of(shared_engine)
    flow_id, received = await dispatched(api, endpoint)
    async with raw_connection(shared_engine.url) as connection:
        completion = b"".join(post_bytes(received.webhook_url, SUCCESS))
        connection.send(completion + GET * (before - 1) + garbage)
        for _ in range(before):
            assert (await connection.answer()).status == 200
        await refused(connection)
    assert (await api.final(flow_id))["outputs"] == {"a": 1}


# ------------------------------------------------------------------------------------------------ behind a completion


async def test_what_follows_a_completion_is_not_taken_while_it_waits(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """The store is slow, the client is not: the engine buffers little, and the rest stays with the client."""
    api = client_of(engine)
    _, received = await dispatched(api, endpoint)
    behind = GET * (MEBIBYTE // len(GET))
    async with raw_connection(engine.url) as connection:
        before = resident_bytes(engine)
        async with locked(engine.place):
            connection.send(b"".join(post_bytes(received.webhook_url, SUCCESS)))
            (await api.get("/healthz")).ok()  # by the time of this answer the completion has been read
            taken = await send_until_it_sticks(connection, behind, most=64)
            grown = resident_bytes(engine) - before
        assert taken < 32, f"{taken} MiB were taken"
        assert grown < 8 * MEBIBYTE, f"the process grew by {grown} bytes"
        assert (await connection.answer()).status in (200, 503)
        assert (await connection.answer()).status == 200  # and what was sent behind it is read on


async def send_until_it_sticks(connection: RawConnection, piece: bytes, most: int) -> int:
    """How many pieces were sent before one of them was not taken within a moment."""
    for sent in range(most):
        connection.send(piece)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(connection.writer.drain(), 0.5)
            continue
        return sent
    return most


def resident_bytes(engine: EngineProcess) -> int:
    [line] = [
        line
        for line in Path(f"/proc/{engine.pid}/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmRSS:")
    ]
    return int(line.split()[1]) * 1024
