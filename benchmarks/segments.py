"""A load generator that also says how a request is cut: each piece is sent by a call of its own, at once.

Transports of asyncio and uvloop join what is written in one turn of the loop, so this one uses sockets. With
``TCP_NODELAY`` each call makes a segment, as it does for the clients that it stands for.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence

from benchmarks.processes import Server

Pieces = tuple[bytes, ...]
"""A request as it is sent."""


class _Connection:
    """Sends the next request as soon as the last one is answered, or when its time has come."""

    def __init__(self, server: Server, requests: Iterator[Pieces], spacing: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.create_connection((server.host, server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._requests = requests
        self._spacing = spacing
        self._buffer = b""
        self._sent_at = 0.0
        self.answered = 0
        self.done = self._loop.create_future()
        self._loop.add_reader(self._socket, self._readable)

    def send(self) -> None:
        pieces = next(self._requests, None)
        if pieces is None:
            self._end()
            return
        self._sent_at = self._loop.time()
        for piece in pieces:
            if self._socket.send(piece) != len(piece):
                raise RuntimeError("a piece of a request does not fit into the socket's buffer")

    def _readable(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            self._end(ConnectionError("the server closed the connection"))
            return
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        place = buffer.find(b"Content-Length: ", 0, end)
        if end < 0 or len(buffer) < end + 4 + int(buffer[place + 16 : buffer.find(b"\r\n", place)]):
            self._buffer = buffer
            return
        self._buffer = b""
        if buffer[9:12] != b"200":
            self._end(RuntimeError(f"not completed: {buffer[:200]!r}"))
            return
        self.answered += 1
        if self._spacing:
            self._loop.call_at(self._sent_at + self._spacing, self.send)
        else:
            self.send()

    def _end(self, error: Exception | None = None) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


async def send_all(
    server: Server, requests: Sequence[Pieces], connections: int, most_per_second: float | None = None
) -> float:
    """Send all requests over so many connections; how many were answered with 200 each second.

    ``most_per_second``: no faster than this, and spread evenly, as clients that know nothing of each other send them.
    """
    source = iter(requests)
    spacing = connections / most_per_second if most_per_second else 0.0
    opened = [_Connection(server, source, spacing) for _ in range(connections)]
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    for number, connection in enumerate(opened):
        if spacing:
            loop.call_later(spacing * number / connections, connection.send)
        else:
            connection.send()
    await asyncio.gather(*(connection.done for connection in opened))
    seconds = time.perf_counter() - started
    assert sum(connection.answered for connection in opened) == len(requests)
    return len(requests) / seconds
