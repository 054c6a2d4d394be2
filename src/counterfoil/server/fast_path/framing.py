"""Where one request ends and the next begins: aiohttp's parser, made to stop behind each request.

Left to itself the parser reads all that was received, and when some of it is malformed, forgets the requests before.
Stopped behind each one, it hands them out first: they are answered, then what is malformed gets its 400. From there on
nothing of the connection can be understood, so nothing more is read of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp.http import HttpRequestParser, HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestPayloadError, _ErrInfo

from counterfoil.domain.errors import BadRequest, CounterfoilError

NOT_HTTP = "the request line is not HTTP/1.1"
ONLY_CHUNKED = "the only supported transfer coding is chunked, in HTTP/1.1"

Found = tuple[list[tuple[Any, Any]], bool, bytes]


class RequestParser:
    """Gives the received requests one by one; bytes that cannot be parsed come as the last of them."""

    __slots__ = ("_broken", "_inner", "_queued", "payload")

    def __init__(self, inner: HttpRequestParser, queued: Callable[[], int]) -> None:
        """``inner`` must stop behind each request (``max_msg_queue_size=1``); ``queued``: requests not begun yet."""
        self._inner: Any = inner
        self._queued = queued
        self._broken = False
        self.payload: StreamReader | None = None
        """The body that is being received."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def feed_data(self, data: bytes) -> Found:
        found: list[tuple[Any, Any]] = []
        while not self._broken:
            try:
                messages, upgraded, tail = self._inner.feed_data(data)
            except HttpProcessingError as error:
                self._give_up(error, found)
                break
            for message, payload in messages:
                refusal = _refusal_of(message)
                if refusal is not None:
                    self._broken = True
                    found.append(error_message(400, refusal))
                    break
                found.append((message, payload))
                self.payload = payload
            if upgraded:
                return found, True, tail
            if self.payload is None or not self.payload.is_eof():
                break
            self.payload = None
            self._inner.message_consumed()
            if len(found) + self._queued() >= MAX_MSG_QUEUE_SIZE:
                break  # the rest stays in the parser until there is room
            data = b""
        return found, False, b""

    def message_consumed(self) -> None:
        """Called when a request is begun; the parser has gone on already, when the request had been read."""

    def break_off(self, error: Exception) -> None:
        """The body that is being received will never be whole: its reader gets this error."""
        if self.payload is not None:
            self.payload.set_exception(error)
            self.payload = None
            self._broken = True

    def _give_up(self, error: HttpProcessingError, found: list[tuple[Any, Any]]) -> None:
        self._broken = True
        if self.payload is None or self.payload.is_eof():
            found.append(error_message(400, error))
        else:
            self.break_off(RequestPayloadError())


def error_message(status: int, error: Exception) -> tuple[Any, Any]:
    """The place holder of a malformed request among the others: aiohttp answers it with ``handle_error``."""
    return _ErrInfo(status=status, exc=error, message=""), EMPTY_PAYLOAD


def _refusal_of(message: RawRequestMessage) -> CounterfoilError | None:
    """The refusal of a request that the parser takes, but this server does not."""
    if message.version != HttpVersion11 and message.version != HttpVersion10:  # noqa: PLR1714 (no tuple each time)
        return BadRequest(NOT_HTTP)
    if message.chunked and (
        message.version == HttpVersion10 or message.headers.get("Transfer-Encoding", "").lower() != "chunked"
    ):
        return BadRequest(ONLY_CHUNKED)
    return None
