"""Reads requests: bodies, JSON, models and query parameters. An invalid one raises an error that names each place.

No value that a client sent is ever part of an error; places are, cut to a readable length.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from counterfoil.domain.errors import BadRequest, Invalid, InvalidInput, PayloadTooLarge, UnsupportedMediaType
from counterfoil.domain.flows.requests import StepId
from counterfoil.domain.jsontext import JsonError, accept_json
from counterfoil.domain.places import place_errors, segment
from counterfoil.domain.runs.requests import RunKeyText
from counterfoil.domain.states import FlowStatus, WorkStatus
from counterfoil.domain.time import wire_time
from counterfoil.server.bodies.content_codings import coding_of, decode
from counterfoil.server.bodies.media_types import refusal_of_type

MAX_WAIT_SECONDS = 60.0
MAX_SEQUENCE = 10**18 - 1
MAX_OFFSET = 10**12

Model = TypeVar("Model", bound=BaseModel)

# -- bodies ----------------------------------------------------------------------------------------


def require_json(request: web.Request) -> None:
    """Refuse a body of another media type than JSON, or in another charset than UTF-8."""
    refusal = refusal_of_type(request.headers.get("Content-Type", ""))
    if refusal is not None:
        raise UnsupportedMediaType(refusal)


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body, decompressed. Over the limit it raises PayloadTooLarge, at once when the length was announced."""
    encoding = request.headers.getall("Content-Encoding", ())
    coding = coding_of(", ".join(encoding)) if encoding else None
    body = await _read_content(request, limit)
    return body if coding is None or not body else decode(body, coding, limit)


async def _read_content(request: web.Request, limit: int) -> bytes:
    announced = request.content_length
    if announced is not None and announced > limit:
        raise PayloadTooLarge(limit_bytes=limit)
    content = request.content
    try:
        body = await content.readany()
        if len(body) <= limit and content.at_eof():
            return body
        pieces = [body]
        size = len(body)
        while size <= limit and not content.at_eof():
            piece = await content.readany()
            pieces.append(piece)
            size += len(piece)
    except (web.RequestPayloadError, HttpProcessingError):
        raise BadRequest("the body is not framed as its headers say") from None
    if size > limit:
        raise PayloadTooLarge(limit_bytes=limit)
    return b"".join(pieces)


async def read_json(request: web.Request, limit: int, invalid: type[Invalid]) -> Any:
    """The body as a JSON value: 415, 413, or ``invalid`` when it is none."""
    require_json(request)
    return parse_body(await read_body(request, limit), invalid)


async def read_model(request: web.Request, model: type[Model], invalid: type[Invalid]) -> Model:
    """The body as a model, up to the application's limit."""
    return validate(model, await read_json(request, request.client_max_size, invalid), invalid)


async def read_optional_model(request: web.Request, model: type[Model], invalid: type[Invalid]) -> Model:
    """The same, where a missing body stands for an empty object."""
    body = await read_body(request, request.client_max_size)
    if not body:
        return model()
    require_json(request)
    return validate(model, parse_body(body, invalid), invalid)


def parse_body(body: bytes, invalid: type[Invalid]) -> Any:
    try:
        return accept_json(body)
    except JsonError as error:
        place = {"place": "body", "message": str(error)}
        raise invalid("the body is not JSON that this engine accepts", errors=[place]) from None


def validate(model: type[Model], value: Any, invalid: type[Invalid]) -> Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(errors=place_errors(error)) from None


# -- query parameters ------------------------------------------------------------------------------

_INTEGER = re.compile(r"[0-9]{1,18}")

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_FLAGS = {"true": True, "false": False}


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


def _wait(text: str) -> float:
    if not _SECONDS.fullmatch(text):
        raise ValueError("must be a number of seconds, from 0 to 60")
    return min(float(text), MAX_WAIT_SECONDS)


def _flag(text: str) -> bool:
    if text not in _FLAGS:
        raise ValueError("must be true or false")
    return _FLAGS[text]


def label_text(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not key or not colon:
        raise ValueError("must be key:value")
    return key, value


_TIME_SCHEMA = WithJsonSchema({"type": "string", "format": "date-time"})
_LABEL_SCHEMA = WithJsonSchema({"type": "string", "pattern": "^[^:]+:"})
_WAIT_SCHEMA = WithJsonSchema({"type": "number", "minimum": 0})

Limit = Annotated[int, Field(ge=1, le=1000, description="maximum number of entries"), BeforeValidator(_integer)]
Offset = Annotated[
    int,
    Field(ge=0, le=MAX_OFFSET, description="how many entries to leave out at the beginning of the list"),
    BeforeValidator(_integer),
]
Cursor = Annotated[
    str | None,
    Field(default=None, max_length=1024, description="`next_cursor` of the page before; absent: from the start"),
]


class Query(BaseModel):
    """Query parameters: each at most once, an empty one is an absent one, an unknown one is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LenientQuery(Query):
    """The same, where an unknown parameter is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class FlowFilters(Query):
    status: Annotated[FlowStatus | None, Field(description="only flows in this state")] = None
    label: Annotated[
        tuple[str, str] | None,
        BeforeValidator(label_text),
        _LABEL_SCHEMA,
        Field(description="only flows with this label, as key:value"),
    ] = None
    goal: Annotated[StepId | None, Field(description="only flows with this goal")] = None
    since: Annotated[
        int | None,
        BeforeValidator(wire_time),
        _TIME_SCHEMA,
        Field(description="only flows started at or after this time"),
    ] = None
    key: Annotated[RunKeyText | None, Field(description="only flows with this run key (`idempotency_key`)")] = None
    cursor: Cursor
    limit: Limit = 100


class WorkFilters(Query):
    status: Annotated[
        WorkStatus | Literal["gated_not_completed"] | None,
        Field(
            description="only work in this state; `gated_not_completed`: work that an agent was "
            "allowed to run and has not reported, and that has no current claim"
        ),
    ] = None
    step: Annotated[StepId | None, Field(description="only work of this step")] = None
    overdue: Annotated[
        bool,
        BeforeValidator(_flag),
        Field(description="only work that is due for an attempt, or past a deadline that was not enforced"),
    ] = False
    cursor: Cursor
    limit: Limit = 100


class EventsPaging(Query):
    cursor: Cursor
    limit: Limit = 200


class SchedulesPaging(Query):
    cursor: Cursor
    limit: Limit = 100


class ResultWait(Query):
    wait: Annotated[
        float,
        BeforeValidator(_wait),
        _WAIT_SCHEMA,
        Field(description="seconds to wait for the end of the flow, at most 60"),
    ] = 0.0


class StreamStart(Query):
    last_event_id: Annotated[
        int | None,
        Field(ge=0, le=MAX_SEQUENCE, description="the same as the header `Last-Event-ID`; the header takes precedence"),
        BeforeValidator(_integer),
    ] = None


QueryModel = TypeVar("QueryModel", bound=Query)


def read_query(request: web.Request, model: type[QueryModel]) -> QueryModel:
    """The query parameters of a request; InvalidInput with the place of each that is wrong."""
    given = request.query
    read = model.model_fields if model.model_config.get("extra") == "ignore" else given
    repeated = sorted({name for name in given if name in read and len(given.getall(name)) > 1})
    if repeated:
        raise InvalidInput(errors=[{"place": segment(name), "message": "is given twice"} for name in repeated])
    return validate(model, {name: text for name, text in given.items() if text}, InvalidInput)


def last_event_id(request: web.Request) -> int | None:
    """The last event that the client has seen; None: it has seen none."""
    query = read_query(request, StreamStart)
    header = request.headers.get("Last-Event-ID", "").strip()
    if not header:
        return query.last_event_id
    try:
        return _integer(header)
    except ValueError as error:
        raise InvalidInput(errors=[{"place": "Last-Event-ID", "message": str(error)}]) from None
