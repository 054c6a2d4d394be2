"""``/api/v1/work``: work items of all flows."""

from __future__ import annotations

import re
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, RootModel

from counterfoil.domain.errors import (
    AlreadyFailed,
    AlreadySucceeded,
    ConflictingResult,
    FlowNotFailed,
    HookNotFound,
    InvalidInput,
    InvalidPayload,
    InvalidResult,
    PayloadTooLarge,
    RunKeyConflict,
    UnknownWork,
    UnsupportedMediaType,
    WorkCancelled,
    WorkNotActive,
    WorkNotFailed,
)
from counterfoil.domain.flows.requests import RedriveRequest
from counterfoil.domain.hooks.delivering import Incoming
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.work.complete import OperatorCompletion
from counterfoil.server.answers import json_answer, json_response
from counterfoil.server.auth import OPERATORS, caller
from counterfoil.server.completions import completion_text
from counterfoil.server.requests import WorkFilters, read_json, read_model, read_optional_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.hooks import PayloadTaken
from counterfoil.wire.work import ReportTaken, WorkDetail, WorkPage, WorkRedriven, WorkRedrivenByFilter

_WORK_ID = re.compile(r"[A-Za-z0-9._~:-]{1,200}")


class RedriveWorkBody(BaseModel):
    """``POST /api/v1/work/{work_id}/redrive``; the body is optional."""

    model_config = ConfigDict(extra="forbid")


class WorkPayload(RootModel[Any]):
    """Any JSON value; a hook that collects one payload takes an object."""


COMPLETION_REFUSALS = (
    *(UnknownWork, AlreadySucceeded, AlreadyFailed, ConflictingResult, WorkCancelled, WorkNotActive),
    *(InvalidResult, UnsupportedMediaType, PayloadTooLarge),
)


def completion_answer(answer: OperatorCompletion) -> web.Response:
    """The same answer as the webhook's."""
    return json_answer(completion_text(answer.completion, answer.flow_id, answer.step_id).encode())


def by_operator(request: web.Request, **more: str) -> dict[str, str]:
    """What the journal says of a payload that an operator delivers without the URL of its hook."""
    return {"via": "operator", "by": caller(request), **more}


def work_routes(engine: EngineFacade) -> list[Route]:
    return [*_redrive_and_read_routes(engine), *_completion_routes(engine)]


def _completion_routes(engine: EngineFacade) -> list[Route]:
    async def complete_work_item(request: web.Request) -> web.Response:
        work_id = _work_id(request)
        result = await read_model(request, StepResult, InvalidResult)
        return completion_answer(await engine.reports.complete_as_operator(work_id, result, caller(request)))

    async def deliver_to_work_item(request: web.Request) -> web.Response:
        work_id = _work_id(request)
        payload = await read_json(request, request.client_max_size, InvalidPayload)
        token = await engine.callbacks.hook_token_of_work(work_id)
        return json_response(await engine.hooks.deliver(token, Incoming(payload, origin=by_operator(request))))

    return [
        Route(
            method="POST",
            path="/api/v1/work/{work_id}/payload",
            handler=deliver_to_work_item,
            tag="work",
            summary="Deliver a payload to the hook of a work item as an operator",
            description="The same payload and the same answer as at the URL of the hook, without its token. The "
            "journal names the API key.",
            request=WorkPayload,
            example={"confirmed": True},
            answers={200: SuccessAnswer(description="the payload is recorded", model=PayloadTaken)},
            errors=(UnknownWork, HookNotFound, InvalidPayload, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path="/api/v1/work/{work_id}/complete",
            handler=complete_work_item,
            tag="work",
            summary="Report the result of a work item as an operator",
            description="The same result and the same verdicts as at the webhook, without the receipt and without a "
            "signature. The journal names the API key. A work item of kind `flow` is completed by its sub-flow alone.",
            request=StepResult,
            example={"success": True, "outputs": {"text": "hello"}},
            answers={
                200: SuccessAnswer(description="recorded, or a repeat without effect: see `verdict`", model=ReportTaken)
            },
            errors=COMPLETION_REFUSALS,
            roles=OPERATORS,
        ),
    ]


def _redrive_and_read_routes(engine: EngineFacade) -> list[Route]:
    async def list_work(request: web.Request) -> web.Response:
        wanted = read_query(request, WorkFilters)
        page = await engine.queries.work_items(
            status=wanted.status,
            step_id=wanted.step,
            overdue=wanted.overdue,
            cursor=wanted.cursor,
            limit=wanted.limit,
        )
        return json_response(page)

    async def get_work(request: web.Request) -> web.Response:
        return json_response(await engine.queries.work_item(_work_id(request)))

    async def redrive_work(request: web.Request) -> web.Response:
        work_id = _work_id(request)
        await read_optional_model(request, RedriveWorkBody, InvalidInput)
        return json_response(await engine.flows.redrive_work(work_id))

    async def redrive_matching_work(request: web.Request) -> web.Response:
        return json_response(
            await engine.flows.redrive_matching(await read_model(request, RedriveRequest, InvalidInput))
        )

    return [
        Route(
            method="POST",
            path="/api/v1/work/redrive",
            handler=redrive_matching_work,
            tag="work",
            summary="Redrive failed work by filter",
            description="Every flow with matching failed work continues from there; `dry_run` only counts.",
            request=RedriveRequest,
            example={"filter": {"step_id": "charge", "error_code": "RETRIES_EXHAUSTED"}, "limit": 100, "dry_run": True},
            answers={200: SuccessAnswer(description="what was found and redriven", model=WorkRedrivenByFilter)},
            errors=(InvalidInput, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path="/api/v1/work/{work_id}/redrive",
            handler=redrive_work,
            tag="work",
            summary="Redrive a failed work item",
            description="A new work item with a new receipt replaces it, and its flow continues.",
            request=RedriveWorkBody,
            request_optional=True,
            answers={200: SuccessAnswer(description="the new work item", model=WorkRedriven)},
            errors=(
                UnknownWork,
                WorkNotFailed,
                FlowNotFailed,
                RunKeyConflict,
                InvalidInput,
                UnsupportedMediaType,
                PayloadTooLarge,
            ),
            roles=OPERATORS,
        ),
        Route(
            method="GET",
            path="/api/v1/work",
            handler=list_work,
            tag="work",
            summary="List work items",
            description="One page of the work items of all flows, oldest first. Filters combine. `overdue=true` finds "
            "work that should have been dispatched or ended by now.",
            query=WorkFilters,
            answers={200: SuccessAnswer(description="one page", model=WorkPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/work/{work_id}",
            handler=get_work,
            tag="work",
            summary="Show a work item with its attempts",
            description="Each attempt with its times, its outcome, and what is known of its delivery. The receipt "
            "token is never shown.",
            answers={200: SuccessAnswer(description="the work item", model=WorkDetail)},
            errors=(UnknownWork,),
        ),
    ]


def _work_id(request: web.Request) -> str:
    """The work id of the path; an id that no work item can have raises UnknownWork without a query."""
    work_id = request.match_info["work_id"]
    if not _WORK_ID.fullmatch(work_id):
        raise UnknownWork
    return work_id
