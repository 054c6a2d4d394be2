"""Errors as answers: the table from error to HTTP status, and the body of every error answer.

An answer repeats nothing that the client sent, and holds no traceback: an unexpected exception is logged (the log
removes receipts) and answered as a plain 500.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus

import structlog
from aiohttp import web

from counterfoil.domain.errors import (
    BadRequest,
    Conflict,
    ConflictingEffect,
    CounterfoilError,
    Forbidden,
    InternalError,
    Invalid,
    InvalidSignature,
    MethodNotAllowed,
    PayloadTooLarge,
    Refused,
    RequestTimeout,
    SelfApproval,
    Unauthenticated,
    Unavailable,
    UndecodableResult,
    Unknown,
    UnknownRoute,
    UnsupportedMediaType,
)
from counterfoil.server.answers import json_response

log = structlog.get_logger(__name__)

STATUSES: dict[type[CounterfoilError], int] = {
    Refused: 400,
    BadRequest: 400,
    Unauthenticated: 401,
    InvalidSignature: 401,
    Forbidden: 403,
    SelfApproval: 403,
    Unknown: 404,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    Conflict: 409,
    ConflictingEffect: 409,
    PayloadTooLarge: 413,
    UnsupportedMediaType: 415,
    Invalid: 422,
    InternalError: 500,
    Unavailable: 503,
}
"""An entry holds for all subclasses; the nearest one counts."""

RETRY_AFTER_SECONDS = 1
NO_TRAILING_SLASH = "no such path: no path of this API ends with a slash; GET /openapi.json lists all paths"
CHALLENGES = ('Bearer realm="counterfoil"', 'Basic realm="counterfoil", charset="UTF-8"')


def status_of(error: type[CounterfoilError]) -> int:
    """The HTTP status of an error class; KeyError: the table has no entry for it."""
    for ancestor in error.__mro__:
        status = STATUSES.get(ancestor)
        if status is not None:
            return status
    raise KeyError(error.__name__)


def problem_response(error: CounterfoilError) -> web.Response:
    """The answer for an error, with the headers that HTTP requires for some statuses."""
    response = json_response(error.body(), status_of(type(error)))
    if isinstance(error, Unauthenticated):
        for challenge in CHALLENGES:
            response.headers.add("WWW-Authenticate", challenge)
    elif isinstance(error, MethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.details.get("allowed", ())))
    elif isinstance(error, UnsupportedMediaType) and "content_encodings" in error.details:
        response.headers["Accept-Encoding"] = ", ".join(error.details["content_encodings"])
    elif isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(error.details.get("retry_after", RETRY_AFTER_SECONDS))
    elif isinstance(error, PayloadTooLarge | BadRequest | RequestTimeout | UndecodableResult):
        response.force_close()  # the rest of the body is not read, so the connection cannot be used again
    return response


def problem_bytes(error: CounterfoilError, *, close: bool = False) -> bytes:
    """The same answer as bytes, for a connection that has no request to answer."""
    response = problem_response(error)
    body = response.body if isinstance(response.body, bytes) else b""
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items() if name.lower() != "content-length"]
    lines += ["Connection: close"] * close
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answer_for(error: Exception, request: web.BaseRequest) -> web.StreamResponse:
    """The answer for an exception that was raised while a request was handled."""
    if isinstance(error, CounterfoilError):
        return problem_response(error)
    if isinstance(error, web.HTTPException):
        return _answer_for_http(error, request)
    if isinstance(error, UnicodeError) and "Expect" in request.headers:
        return problem_response(BadRequest())  # aiohttp cannot write its refusal of an expectation that is no text
    log.error("request_failed", route=_route_of(request), exc_info=error)
    return problem_response(InternalError())


def _route_of(request: web.BaseRequest) -> str:
    """The method and the route's template, never the path itself: a path may hold a receipt."""
    resource = None
    with contextlib.suppress(AssertionError):  # aiohttp's way to say that no route was looked for yet
        resource = request.match_info.route.resource if isinstance(request, web.Request) else None
    return f"{request.method} {resource.canonical}" if resource is not None else "no route"


def _answer_for_http(error: web.HTTPException, request: web.BaseRequest) -> web.StreamResponse:
    """Errors of aiohttp: no route, another method, an expectation. The texts of aiohttp repeat the request."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return problem_response(MethodNotAllowed(allowed=sorted(error.allowed_methods)))
    if isinstance(error, web.HTTPNotFound):
        slash = len(request.path) > 1 and request.path.endswith("/")
        return problem_response(UnknownRoute(NO_TRAILING_SLASH) if slash else UnknownRoute())
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return problem_response(PayloadTooLarge())
    if error.status < 500:
        return problem_response(BadRequest())
    return problem_response(InternalError())
