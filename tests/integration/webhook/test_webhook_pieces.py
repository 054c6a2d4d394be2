"""However a request is cut into pieces and packed together with others, the webhook answers the same.

A completion that arrives in one piece may be handled by the fast path, and any other by aiohttp: clients must not be
able to tell the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from counterfoil.domain.work.receipts import Receipts
from counterfoil.testing import Received, StepEndpoint
from tests.by_hand import locked
from tests.eventually import elapsed, eventually
from tests.integration.scenario import NO_SWEEPS, PATH, STEP, dispatched, place_of
from tests.rawhttp import RawAnswer, RawConnection, post_bytes, raw_connection
from tests.running import Connect, StartNode
from tests.wire import Api, signature_headers

pytestmark = pytest.mark.both_paths

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RECEIPTS = "a receipt secret of this test"
SUCCESS = orjson.dumps({"success": True, "outputs": {"a": 1}})
OTHER = orjson.dumps({"success": True, "outputs": {"a": 2}})
FAILURE = orjson.dumps({"success": False, "error": "x"})
AGAIN = orjson.dumps({"success": False, "retriable": True, "retry_after": 60})
WAYS = (
    "one piece",
    "one piece, kept alive",
    "one piece, not so plain",
    "head and body",
    "head and body, not so plain",
    "byte by byte",
    "chunked",
)
VARIABLE = re.compile(rb'"(flow_id|step_id|recorded_at)":"[^"]*"')


async def send(connection: RawConnection, way: str, head: bytes, body: bytes) -> None:
    """The same request, cut in one of several ways."""
    if "not so plain" in way:
        head = head.replace(b"\r\n\r\n", b"\r\nTE: trailers\r\n\r\n")
    elif "kept alive" in way:
        head = head.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n")
    if way.startswith("one piece"):
        connection.send(head + body)
    elif way.startswith("head and body"):
        connection.send(head)
        await elapsed(0.02)
        connection.send(body)
    elif way == "byte by byte":
        for place in range(0, len(head + body), 7):
            connection.send((head + body)[place : place + 7])
            await connection.writer.drain()
            await asyncio.sleep(0)
    else:
        head = re.sub(rb"Content-Length: \d+", b"Transfer-Encoding: chunked", head)
        connection.send(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else head + b"0\r\n\r\n")


async def post(
    way: str, url: str, body: bytes, headers: Mapping[str, str] | None = None, connection: RawConnection | None = None
) -> RawAnswer:
    """One request in one way, on a connection of its own unless one is given."""
    head, content = post_bytes(url, body, headers)
    if connection is not None:
        await send(connection, way, head, content)
        return await connection.answer()
    async with raw_connection(url) as own:
        await send(own, way, head, content)
        return await own.answer()


@pytest.fixture
async def api(start_node: StartNode, connect: Connect) -> Api:
    return connect(await start_node(signing_secret=SECRET, receipt_secrets=RECEIPTS))


async def fresh(api: Api, endpoint: StepEndpoint, **definition: Any) -> tuple[str, Received]:
    return await dispatched(api, endpoint, **definition)


BODIES = {
    "failed again": FAILURE,
    "failure": FAILURE,
    "not completed": AGAIN,
    "other": OTHER,
    "not json": b"{",
    "no result": b'{"success": 1}',
    "empty": b"",
    "too large": b" " * (2**20 + 1),
}
RECORDED_BEFORE = {"same again": SUCCESS, "other": SUCCESS, "duplicate allowed": SUCCESS, "failed again": FAILURE}


async def situation(api: Api, endpoint: StepEndpoint, name: str) -> tuple[str, bytes, dict[str, str]]:
    """A URL, a body and headers whose answer is the same every time but for ids and times."""
    flow_id, received = await fresh(
        api,
        endpoint,
        require_signature=name.startswith("signature"),
        duplicate_status=200 if name == "duplicate allowed" else 400,
    )
    body = BODIES.get(name, SUCCESS)
    if name in RECORDED_BEFORE:
        (await api.complete(received, orjson.loads(RECORDED_BEFORE[name]))).ok()
    elif name == "cancelled":
        (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    headers = {
        "media type": {"Content-Type": "text/plain"},
        "signature right": signature_headers(SECRET, body),
        "signature wrong": signature_headers(SECRET, body + b" "),
    }.get(name, {})
    urls = {
        "unknown token": received.webhook_url + "x",
        "unknown flow": received.webhook_url.replace(flow_id, "nobody"),
    }
    url = await never_sent(api, endpoint) if name == "never sent" else urls.get(name, received.webhook_url)
    return url, body, headers


async def never_sent(api: Api, endpoint: StepEndpoint) -> str:
    """The webhook of work that waits behind another."""
    await api.put_step("narrow", endpoint.url("/narrow"), work={"parallelism": 1})
    await api.start("narrow")
    waiting = await api.start("narrow")
    work_id = (await api.work(waiting))["work_id"]
    token = Receipts([RECEIPTS.encode()]).issue(waiting, "narrow", work_id)
    return f"{api.url}/webhook/{waiting}/narrow/{token}"


SITUATIONS = {
    "accepted": 200,
    "failure": 200,
    "not completed": 200,
    "duplicate allowed": 200,
    "same again": 400,
    "failed again": 400,
    "other": 400,
    "cancelled": 400,
    "never sent": 400,
    "unknown token": 404,
    "unknown flow": 404,
    "not json": 422,
    "no result": 422,
    "empty": 422,
    "too large": 413,
    "media type": 415,
    "signature right": 200,
    "signature wrong": 401,
    "signature missing": 401,
}


@pytest.mark.either_store
@pytest.mark.parametrize("name", SITUATIONS)
async def test_every_way_has_the_same_answer(api: Api, endpoint: StepEndpoint, name: str) -> None:
    """Status, headers and body: all of it, but for ids and times."""
    ways = [way for way in WAYS if name != "too large" or way != "byte by byte"]
    answers = []
    for way in ways:
        url, body, headers = await situation(api, endpoint, name)
        answers.append(await post(way, url, body, headers))
    assert [answer.status for answer in answers] == [SITUATIONS[name]] * len(ways)
    assert len({VARIABLE.sub(b"", answer.content) for answer in answers}) == 1
    shown = [{k: v for k, v in answer.headers.items() if k not in ("date", "content-length")} for answer in answers]
    assert shown == [shown[0]] * len(ways)
    assert all(abs(len(answer.content) - len(answers[0].content)) < 40 for answer in answers)


async def test_one_connection_serves_every_way(api: Api, endpoint: StepEndpoint) -> None:
    """Completions, refusals and reads on one connection that stays open."""
    async with raw_connection(api.url) as connection:
        for name in (
            "accepted",
            "no result",
            "same again",
            "unknown token",
            "accepted",
            "signature wrong",
            "cancelled",
        ):
            for way in WAYS:
                url, body, headers = await situation(api, endpoint, name)
                answer = await post(way, url, body, headers, connection)
                assert answer.status == SITUATIONS[name], (name, way, answer)
        connection.send(f"GET /healthz HTTP/1.1\r\nHost: {api.url[7:]}\r\n\r\n".encode())
        assert (await connection.answer()).status == 200


async def test_requests_in_one_packet_are_answered_in_order(api: Api, endpoint: StepEndpoint) -> None:
    """Pipelined: completions, a read between them, a refusal, all in one write."""
    received = [(await fresh(api, endpoint))[1] for _ in range(4)]
    look = f"GET /webhook/{_path(received[0])} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    requests = [
        b"".join(post_bytes(received[0].webhook_url, SUCCESS)),
        look,
        b"".join(post_bytes(received[0].webhook_url, OTHER)),
        b"".join(post_bytes(received[1].webhook_url, FAILURE)),
        b"".join(post_bytes(received[2].webhook_url, b"{")),
        b"".join(post_bytes(received[2].webhook_url, SUCCESS)),
        b"".join(post_bytes(received[3].webhook_url, AGAIN)),
    ]
    async with raw_connection(api.url) as connection:
        connection.send(b"".join(requests))
        answers = [await connection.answer() for _ in requests]
    assert [answer.status for answer in answers] == [200, 200, 400, 200, 422, 200, 200]
    assert answers[1].body["status"] == "succeeded"
    assert [answers[place].body["status"] for place in (0, 3, 5, 6)] == [
        "succeeded",
        "failed",
        "succeeded",
        "not_completed",
    ]
    assert [answers[place].body["flow_id"] for place in (0, 3, 5, 6)] == [each.metadata["flow_id"] for each in received]


def _path(received: Received) -> str:
    return received.webhook_url.split("/webhook/", 1)[1]


async def test_what_follows_a_completion_may_come_in_pieces(api: Api, endpoint: StepEndpoint) -> None:
    """The next request begins in the packet of the completion and ends later."""
    received = [(await fresh(api, endpoint))[1] for _ in range(6)]
    async with raw_connection(api.url) as connection:
        stream = b"".join(b"".join(post_bytes(each.webhook_url, SUCCESS)) for each in received)
        for place in range(0, len(stream), 333):
            connection.send(stream[place : place + 333])
            await elapsed(0.002)
        answers = [await connection.answer() for _ in received]
    assert [answer.status for answer in answers] == [200] * 6
    assert [answer.body["flow_id"] for answer in answers] == [each.metadata["flow_id"] for each in received]


async def test_a_large_body_behind_a_completion(api: Api, endpoint: StepEndpoint) -> None:
    """Far more than a buffer holds arrives while the completion before it is being committed."""
    first, second = (await fresh(api, endpoint))[1], (await fresh(api, endpoint))[1]
    large = orjson.dumps({"success": True, "outputs": {"text": "x" * 900_000}})
    async with raw_connection(api.url) as connection:
        connection.send(b"".join(post_bytes(first.webhook_url, SUCCESS) + post_bytes(second.webhook_url, large)))
        assert (await connection.answer()).status == 200
        assert (await connection.answer()).status == 200
    final = await api.final(second.metadata["flow_id"])
    assert len(final["outputs"]["text"]) == 900_000


async def test_a_client_that_goes_away_has_its_result_recorded(api: Api, endpoint: StepEndpoint) -> None:
    """It asked, and the answer could not be delivered: the result counts all the same, and a repeat says so."""
    for way in ("one piece", "head and body"):
        flow_id, received = await fresh(api, endpoint)
        async with raw_connection(api.url) as connection:
            await send(connection, way, *post_bytes(received.webhook_url, SUCCESS))
            await connection.writer.drain()
        assert (await api.final(flow_id))["outputs"] == {"a": 1}
        repeat = await api.complete(received, orjson.loads(SUCCESS))
        assert repeat.refused(400, "ALREADY_SUCCEEDED")["same_result"] is True


@pytest.mark.parametrize(("version", "header"), [("HTTP/1.1", "Connection: close"), ("HTTP/1.0", "X-Nothing: 1")])
async def test_a_connection_that_is_to_be_closed_is_closed(
    api: Api, endpoint: StepEndpoint, version: str, header: str
) -> None:
    _, received = await fresh(api, endpoint)
    head, body = post_bytes(received.webhook_url, SUCCESS)
    head = head.replace(b"HTTP/1.1", version.encode(), 1).replace(b"\r\n\r\n", f"\r\n{header}\r\n\r\n".encode())
    async with raw_connection(api.url) as connection:
        connection.send(head + body)
        assert (await connection.answer()).body["status"] == "succeeded"
        assert await connection.ended()


async def test_expect_100_continue(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await fresh(api, endpoint)
    head, body = post_bytes(received.webhook_url, SUCCESS, {"Expect": "100-continue"})
    async with raw_connection(api.url) as connection:
        connection.send(head)
        assert (await connection.answer()).status == 100
        connection.send(body)
        assert (await connection.answer()).body["status"] == "succeeded"


async def test_heartbeats_and_reads_are_not_mistaken_for_completions(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await fresh(api, endpoint)
    for way in WAYS:
        answer = await post(way, received.metadata["heartbeat_url"], b'{"success": true, "progress": 0.5}')
        assert answer.body["cancel_requested"] is False
    for path in (f"/webhook/{flow_id}/{STEP}/", f"/webhook//{STEP}/{received.token}", f"/webhook/{flow_id}/{STEP}"):
        answer = await post("one piece", api.url + path, SUCCESS)
        assert answer.status == 404, path
    work = await api.work(flow_id)
    assert (work["status"], work["progress"]) == ("active", 0.5)


async def test_the_store_is_away(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """503 with Retry-After, whichever way the completion came, and accepted on the same connection afterwards."""
    node = await start_node(**NO_SWEEPS)
    api = connect(node)
    received = [(await fresh(api, endpoint))[1] for _ in WAYS]
    async with locked(place_of(node)):
        answers = await asyncio.gather(
            *(post(way, each.webhook_url, SUCCESS) for way, each in zip(WAYS, received, strict=True))
        )
    for answer in answers:
        assert (answer.status, answer.body["error"]["code"]) == (503, "UNAVAILABLE")
        assert int(answer.headers["retry-after"]) >= 0
    assert len({orjson.dumps(answer.body["error"]["message"]) for answer in answers}) == 1

    for way, each in zip(WAYS, received, strict=True):

        async def taken(way: str = way, each: Received = each) -> bool:
            return (await post(way, each.webhook_url, SUCCESS)).status == 200

        await eventually(taken)


async def test_a_stop_answers_what_it_has_taken(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A completion that was posted just before the stop gets its answer, and the answer is true afterwards."""
    node = await start_node()
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH))
    flows = [await api.start(STEP) for _ in range(30)]
    for flow_id in flows:
        await api.until_acknowledged(flow_id)
    received = endpoint.requests(PATH)
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(raw_connection(api.url)) for _ in received]
        for connection, each in zip(connections, received, strict=True):
            connection.send(b"".join(post_bytes(each.webhook_url, SUCCESS)))
        stopping = asyncio.ensure_future(node.stop())
        told = await asyncio.gather(*(connection.answer(5) for connection in connections), return_exceptions=True)
        await stopping
    api = connect(await start_node())
    for each, answer in zip(received, told, strict=True):
        status = (await api.work(each.metadata["flow_id"]))["status"]
        if isinstance(answer, RawAnswer) and answer.status == 200:
            assert status == "succeeded"
        elif isinstance(answer, RawAnswer):
            assert (answer.status, status) == (503, "active")


@pytest.mark.either_store
@pytest.mark.parametrize("way", WAYS)
async def test_a_small_limit_holds_for_every_way(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, way: str
) -> None:
    """A body that fits into the first packet and is over the limit all the same."""
    api = connect(await start_node(max_body_bytes=300))
    flow_id, received = await fresh(api, endpoint)
    body = orjson.dumps({"success": True, "outputs": {"text": "x" * 300}})
    answer = await post(way, received.webhook_url, body)
    assert (answer.status, answer.body["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert (await api.work(flow_id))["status"] == "active"
    assert (await post(way, received.webhook_url, SUCCESS)).status == 200


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await fresh(api, endpoint)
    headers = {"Expect": "100-continue", "Content-Length": str(2**21)}
    head, _ = post_bytes(received.webhook_url, b"", headers)
    async with raw_connection(api.url) as connection:
        connection.send(head)
        answer = await connection.answer()
        assert (answer.status, answer.body["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
