"""``/api/v1/hooks``: where the outside world talks to flows that wait. A made token is a credential of its own.

Reading never changes anything: mail and chat programs open links before people do.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, RootModel

from counterfoil.domain.callbacks.inbox import CallbackKind
from counterfoil.domain.errors import (
    BadRequest,
    CounterfoilError,
    Forbidden,
    HookNotFound,
    InvalidInput,
    InvalidPayload,
    InvalidSignature,
    PayloadTooLarge,
    Unauthenticated,
    UnsupportedMediaType,
)
from counterfoil.domain.flows.requests import StepId
from counterfoil.domain.hooks.delivering import Incoming
from counterfoil.domain.hooks.senders import PayloadSender
from counterfoil.domain.hooks.tokens import Token, given, has_made_form, read_made, token_problem
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import OPERATORS, REFUSAL
from counterfoil.server.completions import CallbackNotes, ReceivedCallback, has_body
from counterfoil.server.requests import Cursor, Limit, Query, read_body, read_query, require_json
from counterfoil.server.routes import EngineFacade, HeaderParameter, Route, SuccessAnswer
from counterfoil.wire.hooks import HookDocument, HooksPage, PayloadTaken

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
        sender = PayloadSender(request.headers, body, engine.context.secrets, request.get(REFUSAL))
        return Incoming(None, _delivery_id(request), sender)

    async def deliver_payload(request: web.Request) -> web.Response:
        received, token = ReceivedCallback(request), None
        try:
            token = _token_of(engine, request)
            delivered = await engine.hooks.receive(token, await read_incoming(received))
        except CounterfoilError as error:
            answer = _as_the_caller_may_see(error, request.get(REFUSAL))
            if token is not None and not isinstance(answer, HookNotFound | Unauthenticated | Forbidden):
                await name_hook(received, token)
            notes.refused(CallbackKind.HOOK, answer, received.arrival())
            raise answer from None
        received.flow_id, received.step_id = delivered.flow_id, delivered.step_id
        notes.delivered(delivered, received.arrival())
        status = delivered.http_status
        return json_response(engine.hooks.answer(delivered), status) if has_body(status) else empty_response(status)

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
            description="Answered once the payload is durable. A token that the engine made needs no API key, nor does "
            "a hook with `accept`: its payloads are signed if `accept.signature` of the step requires it. The same "
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
            answers={
                200: SuccessAnswer(description="the payload is recorded, now or before, or ignored", model=PayloadTaken)
            },
            other_success=SuccessAnswer(
                description="the same, with the status that `accept.answer` sets", model=PayloadTaken
            ),
            errors=(HookNotFound, InvalidPayload, InvalidSignature, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
            judges_refusals=True,
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


def _as_the_caller_may_see(error: CounterfoilError, refusal: CounterfoilError | None) -> CounterfoilError:
    """Whether there is such a token is not for a caller that may not deliver to every hook."""
    return refusal if refusal is not None and isinstance(error, HookNotFound) else error


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
