"""A cheap step endpoint and worker: acknowledges at once, then reports, over persistent connections.

Raw HTTP/1.1 in the load generator's process, so that the engine is measured and not the worker.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import orjson

from benchmarks.load import post_request

_TAKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
RESULT = b'{"success":true,"outputs":{"key":"value"}}'


def split_messages(buffer: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The complete HTTP messages (head, body) at the start of a buffer, and the rest of it."""
    messages = []
    while (end := buffer.find(b"\r\n\r\n")) >= 0:
        head = buffer[:end].lower()
        place = head.find(b"content-length:")
        length = 0 if place < 0 else int(head[place + 15 :].split(b"\r\n", 1)[0])
        if len(buffer) < end + 4 + length:
            break
        messages.append((buffer[:end], buffer[end + 4 : end + 4 + length]))
        buffer = buffer[end + 4 + length :]
    return messages, buffer


class Endpoint(asyncio.Protocol):
    """Answers every dispatch with 200 and passes its metadata on."""

    def __init__(self, taken: Callable[[dict[str, Any]], None]) -> None:
        self._taken = taken
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        messages, self._buffer = split_messages(self._buffer + data)
        for _, body in messages:
            self._transport.write(_TAKEN)
            self._taken(orjson.loads(body)["metadata"])


class Reporter(asyncio.Protocol):
    """One connection on which results are posted, one at a time."""

    def __init__(self, pool: ReporterPool) -> None:
        self._pool = pool
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pool.idle(self)

    def send(self, request: bytes) -> None:
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        messages, self._buffer = split_messages(self._buffer + data)
        for head, _ in messages:
            self._pool.answered(int(head[9:12]))
            self._pool.idle(self)


class ReporterPool:
    """Posts results over a fixed number of connections; ``done`` is called with the status of each answer."""

    def __init__(self, done: Callable[[int], None]) -> None:
        self.answered = done
        self._all: list[Reporter] = []
        self._idle: deque[Reporter] = deque()
        self._waiting: deque[bytes] = deque()

    async def connect(self, host: str, port: int, connections: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, reporter = await loop.create_connection(lambda: Reporter(self), host, port)
            self._all.append(reporter)

    def close(self) -> None:
        for reporter in self._all:
            reporter.close()

    def report(self, url: str) -> None:
        self.send(post_request(url, RESULT))

    def send(self, request: bytes) -> None:
        if self._idle:
            self._idle.popleft().send(request)
        else:
            self._waiting.append(request)

    def idle(self, reporter: Reporter) -> None:
        if self._waiting:
            reporter.send(self._waiting.popleft())
        else:
            self._idle.append(reporter)


async def serve_endpoint(taken: Callable[[dict[str, Any]], None]) -> tuple[asyncio.Server, str]:
    """Listen on a free port; ``taken`` gets the metadata of each dispatch."""
    server = await asyncio.get_running_loop().create_server(lambda: Endpoint(taken), "127.0.0.1", 0, backlog=1024)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/work"
