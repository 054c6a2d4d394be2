"""A peer for the transport: a real socket whose every move a test decides."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from counterfoil.domain.work.replies import Reply
from counterfoil.transport import EgressPolicy, HttpTransport

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


async def post(transport: HttpTransport, url: str, timeout_ms: int = LONG_MS, **more: Any) -> Reply:
    options: dict[str, Any] = {"body": b'{"arguments":{}}', "headers": {"Content-Type": "application/json"}, **more}
    return await transport.post(url, timeout_ms=timeout_ms, **options)
