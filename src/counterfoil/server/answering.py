"""Where every exception of a handler becomes an answer, however the application is served.

This is the only ``try`` around the application. An answer that has begun cannot be replaced: the connection is cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from counterfoil.server.problems import answer_for

LINGERING_SECONDS = 2.0
"""How long the rest of a refused body is read and dropped, so that the client can read the refusal."""

AnyRequest = TypeVar("AnyRequest", bound=web.BaseRequest)
Handle = Callable[[AnyRequest], Awaitable[web.StreamResponse]]


def answering(handle: Handle[AnyRequest]) -> Handle[AnyRequest]:
    """The same handler with every exception turned into an answer."""

    async def answer(request: AnyRequest) -> web.StreamResponse:
        try:
            return await handle(request)
        except Exception as error:
            if isinstance(error, ConnectionError) and _has_gone(request):
                raise
            if request.writer.output_size > 0:  # a stream broke off: no status can be sent any more
                answer_for(error, request)
                raise ConnectionError("the answer had begun already") from None
            return answer_for(error, request)

    return answer


def _has_gone(request: web.BaseRequest) -> bool:
    transport = request.transport
    return transport is None or transport.is_closing()
