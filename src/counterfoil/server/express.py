"""The express lane of the webhook: completions are most of the traffic, and their route and answer are known beforehand.

An ordinary ``POST /webhook/{flow}/{step}/{token}`` skips the router (one split tells its parts) and is answered with
bytes that are ready but for the body. Anything unusual about the request (an escaped path, a query, an expectation,
another version or connection handling) is left to the ordinary way, and so is every error: both ways run the same
handler, so they cannot differ in what they do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http import HttpVersion11

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Complete = Callable[[web.Request, str, str, str], Awaitable[bytes]]
"""Takes the request and what its path names; gives the body of the 200."""

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
    b"X-Content-Type-Options: nosniff\r\nServer: counterfoil\r\nContent-Length: %d\r\n\r\n"
)
_PREFIX = "/webhook/"


class ReadyAnswer:
    """An answer that is written in one piece. It is what aiohttp asks of a response, and nothing more."""

    __slots__ = ("_request", "body", "body_length")

    status = 200
    keep_alive = True

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.body_length = len(body)

    async def prepare(self, request: web.BaseRequest) -> None:
        self._request = request

    async def write_eof(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        transport.write(_HEAD % self.body_length + self.body)


def express(handle: Handle, complete: Complete) -> Handle:
    """The application, with a lane of their own for ordinary completions."""

    async def choose(request: web.BaseRequest) -> web.StreamResponse:
        message: Any = request._message  # noqa: SLF001 - the parsed request line, before anything is made of it
        path: str = message.path
        if (
            path.startswith(_PREFIX)
            and message.method == "POST"
            and message.version == HttpVersion11
            and not message.should_close
            and "%" not in path
            and "?" not in path
            and "Expect" not in message.headers
        ):
            parts = path.split("/", 5)
            if len(parts) == 5 and all(parts[2:]):
                body = await complete(cast(web.Request, request), parts[2], parts[3], parts[4])
                return cast(web.StreamResponse, ReadyAnswer(body))
        return await handle(request)

    return choose
