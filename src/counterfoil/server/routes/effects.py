"""``/api/v1/effects``: the dedup store for tools that call a side effect themselves."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import unquote_to_bytes

from aiohttp import web
from pydantic import Field

from counterfoil.domain.effects.effect_requests import CompleteEffect, EffectText, ReserveEffect, SettleEffect
from counterfoil.domain.effects.reservations import LONGEST_KEY
from counterfoil.domain.errors import (
    BadRequest,
    ConflictingEffect,
    EffectFenced,
    EffectIncomplete,
    EffectInFlight,
    EffectKeyReused,
    InvalidInput,
    PayloadTooLarge,
    UnknownEffect,
    UnsupportedMediaType,
)
from counterfoil.domain.redaction import holds_receipt
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS, caller
from counterfoil.server.requests import Limit, Query, read_model, read_query
from counterfoil.server.routes import EngineFacade, Handler, Route, SuccessAnswer
from counterfoil.wire.effects import EffectCompleted, EffectDetail, EffectPage, EffectReserved, EffectSettled

_TOOL_SEGMENT = 4
"""Of ``/api/v1/effects/{tool}/{key}``, split at slashes."""
_MOST_CURSOR = 8_192
"""A cursor names a tool and a key, each of up to 255 characters of up to four bytes (or twelve, escaped)."""
BODY_ERRORS = (InvalidInput, UnsupportedMediaType, PayloadTooLarge)


class EffectFilters(Query):
    tool: Annotated[EffectText | None, Field(description="only effects of this tool")] = None
    state: Annotated[
        Literal["pending", "complete-success", "complete-failed"] | None,
        Field(description="only effects in this state"),
    ] = None
    cursor: Annotated[
        str | None,
        Field(max_length=_MOST_CURSOR, description="`next_cursor` of the page before; absent: from the start"),
    ] = None
    limit: Limit = 100


def effect_routes(engine: EngineFacade) -> list[Route]:
    async def reserve_effect(request: web.Request) -> web.Response:
        wanted = await read_model(request, ReserveEffect, InvalidInput)
        answer, granted = await engine.reservations.reserve(wanted)
        return json_response(answer, 201 if granted else 200)

    async def complete_effect(request: web.Request) -> web.Response:
        tool, key = _effect(request)
        outcome = await read_model(request, CompleteEffect, InvalidInput)
        return json_response(await engine.reservations.complete(tool, key, outcome))

    async def settle_effect(request: web.Request) -> web.Response:
        tool, key = _effect(request)
        settlement = await read_model(request, SettleEffect, InvalidInput)
        return json_response(await engine.reservations.settle(tool, key, settlement, caller(request)))

    async def get_effect(request: web.Request) -> web.Response:
        return json_response(await engine.reservations.queries.effect(*_effect(request)))

    async def list_effects(request: web.Request) -> web.Response:
        wanted = read_query(request, EffectFilters)
        page = await engine.reservations.queries.effects(
            tool=wanted.tool, state=wanted.state, cursor=wanted.cursor, limit=wanted.limit
        )
        return json_response(page)

    return [
        Route(
            method="POST",
            path="/api/v1/effects",
            handler=reserve_effect,
            tag="effects",
            summary="Reserve an effect",
            description="201: the caller holds the reservation until `expires_at`, and runs the effect. 200: the same "
            "holder gets its reservation back with a new time to live, or the effect is complete and the answer is "
            "its recorded outcome.",
            request=ReserveEffect,
            example={
                "tool": "issue_refund",
                "key": "refund:order-7",
                "class": "write-non-idempotent",
                "holder": "agent-1",
                "ttl_seconds": 300,
                "window": "7d",
            },
            answers={
                200: SuccessAnswer(description="the caller's own reservation, or the outcome", model=EffectReserved),
                201: SuccessAnswer(description="reserved: go ahead", model=EffectReserved),
            },
            errors=(EffectInFlight, EffectIncomplete, EffectKeyReused, *BODY_ERRORS),
            roles=OPERATORS,
        ),
        Route(
            method="GET",
            path="/api/v1/effects",
            handler=list_effects,
            tag="effects",
            summary="List effects",
            description="By tool and key. Effects whose window has passed are not listed.",
            query=EffectFilters,
            answers={200: SuccessAnswer(description="a page of effects", model=EffectPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/effects/{tool}/{key}",
            handler=get_effect,
            tag="effects",
            summary="Show an effect",
            description="Its state, its outcome and its audit. Tool and key are percent-encoded, slashes included.",
            answers={200: SuccessAnswer(description="the effect", model=EffectDetail)},
            errors=(UnknownEffect,),
        ),
        *_changing_routes(complete_effect, settle_effect),
    ]


def _changing_routes(complete_effect: Handler, settle_effect: Handler) -> list[Route]:
    return [
        Route(
            method="POST",
            path="/api/v1/effects/{tool}/{key}/complete",
            handler=complete_effect,
            tag="effects",
            summary="Record the outcome of an effect",
            description="The fence must be that of the current reservation; a result that comes after its time to "
            "live counts as long as no other caller has reserved the key. The first outcome is final.",
            request=CompleteEffect,
            example={"fence": 1, "success": True, "result": {"refund_id": "re_1"}},
            answers={200: SuccessAnswer(description="the outcome is recorded", model=EffectCompleted)},
            errors=(UnknownEffect, EffectFenced, ConflictingEffect, *BODY_ERRORS),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path="/api/v1/effects/{tool}/{key}/settle",
            handler=settle_effect,
            tag="effects",
            summary="Settle a lapsed reservation",
            description="For a reservation whose holder never completed it. `applied`: complete, with the result; "
            "`failed`: complete, with the error; `not_applied`: the key is free, and may be reserved again.",
            request=SettleEffect,
            example={"outcome": "applied", "result": {"refund_id": "re_1"}, "note": "found in the provider's ledger"},
            answers={200: SuccessAnswer(description="the reservation is settled", model=EffectSettled)},
            errors=(UnknownEffect, EffectInFlight, ConflictingEffect, *BODY_ERRORS),
            roles=OPERATORS,
        ),
    ]


def _effect(request: web.Request) -> tuple[str, str]:
    """The tool and key of the path, as they were percent-encoded; a text that no effect has raises UnknownEffect.

    They are decoded here: the router passes on bytes that are no UTF-8 as they were sent, so that two paths would mean
    the same key.
    """
    segments = request.rel_url.raw_path.split("/")[_TOOL_SEGMENT : _TOOL_SEGMENT + 2]
    try:
        tool, key = (unquote_to_bytes(segment).decode() for segment in segments)
    except ValueError:
        raise UnknownEffect(retriable=False) from None
    if holds_receipt(tool) or holds_receipt(key):
        raise BadRequest("a receipt token was sent where a key is expected")
    if any("\x00" in text or len(text) > LONGEST_KEY for text in (tool, key)):
        raise UnknownEffect(retriable=False)
    return tool, key
