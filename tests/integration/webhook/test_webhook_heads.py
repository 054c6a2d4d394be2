"""Unusual heads of requests have the same meaning on the fast path and in aiohttp's parser.

The plainest completions are not parsed by the HTTP server's own parser. Whatever is not of that form must be: a head
that two parsers understand differently is how requests are smuggled.
"""

from __future__ import annotations

import asyncio

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import dispatched
from tests.rawhttp import post_bytes, raw_connection
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = pytest.mark.both_paths

SUCCESS = orjson.dumps({"success": True, "outputs": {"a": 1}})


@pytest.fixture
async def api(start_node: StartNode, connect: Connect) -> Api:
    return connect(await start_node())


ODD_HEADS: dict[str, tuple[bytes, bytes]] = {
    "a length twice": (b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(SUCCESS)),
    "two lengths": (b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"),
    "a length and chunks": (b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "a length with a sign": (b"Content-Length: ", b"Content-Length: +"),
    "a length with a nought": (b"Content-Length: ", b"Content-Length: 0"),
    "a longer length": (b"Content-Length: ", b"Content-Length: 1"),
    "no length": (b"Content-Length: %d\r\n\r\n" % len(SUCCESS), b"\r\n"),
    "no space behind a name": (b"Host: ", b"Host:"),
    "a space before the colon": (b"Host: ", b"Host : "),
    "a tab behind a name": (b"Host: ", b"Host:\t"),
    "names in lower case": (b"Content-Type", b"content-type"),
    "a folded line": (b"\r\n\r\n", b"\r\nX-Note: one\r\n two\r\n\r\n"),
    "a line without a name": (b"\r\n\r\n", b"\r\nnonsense\r\n\r\n"),
    "a name that is none": (b"\r\n\r\n", b"\r\nX(Note): 1\r\n\r\n"),
    "a control character": (b"\r\n\r\n", b"\r\nX-Note: a\x01b\r\n\r\n"),
    "a lone line feed": (b"\r\n\r\n", b"\r\nX-Note: 1\n\r\n"),
    "bytes beyond ASCII": (b"\r\n\r\n", b"\r\nX-Note: \xff\r\n\r\n"),
    "no host": (b"Host: ", b"X-Host: "),
    "another charset": (b"application/json", b"application/json; charset=utf-8"),
    "an encoded body": (b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
    "an upgrade": (b"\r\n\r\n", b"\r\nUpgrade: h2c\r\n\r\n"),
    "HTTP/1.0": (b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/1.2": (b"HTTP/1.1", b"HTTP/1.2"),
    "two spaces": (b" HTTP/1.1", b"  HTTP/1.1"),
    "a query": (b" HTTP/1.1", b"?a=1 HTTP/1.1"),
    "an escape": (b"/webhook/", b"/webhook%2F"),
    "another method": (b"POST", b"post"),
}


@pytest.mark.either_store
@pytest.mark.parametrize("name", ODD_HEADS)
async def test_an_odd_head_is_understood_the_same_by_either_parser(api: Api, endpoint: StepEndpoint, name: str) -> None:
    """As the first thing on a connection, where a plain head would not be parsed, and behind one that was parsed."""
    answers = []
    for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        flow_id, received = await dispatched(api, endpoint)
        head, body = post_bytes(received.webhook_url, SUCCESS)
        odd = head.replace(*ODD_HEADS[name], 1)
        assert odd != head
        async with raw_connection(api.url) as connection:
            if before:
                connection.send(before)
                assert (await connection.answer()).status == 200
            connection.send(odd + body)
            try:
                answer: object = (await connection.answer(1)).status
            except (TimeoutError, asyncio.IncompleteReadError) as silence:
                answer = type(silence)
        answers.append((answer, (await api.work(flow_id))["status"]))
    assert answers[0] == answers[1]
    assert answers[0][1] == ("succeeded" if answers[0][0] == 200 else "active")
