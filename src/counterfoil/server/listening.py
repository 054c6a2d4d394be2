"""The sockets that callers connect to, and how connections are accepted.

Event loops accept connections by themselves, but not well when the machine lacks something: one closes its listening
socket without a log line, another retries as fast as it can. Here a connection that cannot be accepted waits in the
socket's backlog, a log line tells of it, and it is accepted after a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Any

from counterfoil.server.connections import Connections

BACKLOG = 1024
ACCEPTED_AT_ONCE = 16
"""Connections accepted in one turn of the event loop: so far the count of connections may lag behind."""
PAUSE_SECONDS = 0.2

_GONE = (BlockingIOError, InterruptedError, ConnectionAbortedError)


NewConnection = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol of an accepted connection."""


async def listen(host: str, port: int, new_connection: NewConnection, connections: Connections) -> AcceptingSockets:
    """Listen on every address of a host; raises OSError when that is not possible."""
    return AcceptingSockets(await _sockets_of(host, port), new_connection, connections)


class AcceptingSockets:
    """Accepts on some sockets until it is closed."""

    def __init__(self, sockets: list[socket.socket], new_connection: NewConnection, connections: Connections) -> None:
        self.sockets = sockets
        self._new_connection = new_connection
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        for listening in sockets:
            self._resume(listening)

    @property
    def port(self) -> int:
        """That of the first address."""
        return int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        for listening in self.sockets:
            self._loop.remove_reader(listening)
            if listening in self._pauses:
                self._pauses.pop(listening).cancel()
            listening.close()
        self.sockets = []

    def _resume(self, listening: socket.socket) -> None:
        self._pauses.pop(listening, None)
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except _GONE:
                return
            except OSError as error:
                self._connections.cannot_accept(error)
                self._loop.remove_reader(listening)
                self._pauses[listening] = self._loop.call_later(PAUSE_SECONDS, self._resume, listening)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._connect(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._new_connection, accepted)
        except OSError:  # it is gone already
            accepted.close()


async def _sockets_of(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host; those that this machine does not have are left out."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    missing: OSError | None = None
    with contextlib.ExitStack() as stack:
        sockets = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                listening = socket.socket(family, kind, protocol)
                stack.callback(listening.close)
                _bind(listening, address)
            except OSError as error:
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
                missing = error
            else:
                sockets.append(listening)
        if missing is not None and not sockets:
            raise missing
        stack.pop_all()
    return sockets


def _bind(listening: socket.socket, address: Any) -> None:
    listening.setblocking(False)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listening.family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listening.bind(address)
    listening.listen(BACKLOG)
