"""What starves an engine process: connections that never get on, and limits that take its descriptors away."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from tests.acceptance.processes import EngineProcess
from tests.rawhttp import RawAnswer, RawConnection, raw_connection

HALF_HEAD = b"POST /webhook/a/b/c HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = (
    b"POST /api/v1/flows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
)
SILENCE = b""
HALF_REQUESTS = {"half a head": HALF_HEAD, "half a body": HALF_BODY, "nothing at all": SILENCE}


def descriptor_limit(number: int) -> Callable[[], None]:
    """For the start of a process: ``ulimit -n``, soft and hard."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


@contextlib.contextmanager
def no_descriptors(engine: EngineProcess) -> Iterator[None]:
    """No further descriptor for a running process: the limit is below all that it has open."""
    before = resource.prlimit(engine.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(engine.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have been stopped meanwhile
            resource.prlimit(engine.pid, resource.RLIMIT_NOFILE, before)


def open_descriptors(engine: EngineProcess) -> int:
    return len(list(Path(f"/proc/{engine.pid}/fd").iterdir()))


@contextlib.asynccontextmanager
async def half_requests(url: str, count: int, text: bytes) -> AsyncIterator[list[RawConnection]]:
    """So many connections at once, on each of which a request is begun and not ended."""
    async with contextlib.AsyncExitStack() as stack:
        connections = await asyncio.gather(*(stack.enter_async_context(raw_connection(url)) for _ in range(count)))
        for connection in connections:
            connection.send(text)
        yield connections


class Standby:
    """Connections that were made in good time, for asking an engine that cannot accept any more."""

    def __init__(self, connections: list[RawConnection]) -> None:
        self._connections = connections

    async def ask(self, method: str, path: str, body: bytes = b"") -> RawAnswer:
        """One request, on the first connection that the engine has not closed to get its descriptor back."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        while self._connections:
            connection = self._connections[-1]
            connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            try:
                return await connection.answer()
            except (asyncio.IncompleteReadError, ConnectionError):
                self._connections.pop()
        raise AssertionError("the engine has closed every connection")


@contextlib.asynccontextmanager
async def standby(url: str, count: int = 40) -> AsyncIterator[Standby]:
    async with half_requests(url, count, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") as connections:
        for connection in connections:
            assert (await connection.answer()).status == 200
        yield Standby(connections)
