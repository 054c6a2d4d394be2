"""The HTTP protocol: where a connection meets the application, and where every exception becomes an answer.

aiohttp's own pages and log lines may repeat the request line, and with it a receipt. So its protocol class is
replaced: a malformed request gets the same JSON envelope as any other error, and nothing that was sent is logged.
The one ``try`` around the application stands here rather than in a middleware, which would cost every request more.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, cast

import structlog
from aiohttp import web
from aiohttp.http import HttpRequestParser, HttpVersion10
from aiohttp.http_exceptions import (
    BadStatusLine,
    HttpProcessingError,
    InvalidHeader,
    LineTooLong,
    PayloadEncodingError,
)
from aiohttp.web_protocol import RequestHandler, RequestPayloadError

from counterfoil.domain.errors import BadRequest, InternalError
from counterfoil.observability.logging import ACCESS_LOGGER, AccessLogger
from counterfoil.server.express import ExpressParser, Take
from counterfoil.server.problems import answer_for, problem_response

log = structlog.get_logger(__name__)

LINGERING_SECONDS = 2.0
"""How long the rest of a refused body is thrown away, so that the client gets to read the refusal."""

_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_NOT_HTTP = "the request line is not HTTP/1.1"
_FAULTS: tuple[tuple[type[Exception], str], ...] = (
    (LineTooLong, "the request line or a header is longer than this server takes"),
    (InvalidHeader, "a header is malformed"),
    (PayloadEncodingError, "the body is not framed as its headers say"),
    (BadStatusLine, _NOT_HTTP),
)


class Protocol(RequestHandler):
    """One connection.

    Answers what cannot be parsed, keeps aiohttp's log free of what was sent, and lets completions go by the express
    lane; while one is under way, the connection counts as handling a request.
    """

    __slots__ = ("_express", "_handling")

    def __init__(self, manager: web.Server, *, take: Take | None, **kwargs: Any) -> None:
        super().__init__(manager, **kwargs)
        self._express: ExpressParser | None = None
        self._handling = False
        self._request_factory = self._noting(self._request_factory)
        if take is not None:
            self._express = ExpressParser(self._parser, self, take)
            self._parser = cast(HttpRequestParser, self._express)

    def _noting(self, make: Any) -> Any:
        """A maker of requests that notes that one is being handled, from the very beginning."""

        def make_request(*parts: Any) -> web.BaseRequest:
            self._handling = True
            return cast(web.BaseRequest, make(*parts))

        return make_request

    async def _handle_request(self, *parts: Any) -> Any:
        try:
            return await super()._handle_request(*parts)
        finally:
            self._handling = False

    def is_idle(self) -> bool:
        """Whether what is received now may be answered next: at once, also while aiohttp's task still winds up.

        A client that is quick would otherwise never find it idle, and go the long way for ever.
        """
        return not (self._handling or self._messages or self._close or self._force_close)

    def data_received(self, data: bytes) -> None:
        express = self._express
        if express is None or not express.takes_whole(data):
            super().data_received(data)

    def begin_express(self) -> None:
        self._request_in_progress = True

    def end_express(self, answer: bytes) -> None:
        self._request_in_progress = False
        if self._handler_waiter is not None:
            self._handler_waiter.set_result(None)
        self._keepalive = True
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        transport.write(answer)
        if self._express is not None and (held := self._express.held()):
            self.data_received(held)

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
        if status >= 500:
            log.debug("connection lost", cause=type(exc).__name__)
            response = problem_response(InternalError())
        else:
            log.info("malformed request", fault=type(exc).__name__, peer=request.remote)
            response = problem_response(BadRequest(_fault_of(exc)))
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """An error of the protocol itself: where it happened, without the text, which may hold what was sent."""
        error = kwargs.get("exc_info")
        if isinstance(error, RequestPayloadError | HttpProcessingError | ConnectionError):
            log.debug("connection broken by the client", cause=type(error).__name__)
            return
        frames = traceback.format_tb(error.__traceback__) if isinstance(error, BaseException) else []
        log.error("connection failed", cause=type(error).__name__, exception="".join(frames))

    def log_debug(self, *args: Any, **kwargs: Any) -> None:
        """Said by aiohttp about its own workings: not worth a line."""


class Server(web.Server):
    """Makes a ``Protocol`` for each connection."""

    take: Take | None = None

    def __call__(self) -> RequestHandler:
        return Protocol(self, take=self.take, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Serves an application through ``Protocol``: the only way in which its errors become answers.

    Without ``access_log`` nothing is logged per request (and nothing is spent on it).
    """

    __slots__ = ("_take",)

    def __init__(
        self,
        app: web.Application,
        *,
        take: Take | None = None,
        access_log: bool = False,
        shutdown_timeout: float = 10.0,
    ) -> None:
        # The lane writes no access log, so with one every request goes the ordinary way.
        self._take = None if access_log else take
        super().__init__(
            app,
            access_log_class=AccessLogger,
            access_log=logging.getLogger(ACCESS_LOGGER) if access_log else None,
            shutdown_timeout=shutdown_timeout,
            lingering_time=LINGERING_SECONDS,
        )

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        server = Server(
            answering(plain.request_handler),
            request_factory=plain.request_factory,
            loop=plain._loop,  # noqa: SLF001 - the pieces of aiohttp's server, put together with our protocol
            **plain._kwargs,  # noqa: SLF001
        )
        server.take = self._take
        return server


def answering(handle: _Handle) -> _Handle:
    """The application with every exception turned into an answer."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.version < HttpVersion10:  # a request line without a version is taken for HTTP/0.9
            return problem_response(BadRequest(_NOT_HTTP))
        try:
            return await handle(request)
        except Exception as error:
            if isinstance(error, ConnectionError) and _has_gone(request):
                raise
            if request.writer.output_size > 0:  # a stream broke off half way: no status can be sent any more
                answer_for(error, request)
                raise ConnectionError("the answer had begun already") from None
            return answer_for(error, request)

    return answer


def _has_gone(request: web.BaseRequest) -> bool:
    transport = request.transport
    return transport is None or transport.is_closing()


def _fault_of(error: BaseException | None) -> str:
    return next((text for kind, text in _FAULTS if isinstance(error, kind)), "")
