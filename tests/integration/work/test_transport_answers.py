"""The transport against real sockets: what answers become."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from email.utils import formatdate

import pytest
import uvloop

from counterfoil.domain.work.replies import Reply, SendOutcome
from counterfoil.testing import MovableClock
from counterfoil.transport import HttpTransport
from counterfoil.transport.http import LONGEST_RETRY_AFTER_MS, parse_retry_after
from tests.integration.network_peer import (
    ENOUGH_MS,
    LIMIT,
    NOW,
    OK,
    Exchange,
    cuts,
    hangs,
    opened,
    peer,
    post,
    resets,
    sends,
    sends_then,
)


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    async with opened() as transport:
        yield transport


class TestAnswers:
    async def test_the_request_arrives_as_it_was_given(self, transport: HttpTransport) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "counterfoil/1", "Idempotency-Key": "k"}
        async with peer(sends(OK)) as endpoint:
            await post(transport, endpoint.url("/a%20b?c=d#e"), body=b'{"x":1}', headers=headers)
        (request,) = endpoint.exchanges
        assert request.line == "POST /a%20b?c=d HTTP/1.1"
        assert request.body == b'{"x":1}'
        assert {name.lower(): value for name, value in headers.items()}.items() <= request.headers.items()
        assert request.headers["accept-encoding"] == "identity"
        assert request.headers["content-length"] == "7"

    async def test_a_body_is_json_unless_the_headers_say_otherwise(self, transport: HttpTransport) -> None:
        async with peer(sends(OK)) as endpoint:
            await post(transport, endpoint.url(), headers={})
            await post(transport, endpoint.url(), headers={"content-type": "text/plain"})
        assert [request.headers["content-type"] for request in endpoint.exchanges] == ["application/json", "text/plain"]

    async def test_status_and_body_come_back(self, transport: HttpTransport) -> None:
        async with peer(sends(b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nhel", b"lo")) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(SendOutcome.ANSWERED, 202, None, b"hello")

    async def test_a_chunked_body(self, transport: HttpTransport) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
        async with peer(sends(chunked)) as endpoint:
            assert (await post(transport, endpoint.url())).body == b"hello"

    async def test_a_body_that_ends_with_the_connection(self, transport: HttpTransport) -> None:
        async with peer(sends_then(b"HTTP/1.0 200 OK\r\n\r\nhello", cuts)) as endpoint:
            assert await post(transport, endpoint.url()) == Reply(SendOutcome.ANSWERED, 200, None, b"hello")

    async def test_an_interim_answer_is_not_the_answer(self, transport: HttpTransport) -> None:
        async with peer(sends(b"HTTP/1.1 103 Early Hints\r\n\r\n", OK)) as endpoint:
            assert (await post(transport, endpoint.url())).status == 200

    async def test_a_compressed_answer_is_read(self, transport: HttpTransport) -> None:
        packed = gzip.compress(b'{"success":true}')
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
        async with peer(sends(head + packed)) as endpoint:
            assert (await post(transport, endpoint.url())).body == b'{"success":true}'

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_redirects_are_not_followed(self, transport: HttpTransport, status: int) -> None:
        head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".encode()
        async with peer(sends(head)) as endpoint:
            assert (await post(transport, endpoint.url())).status == status
        assert [request.line.split()[1] for request in endpoint.exchanges] == ["/step"]

    async def test_connections_are_reused_and_cookies_are_not_kept(self, transport: HttpTransport) -> None:
        baker = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\n{}"
        async with peer(sends(baker)) as endpoint:
            for _ in range(5):
                assert (await post(transport, endpoint.url())).status == 200
        assert endpoint.connections == 1
        assert not any("cookie" in request.headers for request in endpoint.exchanges)

    async def test_the_transport_sets_no_bound_of_its_own_on_concurrency(self, transport: HttpTransport) -> None:
        everyone = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            if len(endpoint.exchanges) == 150:
                everyone.set()
            await everyone.wait()
            await exchange.send(OK)

        async with peer(script) as endpoint:
            replies = await asyncio.gather(*(post(transport, endpoint.url()) for _ in range(150)))
        assert {reply.status for reply in replies} == {200}

    async def test_a_large_request_is_sent_whole(self, transport: HttpTransport) -> None:
        async with peer(sends(OK)) as endpoint:
            assert (await post(transport, endpoint.url(), body=b"x" * 3_000_000)).status == 200
        assert len(endpoint.exchanges[0].body) == 3_000_000

    async def test_credentials_of_the_url_become_a_header(self, transport: HttpTransport) -> None:
        async with peer(sends(OK)) as endpoint:
            await post(transport, f"http://user:pass@127.0.0.1:{endpoint.port}/")
        assert endpoint.exchanges[0].headers["authorization"] == "Basic dXNlcjpwYXNz"

    async def test_proxies_of_the_environment_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        async with opened() as transport, peer(sends(OK)) as endpoint:
            assert (await post(transport, endpoint.url())).status == 200


class TestLimits:
    async def test_a_body_of_exactly_the_limit_is_whole(self, transport: HttpTransport) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {LIMIT}\r\n\r\n".encode()
        async with peer(sends(head + b"x" * LIMIT)) as endpoint:
            assert await post(transport, endpoint.url()) == Reply(SendOutcome.ANSWERED, 200, None, b"x" * LIMIT)

    async def test_one_byte_more_is_too_much(self, transport: HttpTransport) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {LIMIT + 1}\r\n\r\n".encode()
        async with peer(sends(head + b"x" * (LIMIT + 1))) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(SendOutcome.ANSWERED, 200, None, b"x" * LIMIT, truncated=True)

    async def test_what_is_over_the_limit_is_not_read_and_the_connection_closed(self, transport: HttpTransport) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n"
        async with peer(sends(head + b"x" * 50_000_000)) as endpoint:
            assert (await post(transport, endpoint.url())).truncated
            await endpoint.until(lambda: endpoint.hung_up == 1)
            await post(transport, endpoint.url())
            assert endpoint.connections == 2

    async def test_an_endless_body_ends_at_the_limit(self, transport: HttpTransport) -> None:
        async def floods(exchange: Exchange) -> None:
            await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                await exchange.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")

        async with peer(floods) as endpoint:
            reply = await post(transport, endpoint.url())
        assert (reply.truncated, len(reply.body)) == (True, LIMIT)

    async def test_a_small_body_that_unpacks_to_a_huge_one(self, transport: HttpTransport) -> None:
        bomb = gzip.compress(b"\0" * 100_000_000)
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
        async with peer(sends(head + bomb)) as endpoint:
            await post(transport, endpoint.url("/warm"))
            tracemalloc.start()
            reply = await post(transport, endpoint.url())
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert (reply.truncated, len(reply.body)) == (True, LIMIT)
        assert peak < 10_000_000


class TestRetryAfter:
    async def test_it_is_taken_from_the_answer_by_the_given_clock(self) -> None:
        clock = MovableClock(start_ms=NOW)
        date = formatdate(NOW / 1000 + 90, usegmt=True)
        answers = [f"HTTP/1.1 503 X\r\nRetry-After: {text}\r\nContent-Length: 0\r\n\r\n" for text in ("30", date)]

        async def script(exchange: Exchange) -> None:
            await exchange.send(answers[len(endpoint.exchanges) - 1].encode())

        async with opened(clock=clock) as transport, peer(script) as endpoint:
            assert (await post(transport, endpoint.url())).retry_after_ms == 30_000
            clock.advance(seconds=60)
            later = (await post(transport, endpoint.url())).retry_after_ms
        assert later is not None
        assert 20_000 < later <= 30_000

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("0", 0),
            (" 120 ", 120_000),
            ("99999999999", LONGEST_RETRY_AFTER_MS),
            ("9" * 6000, LONGEST_RETRY_AFTER_MS),
            ("000000000000000005", 5000),
            (formatdate(NOW / 1000 + 5, usegmt=True), 5000),
            (formatdate(NOW / 1000 - 5, usegmt=True), 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
            ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_RETRY_AFTER_MS),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("٣", None),
            ("Mon, 99 Nov 2026 99:99:99 GMT", None),
        ],
    )
    def test_parsing(self, text: str, expected: int | None) -> None:
        assert parse_retry_after(text, NOW) == expected


class TestErrorTexts:
    async def test_no_error_repeats_the_url_or_what_was_sent_or_received(self, transport: HttpTransport) -> None:
        secret = "w1.s3cr3t"
        scripts = [cuts, resets, hangs, sends_then(f"{secret}\r\n\r\n".encode(), cuts)]
        scripts.append(sends_then(f"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{secret}".encode(), cuts))
        scripts.append(sends_then(f"HTTP/1.1 200 OK\r\n{secret}\r\n\r\n".encode(), cuts))
        for script in scripts:
            async with peer(script) as endpoint:
                url = f"http://user:{secret}@127.0.0.1:{endpoint.port}/{secret}?{secret}"
                reply = await post(transport, url, ENOUGH_MS, body=secret.encode())
            assert reply.delivery is SendOutcome.UNKNOWN
            assert reply.error
            assert secret not in reply.error


def test_the_same_holds_on_uvloop() -> None:
    """The loop that serves in production has sockets and transports of its own."""

    async def story() -> None:
        async with opened() as transport:
            async with peer(sends(OK)) as endpoint:
                assert (await post(transport, endpoint.url())).status == 200
                assert (await post(transport, f"http://169.254.169.254:{endpoint.port}/")).denied
            refused = await post(transport, endpoint.url())
            assert refused == Reply(SendOutcome.NOT_DELIVERED, error="cannot connect: Connection refused")
            for script in (cuts, resets, hangs):
                async with peer(script) as endpoint:
                    assert (await post(transport, endpoint.url(), ENOUGH_MS)).delivery is SendOutcome.UNKNOWN
            async with peer(hangs) as endpoint:
                sending = asyncio.ensure_future(post(transport, endpoint.url()))
                await endpoint.until(lambda: len(endpoint.exchanges) == 1)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending

    uvloop.run(story())
