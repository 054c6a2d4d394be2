"""``/api/v1/hooks``: where the outside world talks to flows that wait. A made token is a credential of its own.

Reading never changes anything: mail and chat programs open links before people do.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, RootModel

from counterfoil.domain.callbacks import CallbackKind
from counterfoil.domain.errors import (
    BadRequest,
    CounterfoilError,
    HookNotFound,
    InvalidInput,
    InvalidPayload,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from counterfoil.domain.flows.requests import StepId
from counterfoil.domain.hooks.delivering import Incoming
from counterfoil.domain.hooks.tokens import Token, given, has_made_form, read_made, token_problem
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS
from counterfoil.server.completions import CallbackNotes, ReceivedCallback
from counterfoil.server.requests import Cursor, Limit, Query, parse_body, read_body, read_query, require_json
from counterfoil.server.routes import EngineFacade, HeaderParameter, Route, SuccessAnswer
from counterfoil.wire.inbound.hooks import HookDocument, HooksPage, PayloadTaken

DELIVERY_HEADER = "webhook-id"
MOST_DELIVERY_ID = 255


class Payload(RootModel[Any]):
    """Any JSON value; a hook that collects one payload takes an object."""


class HookFilters(Query):
    step: Annotated[StepId | None, Field(description="only hooks of this step")] = None
    cursor: Cursor
    limit: Limit = 100


def hook_routes(engine: EngineFacade) -> list[Route]:
    notes = CallbackNotes(engine)

    async def read_incoming(received: ReceivedCallback) -> Incoming:
        """What is delivered. A step that accepts a sender's own signature and shape reads it here, by ``accept``."""
        request = received.request
        require_json(request)
        received.body = body = await read_body(request, request.client_max_size)
        return Incoming(parse_body(body, InvalidPayload), _delivery_id(request))

    async def deliver_payload(request: web.Request) -> web.Response:
        received, token = ReceivedCallback(request), None
        try:
            token = _token_of(engine, request)
            delivered = await engine.hooks.receive(token, await read_incoming(received))
        except CounterfoilError as error:
            if token is not None and not isinstance(error, HookNotFound):
                await name_hook(received, token)
            notes.refused(CallbackKind.HOOK, error, received.arrival())
            raise
        received.flow_id, received.step_id = delivered.flow_id, delivered.step_id
        notes.delivered(delivered, received.arrival())
        return json_response(engine.hooks.answer(delivered))

    async def name_hook(received: ReceivedCallback, token: Token) -> None:
        """For the inbox: which hook a refused payload was for."""
        with contextlib.suppress(CounterfoilError):
            hook = await engine.hook_queries.hook(token)
            received.flow_id, received.step_id = hook["flow_id"], hook["step_id"]

    def refused_before(request: web.Request, error: CounterfoilError) -> None:
        notes.refused(CallbackKind.HOOK, error, ReceivedCallback(request).arrival())

    async def get_hook(request: web.Request) -> web.Response:
        return json_response(await engine.hook_queries.hook(_token_of(engine, request)))

    async def list_hooks(request: web.Request) -> web.Response:
        wanted = read_query(request, HookFilters)
        page = await engine.hook_queries.hooks(step_id=wanted.step, cursor=wanted.cursor, limit=wanted.limit)
        return json_response(page)

    return [
        Route(
            method="POST",
            path="/api/v1/hooks/{token}",
            handler=deliver_payload,
            tag="hooks",
            summary="Deliver a payload to a hook",
            description="Answered once the payload is durable. A token that the engine made needs no API key. The same "
            "`webhook-id` again is a duplicate: it is recorded once, also after the hook has ended.",
            request=Payload,
            example={"confirmed": True},
            headers=(
                HeaderParameter(
                    name=DELIVERY_HEADER,
                    description="the sender's name for this delivery",
                    schema={"type": "string", "minLength": 1, "maxLength": MOST_DELIVERY_ID},
                ),
            ),
            answers={200: SuccessAnswer(description="the payload is recorded, now or before", model=PayloadTaken)},
            errors=(HookNotFound, InvalidPayload, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
            own_credential=lambda request: has_made_form(request.match_info["token"]),
            refused=refused_before,
        ),
        Route(
            method="GET",
            path="/api/v1/hooks/{token}",
            handler=get_hook,
            tag="hooks",
            summary="Show what a hook waits for",
            description="The hook that takes the next payload with this token. Payloads are never shown, and the "
            "request changes nothing.",
            answers={200: SuccessAnswer(description="the hook", model=HookDocument)},
            errors=(HookNotFound,),
        ),
        Route(
            method="GET",
            path="/api/v1/hooks",
            handler=list_hooks,
            tag="hooks",
            summary="List hooks that wait",
            description="The longest waiting hook comes first. Tokens that the engine made are not shown.",
            query=HookFilters,
            answers={200: SuccessAnswer(description="a page of hooks", model=HooksPage)},
            errors=(InvalidInput,),
        ),
    ]


def _token_of(engine: EngineFacade, request: web.Request) -> Token:
    """The token of the path. One that no hook can have, or a forged one, is unknown without a lookup."""
    text = request.match_info["token"]
    if has_made_form(text):
        made = read_made(engine.context.receipts, text)
        if made is None:
            raise HookNotFound
        return made
    if token_problem(text) is not None:
        raise HookNotFound
    return given(text)


def _delivery_id(request: web.Request) -> str | None:
    """The sender's name for the delivery; None: it has none. Two different ones, or an endless one, are refused."""
    given_ids = request.headers.getall(DELIVERY_HEADER, [])
    if not given_ids:
        return None
    delivery_id = given_ids[0].strip()
    if len(set(given_ids)) > 1 or not 0 < len(delivery_id) <= MOST_DELIVERY_ID or not delivery_id.isprintable():
        raise BadRequest(f"the header {DELIVERY_HEADER} must have 1 to {MOST_DELIVERY_ID} printable characters")
    return delivery_id
