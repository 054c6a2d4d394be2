"""A bad network in front of PostgreSQL: connections are cut, refused or forgotten, also in the middle of a commit.

It runs in a thread of its own, so that code that blocks the test's event loop (the doctor does) still gets through.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

BEGIN = b"BEGIN "
COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""What the driver sends in one piece, as the last thing before it waits: a query of the simple protocol."""
ROLLBACK = b"Q\x00\x00\x00\x0dROLLBACK\x00"
ENTRY = b'[["'
"""How the text of a journal entry begins. A statement that writes one outside of a transaction is a commit as well."""

CommitFault = Literal["lost", "forwarded", "answered", "forgotten"]
"""What happens to a commit: it never arrives; it arrives and the connection is cut at once, so that its outcome is
unknown; the server's answer is lost; the answer never comes, and neither does the end of the connection."""


class Proxy:
    """Forwards to a server on this machine, as well as it is told to. ``target`` may change: that is a failover."""

    def __init__(self, dsn: str) -> None:
        self.direct = dsn
        self._dsn = urlsplit(dsn)
        assert self._dsn.port is not None
        self.target = self._dsn.port
        self.port = 0
        self.accepted = 0
        """How many connections were taken, whatever became of them."""
        self.commits = 0
        self.marks = [ENTRY]
        """What tells that a statement outside of a transaction writes."""
        self.on_commit: Callable[[], CommitFault | None] = lambda: None
        """Asked at every commit, in the proxy's thread."""
        self._links: set[_Link] = set()
        self._silent = False
        self.hanging_up = False
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    @property
    def dsn(self) -> str:
        """The DSN that it was given, by way of this proxy."""
        return self._dsn._replace(netloc=f"{self._dsn.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}").geturl()

    @property
    def database(self) -> str:
        return self._dsn.path[1:]

    def __enter__(self) -> Self:
        self._thread.start()
        self.admit()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What the test may do ----------------------------------------------------------------------------------------

    def cut(self) -> int:
        """Cut every connection that there is; how many there were."""
        return self._do(self._cut())

    def refuse(self) -> None:
        """Cut everything, and listen no more."""
        self._do(self._refuse())

    def hang_up(self) -> None:
        """Cut everything, and take new connections only to close them."""
        self.hanging_up = True
        self.cut()

    def admit(self) -> None:
        """Everything is well again: connections are taken, and what was forgotten goes on."""
        self._do(self._admit())

    def silence(self) -> None:
        """Forward nothing any more, and answer nothing: connections old and new just stand."""
        self._silent = True
        self.forget()

    def forget(self) -> None:
        """The connections that there are just stand; new ones are served."""
        self._do(self._forget())

    @property
    def links(self) -> int:
        return len(self._links)

    # How it is done ----------------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _admit(self) -> None:
        self._silent = self.hanging_up = False
        for link in self._links:
            link.flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._take, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.cut()
        await asyncio.gather(*(link.ended.wait() for link in links))
        return len(links)

    async def _forget(self) -> None:
        for link in self._links:
            link.flowing.clear()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.hanging_up:
            writer.transport.abort()
            return
        link = _Link(self, reader, writer)
        if self._silent:
            link.flowing.clear()
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            link.ended.set()


class _Link:
    """One client and its connection to the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = reader, writer
        self._running: asyncio.Task[None] | None = None
        self._answer_is_lost = False
        self._in_transaction = False
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.ended = asyncio.Event()

    async def run(self) -> None:
        """Forward in both directions until either side ends, or ``cut`` is called."""
        writers = [self._client[1]]
        self._running = asyncio.current_task()
        try:
            await self.flowing.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy.target)
            writers.append(writer)
            pumps = (self._to_server(writer), self._to_client(reader))
            async with asyncio.TaskGroup() as group:
                for pump in pumps:
                    group.create_task(pump)
        except* (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()

    def cut(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _to_server(self, server: asyncio.StreamWriter) -> None:
        while True:
            data = await _some(self._client[0])
            await self.flowing.wait()
            fault = None
            if self._is_commit(data):
                self._proxy.commits += 1
                fault = self._proxy.on_commit()
            if fault == "lost":
                raise EOFError
            if fault == "forgotten":
                self.flowing.clear()
            self._answer_is_lost = fault == "answered"
            server.write(data)
            await server.drain()
            if fault == "forwarded":
                raise EOFError

    def _is_commit(self, data: bytes) -> bool:
        if data.startswith(b"Q") and BEGIN in data[:16]:
            self._in_transaction = True
        if data.endswith((COMMIT, ROLLBACK)):
            self._in_transaction = False
        return data.endswith(COMMIT) or (
            not self._in_transaction and data.startswith(b"B") and any(mark in data for mark in self._proxy.marks)
        )

    async def _to_client(self, server: asyncio.StreamReader) -> None:
        while True:
            data = await _some(server)
            if self._answer_is_lost:
                raise EOFError
            await self.flowing.wait()
            self._client[1].write(data)
            await self._client[1].drain()


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(65_536)
    if not data:
        raise EOFError
    return data
