"""The server on aiohttp's public API alone: what runs with ``fast_path = false``.

aiohttp's protocol is wrapped, not replaced. ``PlainConnection`` stands between the socket and it, passes everything
on, and knows from a middleware when a request is being handled. That is enough to count connections, to time them, and
to answer a client that shuts down its side. An answer that aiohttp writes by itself, because a request cannot be
parsed, may repeat the request: ``_Wire`` writes the engine's own refusal in its place. What is lost, because only
aiohttp's protocol knows: which fault it was, and the requests that were received together with a malformed one.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterable
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from counterfoil.domain.errors import BadRequest, InternalError, RequestTimeout
from counterfoil.observability.logging import ACCESS_LOGGER, AccessLogger
from counterfoil.server.answering import LINGERING_SECONDS, Handle, answering
from counterfoil.server.connections import (
    CONNECTION,
    TURNED_AWAY,
    ClientWait,
    ConnectionLimits,
    Connections,
    Waits,
)
from counterfoil.server.problems import problem_bytes, problem_response

NEVER_SECONDS = 1e8
"""aiohttp's own timeout of idle connections: ``Connections`` has ours, which is counted in the metrics."""
HALF_CLOSE_SECONDS = 0.05
"""How long a connection whose client sends nothing more may be idle, before it is closed: the next of several requests
that were received together begins at once."""
ANSWER_BEGINS, INTERIM_ANSWER = b"HTTP/1.", b"HTTP/1.1 100"
OWN_ANSWER = b"\r\nServer: counterfoil\r\n"
"""A header of every answer of the engine: of those, too, that come before a handler is called (see ``_expect``)."""
HEAD_TIMED_OUT = problem_bytes(RequestTimeout("the headers did not arrive in time"), close=True)

log = structlog.get_logger(__name__)


class _Wire(asyncio.Transport):
    """The transport that aiohttp's protocol is given: passes everything on but answers that no handler gave."""

    def __init__(self, transport: asyncio.Transport, connection: PlainConnection) -> None:
        super().__init__()
        self.connection = connection
        self._transport = transport
        self._is_silenced = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        data = b"".join(list_of_data)
        if self._is_silenced:
            return
        if data.startswith(ANSWER_BEGINS) and not (
            data.startswith(INTERIM_ANSWER) or self.connection.answers() or OWN_ANSWER in data
        ):
            self._is_silenced = True
            refusal = InternalError() if data[9:12] == b"500" else BadRequest()
            self._transport.write(problem_bytes(refusal, close=True))
            self._transport.close()
            return
        self._transport.write(data)

    def write_eof(self) -> None:
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)


class PlainConnection(asyncio.Protocol):
    """One connection: aiohttp's protocol, with a note of what its client keeps the engine waiting for."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner = inner
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._wire: asyncio.Transport | None = None
        self._admitted = False
        self._request: web.BaseRequest | None = None
        """The request that is being handled."""
        self._unanswered = 0
        """Requests whose handler was called, and whose answer has not begun."""
        self._used = False
        self._paused = False
        self._since = self._head_since = self._stalled_since = 0.0
        self._stalled_bytes = 0
        self._half_closed = False
        self._on_half_close: Callable[[], None] = _ignore

    # What the socket tells ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast(asyncio.Transport, transport)
        now = self._since = self._loop.time()
        if self._connections.admit(self, now):
            self._admitted = True
            self._inner.connection_made(_Wire(wire, self))
            return
        wire.write(TURNED_AWAY)
        if not self._connections.leave(self, now):
            wire.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        if self._admitted:
            self._inner.connection_lost(exc)
        self._wire = None

    def data_received(self, data: bytes) -> None:
        if self._admitted:
            if self._request is None and not self._head_since:
                self._head_since = self._loop.time()
            self._inner.data_received(data)

    def eof_received(self) -> bool:
        """The client sends nothing more. What it has sent is answered before the connection is closed."""
        self._half_closed = True
        if self._request is not None:
            self._break_off(self._request)
        self._on_half_close()
        self._since = self._loop.time()
        self._close_when_idle()
        return True  # requests may wait inside aiohttp's protocol: only a short silence tells that there are none

    def pause_writing(self) -> None:
        self._paused = True
        self._stalled_since = self._loop.time()
        self._stalled_bytes = 0 if self._wire is None else self._wire.get_write_buffer_size()
        if self._admitted:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._stalled_since = 0.0
        if self._admitted:
            self._inner.resume_writing()

    # What the middleware tells -----------------------------------------------------------------------------------

    def begin(self, request: web.BaseRequest) -> None:
        self._request = request
        self._unanswered += 1
        self._used = True
        self._head_since = 0.0
        self._since = self._loop.time()
        if self._half_closed:
            self._break_off(request)

    def end(self) -> None:
        self._request = None
        self._since = self._loop.time()
        if self._half_closed:
            self._close_when_idle()

    def answers(self) -> bool:
        """An answer begins: whether it is that of a handler."""
        if not self._unanswered:
            return False
        self._unanswered -= 1
        return True

    @staticmethod
    def _break_off(request: web.BaseRequest) -> None:
        """The client sends nothing more: a body that is not whole never will be."""
        if not request.content.is_eof():
            request.content.set_exception(web.RequestPayloadError())

    def _close_when_idle(self) -> None:
        self._loop.call_later(HALF_CLOSE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._wire is None or self._request is not None:  # ``end`` looks again
            return
        if self._paused or self._loop.time() - self._since < HALF_CLOSE_SECONDS:
            self._close_when_idle()
        else:
            self._wire.close()

    # What streams ask --------------------------------------------------------------------------------------------

    @property
    def half_closed(self) -> bool:
        return self._half_closed

    def when_half_closed(self, call: Callable[[], None]) -> None:
        self._on_half_close = call

    # What the sweep over all connections asks and does -----------------------------------------------------------

    def waiting(self, now: float) -> ClientWait | None:
        wire = self._wire
        if wire is None:
            return None
        if self._paused or wire.is_closing():
            left = wire.get_write_buffer_size()
            if not self._stalled_since or left < self._stalled_bytes:
                self._stalled_since = now
            self._stalled_bytes = left
            return ClientWait(Waits.READER, self._stalled_since)
        if self._request is not None:
            if not self._request.content.is_eof():
                return ClientWait(Waits.BODY, self._since)
            return ClientWait(Waits.LEFT, self._since) if self._half_closed else None
        if self._head_since:
            return ClientWait(Waits.HEADER, self._head_since)
        return ClientWait(Waits.NEXT if self._used else Waits.HEADER, self._since)

    def time_out(self, what: Waits) -> None:
        wire = self._wire
        if wire is None:
            return
        if what is Waits.BODY and self._request is not None:
            self._request.content.set_exception(RequestTimeout("the body did not arrive in time"))
        elif what is Waits.READER or what is Waits.LEFT:
            wire.abort()
        else:
            if what is Waits.HEADER and self._head_since:
                wire.write(HEAD_TIMED_OUT)
            wire.close()

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()


class PlainRunner:
    """Serves an application through aiohttp's own runner, with one middleware that makes answers of exceptions."""

    def __init__(
        self,
        app: web.Application,
        *,
        connections: Connections | None = None,
        access_log: bool = False,
        shutdown_timeout: float = 10.0,
    ) -> None:
        self._connections = connections or Connections(ConnectionLimits())
        app.middlewares.append(_serve)
        self._runner = web.AppRunner(
            app,
            access_log_class=AccessLogger,
            access_log=logging.getLogger(ACCESS_LOGGER) if access_log else None,
            logger=_TextlessLogger(__name__),
            shutdown_timeout=shutdown_timeout,
            lingering_time=LINGERING_SECONDS,
            keepalive_timeout=NEVER_SECONDS,
            auto_decompress=False,  # server/bodies/content_codings.py does it
        )

    async def setup(self) -> None:
        await self._runner.setup()
        self._connections.start()

    async def cleanup(self) -> None:
        """Stop serving. Slow clients are not waited for longer than at other times."""
        await self._runner.cleanup()
        self._connections.stop()

    def connection(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        server = self._runner.server
        assert server is not None, "set up"
        return PlainConnection(server(), self._connections)


@web.middleware
async def _serve(request: web.Request, handler: Handle[web.Request]) -> web.StreamResponse:
    """Call a handler, make an answer of what it raises, and tell the connection when it begins and ends."""
    wire = request.transport
    if not isinstance(wire, _Wire):  # the client has gone
        return await answering(handler)(request)
    connection = wire.connection
    request[CONNECTION] = connection
    connection.begin(request)
    try:
        if (refusal := _refusal_of(request)) is not None:
            return problem_response(refusal)
        return await answering(handler)(request)
    finally:
        connection.end()


class _TextlessLogger(logging.Logger):
    """Given to aiohttp, whose log lines may repeat the request line, and with it a receipt: only the cause is kept."""

    def handle(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            log.info("malformed_request", fault=type(error).__name__)
        elif record.levelno < logging.ERROR or isinstance(error, web.RequestPayloadError | ConnectionError):
            log.debug("client_disconnected", cause=type(error).__name__)
        else:
            frames = traceback.format_tb(error.__traceback__) if error is not None else []
            log.error("http_connection_failed", cause=type(error).__name__, exception="".join(frames))


def _refusal_of(request: web.BaseRequest) -> BadRequest | None:
    """What aiohttp's parser takes, but this server does not."""
    if request.version not in ((1, 1), (1, 0)):
        return BadRequest("the request line is not HTTP/1.1")
    coding = request.headers.get("Transfer-Encoding")
    if coding is not None and (request.version == (1, 0) or coding.lower() != "chunked"):
        return BadRequest("the only transfer coding that this server knows is chunked, in HTTP/1.1")
    return None


def _ignore() -> None:
    pass
