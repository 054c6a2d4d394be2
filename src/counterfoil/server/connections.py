"""The connections of callers: how many there may be, and how long each may keep the engine waiting.

One sweep looks at all of them several times in the shortest timeout, so a request costs no timer. A connection is
timed only while the engine waits for its client: for a request line and headers, a body, the next request, or that the
client reads its answer. A request that is being handled, a long poll or a stream that is read, is not.

When there are as many as may be, those that have kept the engine waiting longest make room. If none can, newcomers are
turned away with 503.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple, Protocol, runtime_checkable

import structlog
from aiohttp import web

from counterfoil.domain.errors import Unavailable
from counterfoil.server.problems import problem_bytes
from counterfoil.transport.descriptors import take_one
from counterfoil.transport.exhaustion import DESCRIPTORS, Shortage, lack_of

LEAVING_AT_ONCE = 32
"""Connections that may be closing beside those that are open; their descriptors are reserved."""
LEAVING_SECONDS = 1.0
"""How long a refused client has to read the refusal."""
TOLD_AGAIN_SECONDS = 5.0
LONGEST_INTERVAL_SECONDS = 1.0
LATE = 1.5
"""A sweep that begins after so many intervals is late: the event loop was blocked."""
EVICTED_TOGETHER = 64
"""One connection in so many is evicted at a time: the search for those that waited longest looks at all of them."""

log = structlog.get_logger(__name__)

TURNED_AWAY = problem_bytes(Unavailable("too many connections are open; retry later"), close=True)


class Waits(StrEnum):
    """What the engine waits for; the names are those of the metric."""

    HEADER = "header_timeout"
    BODY = "body_timeout"
    NEXT = "keepalive_timeout"
    READER = "write_timeout"
    LEFT = "client_left"


class ClientWait(NamedTuple):
    """What a client keeps the engine waiting for, and since when (by the loop's clock)."""

    what: Waits
    since: float


class TimedConnection(Protocol):
    """What the sweep needs of a connection."""

    def waiting(self, now: float) -> ClientWait | None:
        """What its client keeps the engine waiting for; None while a request is being handled."""
        ...

    def time_out(self, what: Waits) -> None:
        """Close it: with a 408, where a request has begun."""
        ...

    def abort(self) -> None:
        """Close it at once, without flushing what is buffered."""
        ...


@runtime_checkable
class HalfClosing(Protocol):
    """A connection that stays open for its answers when its client has shut down its own side."""

    @property
    def half_closed(self) -> bool: ...

    def when_half_closed(self, call: Callable[[], None]) -> None:
        """Call this when the client says that it sends nothing more."""
        ...


CONNECTION: web.RequestKey[HalfClosing] = web.RequestKey("connection", HalfClosing)
"""The connection of a request, where ``request.protocol`` is not ours."""


def connection_of(request: web.Request) -> HalfClosing | None:
    found = request.get(CONNECTION, request.protocol)
    return found if isinstance(found, HalfClosing) else None


class ConnectionMetrics(Protocol):
    """What the metrics are told of connections."""

    def connection_ended(self, reason: str) -> None: ...
    def set_connections(self, count: int) -> None: ...


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections, and how long each may keep the engine waiting, in seconds."""

    most: int = 10_000
    header: float = 10.0
    body: float = 30.0
    keepalive: float = 75.0
    write: float = 60.0

    @property
    def interval(self) -> float:
        """How often the sweep runs: a timeout is exact to a quarter of it, or to a second."""
        return min(LONGEST_INTERVAL_SECONDS, min(self.header, self.body, self.keepalive, self.write) / 4)


class Connections:
    """All connections of a server, swept from ``start`` to ``stop``."""

    def __init__(self, limits: ConnectionLimits, metrics: ConnectionMetrics | None = None) -> None:
        self.limits = limits
        self._metrics = metrics
        self._seconds = {
            Waits.HEADER: limits.header,
            Waits.BODY: limits.body,
            Waits.NEXT: limits.keepalive,
            Waits.READER: limits.write,
        }
        self._open: set[TimedConnection] = set()
        self._leaving: dict[TimedConnection, float] = {}
        self._shortage = Shortage("connections")
        self._told = -TOLD_AGAIN_SECONDS
        self._evicted = self._refused = 0
        self._is_late = False
        """The last sweep was left out. No two in a row are, however busy the loop is."""
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._next = loop.call_later(self.limits.interval, self._run, loop, loop.time())

    def stop(self) -> None:
        if self._next is not None:
            self._next.cancel()
        for connection in list(self._leaving):
            connection.abort()

    def admit(self, connection: TimedConnection, now: float) -> bool:
        """Count a new connection, evicting others if there are too many. False: refuse it, with ``leave``."""
        if len(self._open) >= self.limits.most:
            self._make_room(now)
            self._tell()
        if len(self._open) >= self.limits.most:
            self._refused += 1
            self._count("refused")
            return False
        self._open.add(connection)
        return True

    def leave(self, connection: TimedConnection, now: float) -> bool:
        """It is closing: the sweep aborts it if that takes too long. False: too many are closing, so abort it now."""
        self._open.discard(connection)
        if len(self._leaving) >= LEAVING_AT_ONCE:
            return False
        self._leaving[connection] = now
        return True

    def forget(self, connection: TimedConnection) -> None:
        """The connection is closed: count it no longer."""
        self._open.discard(connection)
        self._leaving.pop(connection, None)

    def cannot_accept(self, error: OSError) -> None:
        """A connection cannot be accepted: evict others to free their descriptors."""
        self._shortage.note(lack_of(error) or error.strerror or type(error).__name__)
        self._make_room(asyncio.get_running_loop().time())
        self._tell()

    def sweep(self, now: float) -> None:
        """Time out connections that have kept the engine waiting too long."""
        for connection in list(self._open):
            waiting = connection.waiting(now)
            if waiting is not None and now - waiting.since >= self._seconds.get(waiting.what, math.inf):
                self._count(waiting.what)
                connection.time_out(waiting.what)
        for connection, since in list(self._leaving.items()):
            if now - since >= LEAVING_SECONDS:
                connection.abort()
        if self._metrics is not None:
            self._metrics.set_connections(len(self._open))

    def _run(self, loop: asyncio.AbstractEventLoop, last: float) -> None:
        now = loop.time()
        self._next = loop.call_later(self.limits.interval, self._run, loop, now)
        # If the loop was blocked, what clients have sent meanwhile may not have been read: the next sweep judges them.
        self._is_late = not self._is_late and now - last > LATE * self.limits.interval
        if not self._is_late:
            self.sweep(now)
        try:
            take_one()
        except OSError:  # also while no client connects
            self._shortage.note(DESCRIPTORS)
            self._make_room(now)
            self._tell()
        else:
            self._shortage.end()
            if self._evicted or self._refused:
                self._tell()

    def _make_room(self, now: float) -> None:
        waiting = [(found.since, found.what, each) for each in self._open if (found := each.waiting(now)) is not None]
        for _, what, connection in heapq.nsmallest(1 + len(self._open) // EVICTED_TOGETHER, waiting, itemgetter(0)):
            self._evicted += 1
            self._count("evicted")
            if self.leave(connection, now):
                connection.time_out(what)
            else:
                connection.abort()

    def _count(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.connection_ended(reason)

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told >= TOLD_AGAIN_SECONDS:
            log.warning(
                "connections_limited",
                open=len(self._open),
                limit=self.limits.most,
                evicted=self._evicted,
                refused=self._refused,
            )
            self._told = now
            self._evicted = self._refused = 0
