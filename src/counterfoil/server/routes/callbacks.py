"""``/api/v1/callbacks``: every attempt at a webhook, heartbeat or hook URL, accepted or refused."""

from __future__ import annotations

import re
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from counterfoil.domain.callbacks.inbox import CallbackKind
from counterfoil.domain.errors import (
    CallbackNotReplayable,
    HookNotFound,
    InvalidInput,
    InvalidPayload,
    UnknownCallback,
)
from counterfoil.domain.flows.requests import StepId
from counterfoil.domain.hooks.delivering import Incoming
from counterfoil.domain.hooks.senders import KeptPayload
from counterfoil.domain.time import wire_time
from counterfoil.engine.queries.callback_queries import CallbackFilters
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS, caller
from counterfoil.server.completions import result_of
from counterfoil.server.requests import Cursor, Limit, Query, read_optional_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.server.routes.work import COMPLETION_REFUSALS, by_operator, completion_answer
from counterfoil.wire.callbacks import CallbackDetail, CallbackPage, CallbackReplayed

_CALLBACK_ID = re.compile(r"[0-9a-z]{1,64}")
_TIME = WithJsonSchema({"type": "string", "format": "date-time"})


class CallbackQuery(Query):
    flow: Annotated[str | None, Field(max_length=200, description="only callbacks about this flow")] = None
    step: Annotated[StepId | None, Field(description="only callbacks about this step")] = None
    work: Annotated[str | None, Field(max_length=200, description="only callbacks about this work item")] = None
    kind: Annotated[CallbackKind | None, Field(description="only callbacks of this kind")] = None
    verdict: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z_]{1,64}$",
            description="only this verdict: `accepted`, `duplicate`, `stale`, `ignored`, or an error code",
        ),
    ] = None
    since: Annotated[
        int | None, BeforeValidator(wire_time), _TIME, Field(description="only callbacks at or after this time")
    ] = None
    until: Annotated[
        int | None, BeforeValidator(wire_time), _TIME, Field(description="only callbacks before this time")
    ] = None
    cursor: Cursor
    limit: Limit = 100

    def filters(self) -> CallbackFilters:
        return CallbackFilters(
            self.flow, self.step, self.work, self.kind, self.verdict, since=self.since, until=self.until
        )


class ReplayBody(BaseModel):
    """``POST /api/v1/callbacks/{callback_id}/replay``; the body is optional."""

    model_config = ConfigDict(extra="forbid")


def callback_routes(engine: EngineFacade) -> list[Route]:
    async def list_callbacks(request: web.Request) -> web.Response:
        wanted = read_query(request, CallbackQuery)
        return json_response(await engine.callbacks.page(wanted.filters(), wanted.cursor, wanted.limit))

    async def get_callback(request: web.Request) -> web.Response:
        return json_response(await engine.callbacks.detail(_callback_id(request)))

    async def replay_callback(request: web.Request) -> web.Response:
        callback_id = _callback_id(request)
        await read_optional_model(request, ReplayBody, InvalidInput)
        callback, body = await engine.callbacks.replayable(callback_id)
        if callback.kind == CallbackKind.HOOK:
            token = await engine.callbacks.hook_token(callback)
            sender = KeptPayload(body, callback.headers or {})
            origin = by_operator(request, replay_of=callback_id)
            incoming = Incoming(None, f"replay:{callback_id}", sender, origin)
            return json_response(await engine.hooks.deliver(token, incoming))
        assert callback.work_id is not None, "replayable"
        reports = engine.reports
        completion = await reports.complete_as_operator(
            callback.work_id,
            result_of(body),
            caller(request),
            callback_id,
            lambda accept, _: reports.read_again(accept, callback.headers or {}, body),
        )
        return completion_answer(completion)

    return [
        Route(
            method="GET",
            path="/api/v1/callbacks",
            handler=list_callbacks,
            tag="callbacks",
            summary="List callbacks",
            description="Every request to a webhook, heartbeat or hook URL, newest first, with its verdict; unknown "
            "receipts are sampled. Filters combine. A page may be shorter than its limit, or empty, while there is a "
            "`next_cursor`.",
            query=CallbackQuery,
            answers={200: SuccessAnswer(description="one page", model=CallbackPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/callbacks/{callback_id}",
            handler=get_callback,
            tag="callbacks",
            summary="Show a callback",
            description="With its body, if the setting `callbacks.keep_bodies` kept it; receipts in it are redacted.",
            answers={200: SuccessAnswer(description="the callback", model=CallbackDetail)},
            errors=(UnknownCallback,),
        ),
        Route(
            method="POST",
            path="/api/v1/callbacks/{callback_id}/replay",
            handler=replay_callback,
            tag="callbacks",
            summary="Replay a callback",
            description="Decides about the kept body again, now, as an operator: the answer is that of the webhook, "
            "signatures are not checked again, and the journal names the API key. `accept.map` of the step reads the "
            "headers that are kept with the body. Only completions and payloads whose body is kept.",
            request=ReplayBody,
            request_optional=True,
            answers={
                200: SuccessAnswer(description="the answer of the webhook, or of the hook", model=CallbackReplayed)
            },
            errors=(
                *(UnknownCallback, CallbackNotReplayable, HookNotFound, InvalidInput, InvalidPayload),
                *COMPLETION_REFUSALS,
            ),
            roles=OPERATORS,
        ),
    ]


def _callback_id(request: web.Request) -> str:
    """The callback id of the path; an id that no callback can have raises UnknownCallback without a query."""
    callback_id = request.match_info["callback_id"]
    if not _CALLBACK_ID.fullmatch(callback_id):
        raise UnknownCallback
    return callback_id
