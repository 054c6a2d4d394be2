"""A cheap load generator: raw HTTP/1.1 over a fixed number of connections, one request at a time on each.

It shares the machine with what it measures, so it parses only the status and the length of an answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from benchmarks.processes import Server


@dataclass
class Load:
    """The result of a run."""

    seconds: float
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


def stand_back() -> None:
    """Keep the kernel from interrupting a server to run this process: real clients run on other machines.

    Every answer wakes the load. If the other processor is busy, for example with a database, the kernel would run the
    load on the server's processor at once. Processes that are started from here do not inherit this setting.
    """
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))


def post_request(url: str, body: bytes) -> bytes:
    """A whole request as bytes, ready to be written."""
    parts = urlsplit(url)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Sends the next request as soon as the last one is answered."""

    def __init__(self, requests: Iterator[bytes], statuses: list[bytes], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._statuses = statuses
        self._done = done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(error or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        place = buffer.find(b"Content-Length: ", 0, end)
        if end < 0 or len(buffer) < end + 4 + int(buffer[place + 16 : buffer.find(b"\r\n", place)]):
            self._buffer = buffer
            return
        self._buffer = b""
        self._statuses.append(buffer[9:12])
        self.send()

    def send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            if not self._done.done():
                self._done.set_result(None)
            self._transport.close()
            return
        self._transport.write(request)


async def run_load(servers: Sequence[Server], requests: list[bytes], connections: int) -> Load:
    """Send all requests, distributed evenly over the connections; returns when the last one is answered.

    The measurement begins when all connections are open. Each takes the next request when its last one is answered,
    whichever server it leads to, so that all are busy to the end.
    """
    loop = asyncio.get_running_loop()
    source = iter(requests)
    statuses: list[bytes] = []
    done = [loop.create_future() for _ in range(connections)]
    opened = []
    for number, future in enumerate(done):
        server = servers[number % len(servers)]
        _, connection = await loop.create_connection(
            lambda future=future: _Connection(source, statuses, future),  # type: ignore[misc]
            server.host,
            server.port,
        )
        opened.append(connection)
    started = time.perf_counter()
    for connection in opened:
        connection.send()
    await asyncio.gather(*done)
    seconds = time.perf_counter() - started
    return Load(seconds, Counter(map(int, statuses)))
