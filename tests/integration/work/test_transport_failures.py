"""The transport against real sockets: a peer that refuses, hangs, cuts, redirects, trickles and floods."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_writer import StreamWriter

from counterfoil.domain.work.replies import Reply, SendOutcome
from counterfoil.transport import EgressPolicy, HttpTransport
from counterfoil.transport.http import _Body
from tests.integration.network_peer import (
    ENOUGH_MS,
    LONG_MS,
    NOW,
    OK,
    SHORT_MS,
    UNTRUSTED,
    Exchange,
    Script,
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


class TestNotDelivered:
    async def test_connection_refused(self, transport: HttpTransport) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            reply = await post(transport, f"http://user:hunter2@127.0.0.1:{closed.getsockname()[1]}/")
        assert reply == Reply(SendOutcome.NOT_DELIVERED, error="cannot connect: Connection refused")

    async def test_a_name_that_does_not_exist(self, transport: HttpTransport) -> None:
        reply = await post(transport, "http://nowhere.invalid/")
        assert (reply.delivery, reply.permanent, reply.denied) == (SendOutcome.NOT_DELIVERED, False, False)
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
        assert reply == Reply(SendOutcome.NOT_DELIVERED, error=f"no connection within {SHORT_MS} ms", timed_out=True)

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
        assert reply == Reply(SendOutcome.NOT_DELIVERED, error=f"no connection within {SHORT_MS} ms", timed_out=True)
        assert time.monotonic() - started < 5

    async def test_no_tls_on_the_other_side(self, transport: HttpTransport) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reply = await post(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert reply.delivery is SendOutcome.NOT_DELIVERED
        assert not reply.permanent
        assert "TLS" in reply.error

    async def test_a_certificate_that_is_not_trusted(self, transport: HttpTransport, tmp_path: Path) -> None:
        (tmp_path / "untrusted.pem").write_text(UNTRUSTED, encoding="ascii")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "untrusted.pem")
        async with peer(sends(OK), tls) as endpoint:
            reply = await post(transport, endpoint.url(scheme="https"))
        assert reply.delivery is SendOutcome.NOT_DELIVERED
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
            body = _Body(b"{}", lambda: True)
            with pytest.raises(ConnectionResetError):
                await body.write(StreamWriter(protocol, loop))
        assert not body.sent

    @pytest.mark.parametrize("used_before", [False, True], ids=["a new connection", "one that was used before"])
    async def test_a_sender_that_may_not_send_any_more(self, transport: HttpTransport, used_before: bool) -> None:
        """It is asked last, when the connection stands: not one byte of the request arrives."""
        asked: list[str] = []

        def may_send() -> bool:
            asked.append("may I?")
            return False

        async with peer(sends(OK)) as endpoint:
            if used_before:
                await post(transport, endpoint.url())
            reply = await post(transport, endpoint.url(), may_send=may_send)
            await endpoint.until(lambda: endpoint.hung_up == 1)
        error = "not sent: the attempt's deadline passed or this node's lease expired"
        assert reply == Reply(SendOutcome.NOT_DELIVERED, error=error)
        assert len(asked) == 1
        assert len(endpoint.exchanges) == int(used_before)

    async def test_after_closing_nothing_is_sent(self) -> None:
        async with peer(sends(OK)) as endpoint:
            async with opened() as transport:
                pass
            assert (await post(transport, endpoint.url())).delivery is SendOutcome.NOT_DELIVERED
        assert endpoint.connections == 0


class TestUnknown:
    async def test_silence(self, transport: HttpTransport) -> None:
        async with peer(hangs) as endpoint:
            reply = await post(transport, endpoint.url(), ENOUGH_MS)
            late = f"no complete response within {ENOUGH_MS} ms"
            assert reply == Reply(SendOutcome.UNKNOWN, error=late, timed_out=True)
            await endpoint.until(lambda: endpoint.hung_up == 1)

    @pytest.mark.parametrize("timeout_ms", [0, -5])
    async def test_no_time_left_is_not_all_the_time_there_is(self, transport: HttpTransport, timeout_ms: int) -> None:
        async with peer(hangs) as endpoint, asyncio.timeout(5):
            assert (await post(transport, endpoint.url(), timeout_ms)).delivery is not SendOutcome.ANSWERED

    @pytest.mark.parametrize("script", [cuts, resets], ids=["closed", "reset"])
    async def test_the_connection_is_lost_after_the_request(self, transport: HttpTransport, script: Script) -> None:
        async with peer(script) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(SendOutcome.UNKNOWN, error="the connection was lost before a response arrived")
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
        assert reply.delivery is SendOutcome.UNKNOWN
        assert (endpoint.connections, len(endpoint.exchanges)) == (1, 2)

    @pytest.mark.parametrize(
        "answer",
        [b"not HTTP at all\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
    )
    async def test_an_answer_that_is_not_http(self, transport: HttpTransport, answer: bytes) -> None:
        async with peer(sends_then(answer, cuts)) as endpoint:
            reply = await post(transport, endpoint.url())
        assert reply == Reply(SendOutcome.UNKNOWN, error="the answer is not HTTP")

    async def test_headers_without_end(self, transport: HttpTransport) -> None:
        async with peer(sends_then(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, hangs)) as endpoint:
            assert (await post(transport, endpoint.url())).delivery is SendOutcome.UNKNOWN

    @pytest.mark.parametrize("then", [cuts, resets, hangs], ids=["closed", "reset", "silent"])
    @pytest.mark.parametrize(
        "framing", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"]
    )
    async def test_a_good_answer_without_its_end(self, transport: HttpTransport, framing: bytes, then: Script) -> None:
        """What is missing could have been the result."""
        async with peer(sends_then(b"HTTP/1.1 200 OK\r\n" + framing, then)) as endpoint:
            reply = await post(transport, endpoint.url(), ENOUGH_MS if then is hangs else LONG_MS)
        assert (reply.delivery, reply.status, reply.body) == (SendOutcome.UNKNOWN, None, b"")
        assert reply.error

    async def test_a_body_that_cannot_be_unpacked(self, transport: HttpTransport) -> None:
        answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 7\r\n\r\nnot zip"
        async with peer(sends(answer)) as endpoint:
            assert (await post(transport, endpoint.url())).delivery is SendOutcome.UNKNOWN

    @pytest.mark.parametrize("then", [cuts, resets, hangs], ids=["closed", "reset", "silent"])
    @pytest.mark.parametrize("status", [302, 404, 503])
    async def test_any_other_answer_stands_without_its_end(
        self, transport: HttpTransport, status: int, then: Script
    ) -> None:
        head = f"HTTP/1.1 {status} X\r\nRetry-After: 7\r\nContent-Length: 100\r\n\r\nx".encode()
        async with peer(sends_then(head, then)) as endpoint:
            reply = await post(transport, endpoint.url(), ENOUGH_MS if then is hangs else LONG_MS)
        assert reply == Reply(SendOutcome.ANSWERED, status, 7000)


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
        assert (reply.delivery, reply.permanent, reply.denied) == (SendOutcome.NOT_DELIVERED, True, False)
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
        assert (reply.delivery, reply.denied, reply.permanent) == (SendOutcome.NOT_DELIVERED, True, True)
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
        assert (reply.delivery, reply.denied) == (SendOutcome.NOT_DELIVERED, False), (
            "refused at 127.0.0.2: worth a retry"
        )

    async def test_a_second_address_is_tried_when_the_first_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolving(monkeypatch, {"worker.internal": ["127.0.0.2", "127.0.0.1"]})
        async with opened() as transport, peer(sends(OK)) as endpoint:
            assert (await post(transport, f"http://worker.internal:{endpoint.port}/")).status == 200
