"""The routes of relays: the stream, and the replies."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from counterfoil.domain.errors import (
    InvalidInput,
    PayloadTooLarge,
    Unavailable,
    UnknownRelayRequest,
    UnsupportedMediaType,
)
from counterfoil.domain.urls import RELAY_NAME_PATTERN
from counterfoil.domain.work.replies import Reply, SendOutcome
from counterfoil.server.answers import empty_response
from counterfoil.server.auth import OPERATORS
from counterfoil.server.requests import read_json, validate
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.server.routes.relays.streaming import relay_stream

MAX_ERROR = 500
REPLY_OVERHEAD_BYTES = 65_536
ESCAPED_BYTES = 6
"""A byte of a body may take so many as JSON."""

_NAME = re.compile(RELAY_NAME_PATTERN)


class RelayReply(BaseModel):
    """What became of a request behind a relay: ``POST /api/v1/relays/{name}/replies/{request_id}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    outcome: Literal["answered", "not_delivered", "unknown"]
    status: Annotated[StrictInt, Field(ge=100, le=599)] | None = None
    retry_after_ms: Annotated[StrictInt, Field(ge=0)] | None = None
    body: StrictStr = ""
    truncated: StrictBool = False
    error: Annotated[StrictStr, Field(max_length=MAX_ERROR)] = ""
    timed_out: StrictBool = False

    @model_validator(mode="after")
    def _has_a_status_if_answered(self) -> Self:
        if (self.outcome == "answered") is (self.status is None):
            raise ValueError("status: is required if the request was answered, and not allowed otherwise")
        return self

    def reply(self, max_response_bytes: int) -> Reply:
        body = self.body.encode(errors="replace")
        return Reply(
            SendOutcome(self.outcome),
            self.status,
            self.retry_after_ms,
            body[:max_response_bytes],
            truncated=self.truncated or len(body) > max_response_bytes,
            error=self.error or ("" if self.outcome == "answered" else "the relay could not reach the worker"),
            timed_out=self.timed_out,
        )


def relay_routes(engine: EngineFacade) -> list[Route]:
    async def connect_relay(request: web.Request) -> web.StreamResponse:
        name = _name(request)
        if not engine.accepting:
            raise Unavailable("the engine is stopping")
        return await relay_stream(request, engine, name, max_response_bytes=engine.relays.max_response_bytes)

    async def reply_through_relay(request: web.Request) -> web.Response:
        name, limit = _name(request), engine.relays.max_response_bytes
        document = await read_json(request, ESCAPED_BYTES * limit + REPLY_OVERHEAD_BYTES, InvalidInput)
        reply = validate(RelayReply, document, InvalidInput).reply(limit)
        if not engine.relays.reply(name, request.match_info["request_id"], reply):
            raise UnknownRelayRequest
        return empty_response()

    return [
        Route(
            method="GET",
            path="/api/v1/relays/{name}",
            handler=connect_relay,
            tag="relays",
            summary="Pull the requests of a relay",
            description="Server-sent events: `hello` once, then `request` for each request to an endpoint "
            "of this relay, as it would be posted there. The newest connection of a name counts; an earlier one "
            "ends with `replaced`. Requests that no relay has taken were not delivered.",
            answers={200: SuccessAnswer(description="server-sent events", media_type="text/event-stream")},
            errors=(InvalidInput,),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path="/api/v1/relays/{name}/replies/{request_id}",
            handler=reply_through_relay,
            tag="relays",
            summary="Reply to a request of a relay",
            description="What the worker answered, or that it could not be reached (`not_delivered`), or that its "
            "answer is missing (`unknown`).",
            request=RelayReply,
            example={"outcome": "answered", "status": 202},
            answers={204: SuccessAnswer(description="the reply was taken")},
            errors=(UnknownRelayRequest, InvalidInput, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
        ),
    ]


def _name(request: web.Request) -> str:
    name = request.match_info["name"]
    if not _NAME.fullmatch(name):
        message = "must have lower-case letters, digits and hyphens, at most 63"
        raise InvalidInput(errors=[{"place": "name", "message": message}])
    return name
