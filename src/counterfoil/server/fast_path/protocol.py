"""The HTTP protocol: where a connection meets the application, and where every exception becomes an answer.

aiohttp's own pages and log lines may repeat the request line, and with it a receipt. So its protocol class is
replaced: a malformed request gets the same JSON envelope as any other error, and nothing that was sent is logged.
Exceptions become answers around the whole application rather than in a middleware, which would cost every request more.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import (
    BadStatusLine,
    HttpProcessingError,
    InvalidHeader,
    LineTooLong,
    PayloadEncodingError,
)
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from counterfoil.domain.errors import BadRequest, CounterfoilError, InternalError, RequestTimeout
from counterfoil.observability.logging import ACCESS_LOGGER, AccessLogger
from counterfoil.server.answering import LINGERING_SECONDS, answering
from counterfoil.server.completions import CompletionIntake
from counterfoil.server.connections import TURNED_AWAY, ClientWait, ConnectionLimits, Connections, Waits
from counterfoil.server.fast_path.express import ExpressParser
from counterfoil.server.fast_path.framing import NOT_HTTP, RequestParser, error_message
from counterfoil.server.problems import problem_response

log = structlog.get_logger(__name__)

_NEVER_SECONDS = 1e8
"""aiohttp's own timeout of idle connections ignores the express lane: server/connections.py has ours."""

_FAULTS: tuple[tuple[type[Exception], str], ...] = (
    (LineTooLong, "the request line or a header is longer than this server accepts"),
    (InvalidHeader, "a header is malformed"),
    (PayloadEncodingError, "the body is not framed as its headers say"),
    (BadStatusLine, NOT_HTTP),
)


class HttpConnection(RequestHandler):
    """One connection.

    Answers what cannot be parsed, keeps aiohttp's log free of what was sent, and lets completions go by the express
    lane; while one is under way, the connection counts as handling a request. A client that has sent all it wants to
    send, and said so (a half-close), still gets its answers.
    """

    __slots__ = (
        "_connections",
        "_express",
        "_express_paused",
        "_framing",
        "_half_closed",
        "_handling",
        "_head_since",
        "_on_half_close",
        "_since",
        "_stalled_bytes",
        "_stalled_since",
        "_used",
        "_wire",
    )

    def __init__(
        self, manager: web.Server, *, intake: CompletionIntake | None, connections: Connections, **kwargs: Any
    ) -> None:
        super().__init__(manager, **kwargs)
        self._connections = connections
        self._express: ExpressParser | None = None
        self._express_paused = False
        self._handling = False
        self._wire: asyncio.Transport | None = None
        self._since = self._head_since = self._stalled_since = 0.0
        self._stalled_bytes = 0
        self._used = False
        self._half_closed = False
        self._on_half_close: Callable[[], None] = _ignore
        self._request_factory = self._noting(self._request_factory)
        parser = HttpRequestParser(
            self,
            self._loop,
            self._read_bufsize,
            max_line_size=self.max_line_size,
            max_field_size=self.max_field_size,
            max_headers=self.max_headers,
            payload_exception=RequestPayloadError,
            auto_decompress=False,  # server/bodies/content_codings.py does it
            max_msg_queue_size=1,
        )
        self._framing = RequestParser(parser, self._messages.__len__)
        if intake is not None:
            self._express = ExpressParser(self._framing, self, intake)
        self._parser = cast(HttpRequestParser, self._express or self._framing)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._wire = wire = cast(asyncio.Transport, transport)
        now = self._since = self._loop.time()
        if self._connections.admit(self, now):
            super().connection_made(transport)
            return
        self._force_close = True
        wire.write(TURNED_AWAY)
        if not self._connections.leave(self, now):
            wire.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.forget(self)
        self._wire = None
        self._framing.payload = None
        super().connection_lost(exc)

    def _noting(self, make: Any) -> Any:
        """A request factory that notes that a request is being handled, from its beginning."""

        def make_request(*parts: Any) -> web.BaseRequest:
            self._handling = self._used = True
            self._since = self._loop.time()
            return cast(web.BaseRequest, make(*parts))

        return make_request

    async def _handle_request(self, *parts: Any) -> Any:
        try:
            return await super()._handle_request(*parts)
        finally:
            self._handling = False
            self._since = self._loop.time()
            if self._half_closed and not self._messages:
                self._close = True

    def is_idle(self) -> bool:
        """Whether a request that arrives now may be answered next: also while aiohttp's task is still ending.

        Otherwise a fast client would never find the connection idle, and aiohttp would handle all its requests. If a
        client does not read its answers, aiohttp handles its requests and waits for it.
        """
        return not (self._handling or self._messages or self._close or self._force_close or self._paused)

    def peer(self) -> str | None:
        """The address of the client, as ``request.remote`` has it."""
        name = None if self._wire is None else self._wire.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple | list) else None

    def data_received(self, data: bytes) -> None:
        if self._express is not None:
            rest = self._express.offer(data)
            if rest is None:
                return
            data = rest
        super().data_received(data)
        if self._handling or self._messages:
            self._head_since = 0.0
        elif data and not self._head_since and self._framing.payload is None and not self._is_under_way():
            self._head_since = self._loop.time()

    def eof_received(self) -> bool:  # type: ignore[override] # aiohttp's never keeps a connection open
        """The client sends nothing more. What it has sent is answered before the connection is closed."""
        self._half_closed = True
        self._break_off(RequestPayloadError())
        self._on_half_close()
        return self._is_under_way()

    @property
    def half_closed(self) -> bool:
        return self._half_closed

    def when_half_closed(self, call: Callable[[], None]) -> None:
        """Call this when the client says that it sends nothing more."""
        self._on_half_close = call

    def _break_off(self, error: Exception) -> None:
        """The body that is being received will never be whole: the handler gets this error when it reads it."""
        if self._express is not None and self._express.awaits_body:
            super().data_received(self._express.let_go())
        self._framing.break_off(error)

    def _is_under_way(self) -> bool:
        return self._handling or bool(self._messages) or (self._express is not None and self._express.under_way)

    # The express lane --------------------------------------------------------------------------------------------

    def begin_body(self) -> None:
        self._since = self._loop.time()
        self._head_since = 0.0

    def begin_express(self) -> None:
        self._request_in_progress = True
        self._head_since = 0.0

    def pause_express(self) -> None:
        if not self._express_paused:
            self._express_paused = True
            self._pause_transport_reading()

    def end_express(self, answer: bytes) -> None:
        self._request_in_progress = False
        if self._handler_waiter is not None:
            self._handler_waiter.set_result(None)
        self._keepalive = self._used = True
        self._since = self._loop.time()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write(answer)
        if self._express is not None and (held := self._express.held()):
            self._go_on_behind(held)
        if self._half_closed and not self._is_under_way():
            transport.close()

    def _go_on_behind(self, held: bytes) -> None:
        paused, self._express_paused = self._express_paused, False
        self.data_received(held)
        if paused and not (self._express_paused or self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    # What the sweep over all connections asks and does -----------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = self._loop.time()
        self._stalled_bytes = 0 if self._wire is None else self._wire.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = 0.0

    def waiting(self, now: float) -> ClientWait | None:
        """What the client keeps the engine waiting for, and since when; None while a request is being handled."""
        wire = self._wire
        if wire is None:
            return None
        if self._paused or wire.is_closing():
            return self._stalled(wire, now)
        payload = self._framing.payload
        if (self._express is not None and self._express.awaits_body) or (
            payload is not None and payload._waiter is not None  # noqa: SLF001 (whether the handler waits for it)
        ):
            return ClientWait(Waits.BODY, self._since)
        if self._is_under_way():
            return ClientWait(Waits.LEFT, self._since) if self._half_closed else None
        if self._head_since:
            return ClientWait(Waits.HEADER, self._head_since)
        return ClientWait(Waits.NEXT if self._used else Waits.HEADER, self._since)

    def _stalled(self, wire: asyncio.Transport, now: float) -> ClientWait:
        """How long the client has read nothing: a client that reads slowly is not stalled."""
        left = wire.get_write_buffer_size()
        if not self._stalled_since or left < self._stalled_bytes:
            self._stalled_since = now
        self._stalled_bytes = left
        return ClientWait(Waits.READER, self._stalled_since)

    def time_out(self, what: Waits) -> None:
        if what is Waits.BODY:
            self._break_off(RequestTimeout("the body did not arrive in time"))
        elif what is Waits.HEADER and self._head_since and self._waiter is not None and not self._waiter.done():
            self._head_since = 0.0
            self._messages.append(error_message(408, RequestTimeout("the headers did not arrive in time")))
            self._waiter.set_result(None)
        elif what is Waits.READER or what is Waits.LEFT:
            self.abort()
        else:
            self.force_close()

    def abort(self) -> None:
        if self._wire is not None:
            self._wire.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that never reached the application, or whose client has gone."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer had begun already, another one cannot follow")
        if isinstance(exc, CounterfoilError):
            response = problem_response(exc)
        elif status >= 500:
            log.debug("client_lost", cause=type(exc).__name__)
            response = problem_response(InternalError())
        else:
            log.info("malformed_request", fault=type(exc).__name__, peer=request.remote)
            response = problem_response(BadRequest(_fault_of(exc)))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """An error of the protocol itself: where it happened, without the text, which may hold what was sent."""
        error = kwargs.get("exc_info")
        if isinstance(error, RequestPayloadError | RequestTimeout | HttpProcessingError | ConnectionError):
            log.debug("client_disconnected", cause=type(error).__name__)
            return
        frames = traceback.format_tb(error.__traceback__) if isinstance(error, BaseException) else []
        log.error("http_connection_failed", cause=type(error).__name__, exception="".join(frames))

    def log_debug(self, *args: Any, **kwargs: Any) -> None:
        """Drop the debug lines of aiohttp itself."""


class FastServer(web.Server):
    """Makes an ``HttpConnection`` for each connection."""

    def __init__(self, plain: web.Server, intake: CompletionIntake | None, connections: Connections) -> None:
        """``plain``: aiohttp's own server, whose parts are put together with our protocol."""
        super().__init__(
            answering(plain.request_handler),
            request_factory=plain.request_factory,
            loop=plain._loop,  # noqa: SLF001
            **plain._kwargs,  # noqa: SLF001
        )
        self._intake = intake
        self._open_connections = connections

    def __call__(self) -> RequestHandler:
        return HttpConnection(
            self, intake=self._intake, connections=self._open_connections, loop=self._loop, **self._kwargs
        )


class FastRunner(web.AppRunner):
    """Serves an application through ``HttpConnection``.

    Without ``access_log`` nothing is logged per request (and nothing is spent on it).
    """

    __slots__ = ("_intake", "_open_connections")

    def __init__(
        self,
        app: web.Application,
        *,
        intake: CompletionIntake | None = None,
        connections: Connections | None = None,
        access_log: bool = False,
        shutdown_timeout: float = 10.0,
    ) -> None:
        # The lane writes no access log, so with one every request goes the ordinary way.
        self._intake = None if access_log else intake
        self._open_connections = connections or Connections(ConnectionLimits())
        super().__init__(
            app,
            access_log_class=AccessLogger,
            access_log=logging.getLogger(ACCESS_LOGGER) if access_log else None,
            shutdown_timeout=shutdown_timeout,
            lingering_time=LINGERING_SECONDS,
            keepalive_timeout=_NEVER_SECONDS,
        )

    async def _make_server(self) -> web.Server:
        server = FastServer(await super()._make_server(), self._intake, self._open_connections)
        self._open_connections.start()
        return server

    def connection(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        assert self.server is not None, "set up"
        return self.server()

    async def cleanup(self) -> None:
        """Stop serving. Slow clients are not waited for longer than at other times."""
        await super().cleanup()
        self._open_connections.stop()


def _ignore() -> None:
    pass


def _fault_of(error: BaseException | None) -> str:
    return next((text for kind, text in _FAULTS if isinstance(error, kind)), "")
