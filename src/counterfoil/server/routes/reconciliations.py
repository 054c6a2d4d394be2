"""``/api/v1/reconciliations``: what has an unknown outcome, and is never repeated by the engine itself."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BeforeValidator, Field

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.errors import (
    InvalidInput,
    NotWaitingForReconciliation,
    PayloadTooLarge,
    UnknownWork,
    UnsupportedMediaType,
)
from counterfoil.domain.flows.requests import StepId
from counterfoil.domain.time import wire_time
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS, caller
from counterfoil.server.requests import Cursor, Limit, Query, read_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.effects import OutcomeSettled, ReconciliationDocument, ReconciliationPage

_WORK_ID = re.compile(r"[A-Za-z0-9]{1,64}")


class ReconciliationFilters(Query):
    step: Annotated[StepId | None, Field(description="only items of this step")] = None
    hold: Annotated[
        Literal["reconcile", "unsafe_once", "irreversible"] | None,
        Field(description="only items of this effect policy; `irreversible`: lapsed reservations of such effects"),
    ] = None
    since: Annotated[
        int | None,
        BeforeValidator(wire_time),
        Field(
            description="only items that wait since this time or later",
            json_schema_extra={"type": "string", "format": "date-time"},
        ),
    ] = None
    cursor: Cursor
    limit: Limit = 100


def reconciliation_routes(engine: EngineFacade) -> list[Route]:
    async def list_reconciliations(request: web.Request) -> web.Response:
        wanted = read_query(request, ReconciliationFilters)
        page = await engine.effect_queries.reconciliations(
            step_id=wanted.step, hold=wanted.hold, since_ms=wanted.since, cursor=wanted.cursor, limit=wanted.limit
        )
        return json_response(page)

    async def get_reconciliation(request: web.Request) -> web.Response:
        return json_response(await engine.effect_queries.reconciliation(_work_id(request)))

    async def settle_reconciliation(request: web.Request) -> web.Response:
        work_id = _work_id(request)
        settlement = await read_model(request, Settlement, InvalidInput)
        return json_response(await engine.reconciliations.settle(work_id, settlement, caller(request)))

    return [
        Route(
            method="GET",
            path="/api/v1/reconciliations",
            handler=list_reconciliations,
            tag="reconciliations",
            summary="List work items whose outcome is unknown",
            description="The longest waiting item comes first. The engine never repeats these items by itself: a late "
            "report, the `status_url` of the step or an operator settles them. Lapsed reservations of irreversible "
            "effects are listed as well (`hold` is `irreversible`), and are settled through `/api/v1/effects`.",
            query=ReconciliationFilters,
            answers={200: SuccessAnswer(description="a page of the queue", model=ReconciliationPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/reconciliations/{work_id}",
            handler=get_reconciliation,
            tag="reconciliations",
            summary="Show a work item whose outcome is unknown",
            description="The arguments, the cause, since when it waits, and the last answer of its `status_url`.",
            answers={200: SuccessAnswer(description="the item of the queue", model=ReconciliationDocument)},
            errors=(UnknownWork, NotWaitingForReconciliation),
        ),
        Route(
            method="POST",
            path="/api/v1/reconciliations/{work_id}",
            handler=settle_reconciliation,
            tag="reconciliations",
            summary="Settle an unknown outcome",
            description="`applied`: the work item succeeds with the outputs; `failed`: it fails with the error. "
            "`not_applied`: it is sent again, for an `unsafe_once` step after a new approval. "
            "The first settlement wins.",
            request=Settlement,
            example={"outcome": "applied", "outputs": {"charge_id": "ch_1"}, "note": "found in the provider's ledger"},
            answers={200: SuccessAnswer(description="the item is settled", model=OutcomeSettled)},
            errors=(
                UnknownWork,
                NotWaitingForReconciliation,
                InvalidInput,
                UnsupportedMediaType,
                PayloadTooLarge,
            ),
            roles=OPERATORS,
        ),
    ]


def _work_id(request: web.Request) -> str:
    """The work id of the path; an id that no work item can have raises UnknownWork without a query."""
    work_id = request.match_info["work_id"]
    if not _WORK_ID.fullmatch(work_id):
        raise UnknownWork
    return work_id
