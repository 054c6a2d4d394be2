"""The transport against real sockets: a peer that refuses, hangs, cuts, redirects, trickles and floods."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_writer import StreamWriter

from counterfoil.domain.replies import Delivery, Reply
from counterfoil.testing import MovableClock
from counterfoil.transport import EgressPolicy, HttpTransport
from counterfoil.transport.http import LONGEST_RETRY_AFTER_MS, _Body, parse_retry_after

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LIMIT = 65_536
SHORT_MS = 100
ENOUGH_MS = 500  # for what must have arrived before the silence
LONG_MS = 20_000
NOW = 1_794_839_170_000

UNTRUSTED = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgL16rZ6ZnWvbZ+2U9
VLNMKr2PoCFT3nc+NqEwK18IVhShRANCAARlfO3eHBXP0kSytZsc0B9FdE8Dh0CV
3RNutuXTdh/vAyZpX/MKI8AnTE7bVBHwRe/vgc8HaYXcybZtMOl9POq6
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUFXfsrsTN+UXGpl4r5xy+tlB/v/EwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNjE0NTE0OVoYDzIxMjYxMDIz
MTQ1MTQ5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARlfO3eHBXP0kSytZsc0B9FdE8Dh0CV3RNutuXTdh/vAyZpX/MKI8An
TE7bVBHwRe/vgc8HaYXcybZtMOl9POq6o1MwUTAdBgNVHQ4EFgQUoH4Td3uLiAje
O3lyS+S8hZqgre0wHwYDVR0jBBgwFoAUoH4Td3uLiAjeO3lyS+S8hZqgre0wDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBa2kIWOura9pVJonjzCUJr
yg9Jrj0QCR8YgdgW8LpbGwIhAJ6wNo9H2DwEkmDPpU+5tkz7fsUnlqUWQRiwayst
LT0M
-----END CERTIFICATE-----
"""


class Exchange:
    """One request as it came over the wire, and the connection to answer it on as one likes."""

    def __init__(self, head: bytes, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.line, *lines = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.body = body
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        """An RST instead of a FIN."""
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    async def hang_up_seen(self) -> None:
        """Wait until the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass


Script = Callable[[Exchange], Awaitable[None]]


class Peer:
    """Serves raw bytes: reads requests, lets the script do what it wants, counts connections."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.exchanges: list[Exchange] = []
        self.connections = 0
        self.hung_up = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def url(self, path: str = "/step", scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until the peer has seen what is asked for."""
        async with asyncio.timeout(8):
            while not seen():
                self._changed.clear()
                await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"(?i)content-length: *(\d+)", head)
                    exchange = Exchange(head, await reader.readexactly(int(length[1]) if length else 0), reader, writer)
                    self.exchanges.append(exchange)
                    self._changed.set()
                    await self.script(exchange)
        finally:
            self.hung_up += 1
            self._changed.set()
            writer.close()
            self._tasks.discard(task)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def peer(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    serving = Peer(script)
    server = await asyncio.start_server(serving.serve, "127.0.0.1", 0, ssl=tls, backlog=1024)
    serving.port = server.sockets[0].getsockname()[1]
    try:
        yield serving
    finally:
        server.close()
        await serving.stop()


def sends(*data: bytes) -> Script:
    async def script(exchange: Exchange) -> None:
        for each in data:
            await exchange.send(each)

    return script


async def hangs(exchange: Exchange) -> None:
    await exchange.hang_up_seen()


async def cuts(exchange: Exchange) -> None:
    exchange.close()


async def resets(exchange: Exchange) -> None:
    exchange.reset()


def sends_then(data: bytes, then: Script) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.send(data)
        await then(exchange)

    return script


def opened(egress: EgressPolicy | None = None, clock: Callable[[], int] = lambda: NOW) -> HttpTransport:
    return HttpTransport(egress=egress or EgressPolicy(), clock=clock, max_response_bytes=LIMIT)


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    async with opened() as transport:
        yield transport


async def post(transport: HttpTransport, url: str, timeout_ms: int = LONG_MS, **more: Any) -> Reply:
    options: dict[str, Any] = {"body": b'{"arguments":{}}', "headers": {"Content-Type": "application/json"}, **more}
    return await transport.post(url, timeout_ms=timeout_ms, **options)


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
        assert reply == Reply(Delivery.ANSWERED, 202, None, b"hello")

    async def test_a_chunked_body(self, transport: HttpTransport) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
        async with peer(sends(chunked)) as endpoint:
            assert (await post(transport, endpoint.url())).body == b"hello"

    async def test_a_body_that_ends_with_the_connection(self, transport: HttpTransport) -> None:
        async with peer(sends_then(b"HTTP/1.0 200 OK\r\n\r\nhello", cuts)) as endpoint:
            assert await post(transport, endpoint.url()) == Reply(Delivery.ANSWERED, 200, None, b"hello")

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
            assert await post(transport, endpoint.url()) == Reply(Delivery.ANSWERED, 200, None, b"x" * LIMIT)

    async def test_one_byte_more_is_too_much(self, transport: HttpTransport) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {LIMIT + 1}\r\n\r\n".encode()
        async with peer(sends(head + b"x" * (LIMIT + 1))) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(Delivery.ANSWERED, 200, None, b"x" * LIMIT, truncated=True)

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


class TestNotDelivered:
    async def test_connection_refused(self, transport: HttpTransport) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            reply = await post(transport, f"http://user:hunter2@127.0.0.1:{closed.getsockname()[1]}/")
        assert reply == Reply(Delivery.NOT_DELIVERED, error="cannot connect: Connection refused")

    async def test_a_name_that_does_not_exist(self, transport: HttpTransport) -> None:
        reply = await post(transport, "http://nowhere.invalid/")
        assert (reply.delivery, reply.permanent, reply.denied) == (Delivery.NOT_DELIVERED, False, False)
        assert "cannot be resolved" in reply.error

    async def test_a_lookup_that_hangs(self, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, over = threading.Event(), threading.Event()

        def hang(*_: Any, **__: Any) -> list[Any]:
            asked.set()
            over.wait(30)
            return []

        monkeypatch.setattr(socket, "getaddrinfo", hang)
        reply = await post(transport, "http://slow.example/", SHORT_MS)
        over.set()
        assert asked.is_set()
        assert reply == Reply(Delivery.NOT_DELIVERED, error=f"no connection within {SHORT_MS} ms")

    async def test_a_connection_that_is_not_established_in_time(self, transport: HttpTransport) -> None:
        """The handshake of TLS belongs to the connection: until it is over no request can have been sent."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            started = time.monotonic()
            reply = await post(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/", SHORT_MS)
        assert reply == Reply(Delivery.NOT_DELIVERED, error=f"no connection within {SHORT_MS} ms")
        assert time.monotonic() - started < 5

    async def test_no_tls_on_the_other_side(self, transport: HttpTransport) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reply = await post(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert reply.delivery is Delivery.NOT_DELIVERED
        assert not reply.permanent
        assert "TLS" in reply.error

    async def test_a_certificate_that_nobody_trusts(self, transport: HttpTransport, tmp_path: Path) -> None:
        (tmp_path / "untrusted.pem").write_text(UNTRUSTED, encoding="ascii")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "untrusted.pem")
        async with peer(sends(OK), tls) as endpoint:
            reply = await post(transport, endpoint.url(scheme="https"))
        assert reply.delivery is Delivery.NOT_DELIVERED
        assert "certificate" in reply.error
        assert endpoint.exchanges == []

    async def test_a_connection_that_closed_while_idle_is_replaced(self, transport: HttpTransport) -> None:
        idle: list[Exchange] = []

        async def script(exchange: Exchange) -> None:
            idle.append(exchange)
            await exchange.send(OK)

        async with peer(script) as endpoint:
            await post(transport, endpoint.url())
            idle[0].close()
            await endpoint.until(lambda: endpoint.hung_up == 1)
            reply = await post(transport, endpoint.url())
        assert (reply.status, endpoint.connections) == (200, 2)

    async def test_a_request_on_a_connection_that_is_already_closing_was_not_sent(self) -> None:
        """The moment between taking a connection and writing to it: what is not written was not delivered."""
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()
            link, protocol = await loop.create_connection(lambda: BaseProtocol(loop), *address)
            link.close()
            body = _Body(b"{}")
            with pytest.raises(ConnectionResetError):
                await body.write(StreamWriter(protocol, loop))
        assert not body.sent

    async def test_after_closing_nothing_is_sent(self) -> None:
        async with peer(sends(OK)) as endpoint:
            async with opened() as transport:
                pass
            assert (await post(transport, endpoint.url())).delivery is Delivery.NOT_DELIVERED
        assert endpoint.connections == 0


class TestUnknown:
    async def test_silence(self, transport: HttpTransport) -> None:
        async with peer(hangs) as endpoint:
            reply = await post(transport, endpoint.url(), ENOUGH_MS)
            assert reply == Reply(Delivery.UNKNOWN, error=f"no complete answer within {ENOUGH_MS} ms")
            await endpoint.until(lambda: endpoint.hung_up == 1)

    @pytest.mark.parametrize("timeout_ms", [0, -5])
    async def test_no_time_left_is_not_all_the_time_there_is(self, transport: HttpTransport, timeout_ms: int) -> None:
        async with peer(hangs) as endpoint, asyncio.timeout(5):
            assert (await post(transport, endpoint.url(), timeout_ms)).delivery is not Delivery.ANSWERED

    @pytest.mark.parametrize("script", [cuts, resets], ids=["closed", "reset"])
    async def test_the_connection_is_lost_after_the_request(self, transport: HttpTransport, script: Script) -> None:
        async with peer(script) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(Delivery.UNKNOWN, error="the connection was lost before an answer came")
        assert len(endpoint.exchanges) == 1, "a request that may have arrived is never repeated by the transport"

    async def test_a_reused_connection_is_lost_after_the_request(self, transport: HttpTransport) -> None:
        async def script(exchange: Exchange) -> None:
            if len(endpoint.exchanges) == 1:
                await exchange.send(OK)
            else:
                exchange.close()

        async with peer(script) as endpoint:
            await post(transport, endpoint.url())
            reply = await post(transport, endpoint.url())
        assert reply.delivery is Delivery.UNKNOWN
        assert (endpoint.connections, len(endpoint.exchanges)) == (1, 2)

    @pytest.mark.parametrize(
        "answer",
        [b"not HTTP at all\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
    )
    async def test_an_answer_that_is_not_http(self, transport: HttpTransport, answer: bytes) -> None:
        async with peer(sends_then(answer, cuts)) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(Delivery.UNKNOWN, error="the answer is not HTTP")

    async def test_headers_without_end(self, transport: HttpTransport) -> None:
        async with peer(sends_then(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, hangs)) as endpoint:
            assert (await post(transport, endpoint.url())).delivery is Delivery.UNKNOWN

    @pytest.mark.parametrize("then", [cuts, resets, hangs], ids=["closed", "reset", "silent"])
    @pytest.mark.parametrize(
        "framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
    )
    async def test_a_good_answer_without_its_end(self, transport: HttpTransport, framing: bytes, then: Script) -> None:
        """What is missing could have been the result."""
        async with peer(sends_then(b"HTTP/1.1 200 OK\r\n" + framing, then)) as endpoint:
            reply = await post(transport, endpoint.url(), ENOUGH_MS if then is hangs else LONG_MS)
        assert (reply.delivery, reply.status, reply.body) == (Delivery.UNKNOWN, None, b"")
        assert reply.error

    async def test_a_body_that_cannot_be_unpacked(self, transport: HttpTransport) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 7\r\n\r\nnot zip"
        async with peer(sends(answer)) as endpoint:
            assert (await post(transport, endpoint.url())).delivery is Delivery.UNKNOWN

    @pytest.mark.parametrize("then", [cuts, resets, hangs], ids=["closed", "reset", "silent"])
    @pytest.mark.parametrize("status", [302, 404, 503])
    async def test_any_other_answer_stands_without_its_end(
        self, transport: HttpTransport, status: int, then: Script
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\nRetry-After: 7\r\nContent-Length: 100\r\n\r\nx".encode()
        async with peer(sends_then(head, then)) as endpoint:
            reply = await post(transport, endpoint.url(), ENOUGH_MS if then is hangs else LONG_MS)
        assert reply == Reply(Delivery.ANSWERED, status, 7000)


class TestCancellation:
    async def test_while_waiting_for_the_answer(self, transport: HttpTransport) -> None:
        async with peer(hangs) as endpoint:
            sending = asyncio.ensure_future(post(transport, endpoint.url()))
            await endpoint.until(lambda: len(endpoint.exchanges) == 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await endpoint.until(lambda: endpoint.hung_up == 1)

    async def test_while_reading_the_body(self) -> None:
        """More than any socket buffers, so that it is gone only when it is being read."""
        much = 32_000_000
        under_way = asyncio.Event()

        async def script(exchange: Exchange) -> None:
            await exchange.send(f"HTTP/1.1 200 OK\r\nContent-Length: {much + 1}\r\n\r\n".encode() + b"x" * much)
            under_way.set()
            await exchange.hang_up_seen()

        wide = HttpTransport(egress=EgressPolicy(), clock=lambda: NOW, max_response_bytes=2 * much)
        async with wide as transport, peer(script) as endpoint:
            sending = asyncio.ensure_future(post(transport, endpoint.url()))
            await under_way.wait()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await endpoint.until(lambda: endpoint.hung_up == 1)


class TestUnusableEndpoints:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "worker",
            "/path",
            "http://",
            "http:///path",
            "http://[::1",
            "http://worker:99999/",
            "http://worker:x/",
            "ftp://worker/",
            "file:///etc/passwd",
            f"http://{'a' * 64}.example/",
            "http://a..b/",
            "http://2130706433/",
            "http://127.1/",
            "http://user:hunter2@[bad/",
        ],
    )
    async def test_they_fail_for_good(self, transport: HttpTransport, url: str) -> None:
        reply = await post(transport, url)
        assert (reply.delivery, reply.permanent, reply.denied) == (Delivery.NOT_DELIVERED, True, False)
        assert reply.error
        assert "hunter2" not in reply.error

    async def test_only_so_many_endpoints_are_remembered(
        self, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("counterfoil.transport.http._KEPT_TARGETS", 3)
        for number in range(10):
            await post(transport, f"ftp://worker-{number}/")
        assert 1 <= len(transport._targets) <= 3


def resolving(monkeypatch: pytest.MonkeyPatch, hosts: dict[str, list[str]]) -> None:
    def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


class TestEgress:
    @pytest.mark.parametrize(
        "host", ["169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "[fd00:ec2::254]", "0.0.0.0", "[::]"]
    )
    async def test_denied_addresses(self, transport: HttpTransport, host: str) -> None:
        reply = await post(transport, f"http://{host}/latest/meta-data")
        assert (reply.delivery, reply.denied, reply.permanent) == (Delivery.NOT_DELIVERED, True, True)
        assert "egress" in reply.error

    async def test_a_name_that_leads_to_a_denied_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolving(monkeypatch, {"rebound.example": ["0.0.0.0"]})
        async with opened() as transport, peer(sends(OK)) as endpoint:
            reply = await post(transport, f"http://rebound.example:{endpoint.port}/")
        assert reply.denied
        assert endpoint.connections == 0

    async def test_the_socket_is_guarded_even_if_the_lookup_is_not(
        self, transport: HttpTransport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolving(monkeypatch, {"rebound.example": ["0.0.0.0"]})
        monkeypatch.setattr("counterfoil.transport.egress.GuardedResolver._allows", lambda *_: True)
        async with peer(sends(OK)) as endpoint:
            reply = await post(transport, f"http://rebound.example:{endpoint.port}/")
        assert reply.denied
        assert endpoint.connections == 0

    async def test_deny_lists_hold_for_names_and_addresses(self) -> None:
        policy = EgressPolicy(deny=["127.0.0.0/8", "::1", "evil.example"])
        async with opened(policy) as transport, peer(sends(OK)) as endpoint:
            for host in ("127.0.0.1", "localhost", "evil.example", "[::ffff:127.0.0.1]"):
                assert (await post(transport, f"http://{host}:{endpoint.port}/")).denied
        assert endpoint.connections == 0

    async def test_an_allowed_name_is_let_through_and_no_other_name_with_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolving(monkeypatch, {"worker.internal": ["0.0.0.0"], "other.internal": ["0.0.0.0"]})
        async with opened(EgressPolicy(allow=["worker.internal"])) as transport, peer(sends(OK)) as endpoint:
            assert (await post(transport, f"http://worker.internal:{endpoint.port}/")).status == 200
            assert (await post(transport, f"http://other.internal:{endpoint.port}/")).denied

    async def test_of_several_addresses_only_the_allowed_ones_are_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolving(monkeypatch, {"worker.internal": ["127.0.0.2", "0.0.0.0"]})
        async with opened() as transport, peer(sends(OK)) as endpoint:
            reply = await post(transport, f"http://worker.internal:{endpoint.port}/")
        assert (reply.delivery, reply.denied) == (Delivery.NOT_DELIVERED, False), "refused at 127.0.0.2: worth a retry"

    async def test_a_second_address_is_tried_when_the_first_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolving(monkeypatch, {"worker.internal": ["127.0.0.2", "127.0.0.1"]})
        async with opened() as transport, peer(sends(OK)) as endpoint:
            assert (await post(transport, f"http://worker.internal:{endpoint.port}/")).status == 200


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
            assert reply.delivery is Delivery.UNKNOWN
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
            assert refused == Reply(Delivery.NOT_DELIVERED, error="cannot connect: Connection refused")
            for script in (cuts, resets, hangs):
                async with peer(script) as endpoint:
                    assert (await post(transport, endpoint.url(), ENOUGH_MS)).delivery is Delivery.UNKNOWN
            async with peer(hangs) as endpoint:
                sending = asyncio.ensure_future(post(transport, endpoint.url()))
                await endpoint.until(lambda: len(endpoint.exchanges) == 1)
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending

    uvloop.run(story())
