"""``/api/v1/flows``: flows, their results and their journals."""

from __future__ import annotations

import re
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from counterfoil.domain.errors import (
    FlowExists,
    FlowFinal,
    FlowNotFailed,
    HookNotFound,
    InvalidInput,
    InvalidPayload,
    PayloadTooLarge,
    PlanCycle,
    RunKeyConflict,
    RunKeyReused,
    UnknownFlow,
    UnknownStep,
    UnreachableGoal,
    UnsupportedMediaType,
)
from counterfoil.domain.flows.requests import FLOW_ID_PATTERN, StartFlow
from counterfoil.server import sse
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS, named_caller
from counterfoil.server.requests import (
    MAX_SEQUENCE,
    EventsPaging,
    FlowFilters,
    ResultWait,
    StreamStart,
    read_model,
    read_optional_model,
    read_query,
)
from counterfoil.server.routes import EngineFacade, HeaderParameter, Route, SuccessAnswer
from counterfoil.wire.flows import (
    FlowDocument,
    FlowRedriven,
    FlowResult,
    FlowReused,
    FlowsPage,
    FlowStarted,
    PlanDocument,
)
from counterfoil.wire.journal import EventsPage

_FLOW_ID = re.compile(FLOW_ID_PATTERN)

EXAMPLE = {
    "goals": ["transcribe"],
    "init": {"audio_url": "https://example.com/talk.mp3"},
    "labels": {"customer": "acme"},
}

_START_ERRORS = (
    InvalidInput,
    UnreachableGoal,
    PlanCycle,
    UnknownStep,
    UnknownFlow,
    FlowExists,
    HookNotFound,
    InvalidPayload,
    RunKeyConflict,
    RunKeyReused,
    UnsupportedMediaType,
    PayloadTooLarge,
)
"""What a start can be refused with."""

_STREAM = {
    200: SuccessAnswer(
        description="`id` is the journal's sequence number, `event` the type, `data` the event as JSON; "
        "after 15 seconds without an event a comment is sent",
        media_type="text/event-stream",
    )
}
_LAST_EVENT_ID = HeaderParameter(
    name="Last-Event-ID",
    description="the last `id` that was received: all later events are sent, without a gap",
    schema={"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE},
)


class CancelFlow(BaseModel):
    """``POST /api/v1/flows/{flow_id}/cancel``; the body is optional."""

    model_config = ConfigDict(extra="forbid")

    compensate: Annotated[StrictBool, Field(description="compensate completed steps that define a compensation")] = (
        False
    )


class RedriveFlowBody(BaseModel):
    """``POST /api/v1/flows/{flow_id}/redrive``; the body is optional."""

    model_config = ConfigDict(extra="forbid")


def flow_routes(engine: EngineFacade) -> list[Route]:
    return [*_command_routes(engine), *_query_routes(engine), *_journal_routes(engine)]


def _command_routes(engine: EngineFacade) -> list[Route]:
    async def start_flow(request: web.Request) -> web.Response:
        document = await engine.flows.start(await read_model(request, StartFlow, InvalidInput), named_caller(request))
        response = json_response(document, 200 if document["reused"] else 201)
        response.headers["Location"] = f"/api/v1/flows/{document['flow_id']}"
        return response

    async def cancel_flow(request: web.Request) -> web.Response:
        flow_id = _flow_id(request)
        wanted = await read_optional_model(request, CancelFlow, InvalidInput)
        return json_response(await engine.flows.cancel(flow_id, compensate=wanted.compensate))

    async def redrive_flow(request: web.Request) -> web.Response:
        flow_id = _flow_id(request)
        await read_optional_model(request, RedriveFlowBody, InvalidInput)
        return json_response(await engine.flows.redrive(flow_id))

    async def plan_flow(request: web.Request) -> web.Response:
        return json_response(await engine.flows.plan(await read_model(request, StartFlow, InvalidInput)))

    return [
        Route(
            method="POST",
            path="/api/v1/plan",
            handler=plan_flow,
            tag="flows",
            summary="Preview the plan of a flow",
            description="Which steps a start with the same body would run, and why; nothing is started.",
            request=StartFlow,
            example=EXAMPLE,
            answers={200: SuccessAnswer(description="the plan", model=PlanDocument)},
            errors=(InvalidInput, UnreachableGoal, PlanCycle, UnknownStep, UnsupportedMediaType, PayloadTooLarge),
        ),
        Route(
            method="POST",
            path="/api/v1/flows",
            handler=start_flow,
            tag="flows",
            summary="Start a flow",
            description="The planned steps are dispatched as soon as their inputs exist. If you supply `flow_id`, "
            "retrying is safe: a duplicate gets `FLOW_EXISTS`. With `idempotency_key` at most one flow with that key "
            "is active: while there is one, `on_conflict` says how this start is answered.",
            request=StartFlow,
            example=EXAMPLE,
            answers={
                201: SuccessAnswer(description="started, and durable", model=FlowStarted),
                200: SuccessAnswer(description="the flow that owns the run key; nothing was started", model=FlowReused),
            },
            errors=_START_ERRORS,
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path="/api/v1/flows/{flow_id}/redrive",
            handler=redrive_flow,
            tag="flows",
            summary="Redrive a failed flow",
            description="The flow continues from the steps that failed, with new work items and new receipts. Results "
            "of completed steps are kept, unless they were compensated.",
            request=RedriveFlowBody,
            request_optional=True,
            answers={200: SuccessAnswer(description="the flow is active again", model=FlowRedriven)},
            errors=(UnknownFlow, FlowNotFailed, RunKeyConflict, InvalidInput, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path="/api/v1/flows/{flow_id}/cancel",
            handler=cancel_flow,
            tag="flows",
            summary="Cancel a flow",
            description="Open work becomes cancelled; a late result is refused with `WORK_CANCELLED`. "
            "Cancelling again changes nothing.",
            request=CancelFlow,
            request_optional=True,
            answers={200: SuccessAnswer(description="the cancelled flow", model=FlowDocument)},
            errors=(UnknownFlow, FlowFinal, InvalidInput, UnsupportedMediaType, PayloadTooLarge),
            roles=OPERATORS,
        ),
    ]


def _query_routes(engine: EngineFacade) -> list[Route]:
    async def list_flows(request: web.Request) -> web.Response:
        wanted = read_query(request, FlowFilters)
        page = await engine.queries.flows(
            status=wanted.status,
            label=wanted.label,
            goal=wanted.goal,
            since_ms=wanted.since,
            run_key=wanted.key,
            cursor=wanted.cursor,
            limit=wanted.limit,
        )
        return json_response(page)

    async def get_flow(request: web.Request) -> web.Response:
        return json_response(await engine.queries.flow(_flow_id(request)))

    async def get_flow_result(request: web.Request) -> web.Response:
        flow_id = _flow_id(request)
        wait = read_query(request, ResultWait).wait
        document, final = await engine.queries.result(flow_id, int(wait * 1000))
        return json_response(document, 200 if final else 202)

    return [
        Route(
            method="GET",
            path="/api/v1/flows",
            handler=list_flows,
            tag="flows",
            summary="List flows, newest first",
            description="One page; `next_cursor` leads to the next page and is null on the last one. Filters combine: "
            "a flow must match each of them. Steps and work items are not included.",
            query=FlowFilters,
            answers={200: SuccessAnswer(description="one page", model=FlowsPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/flows/{flow_id}",
            handler=get_flow,
            tag="flows",
            summary="Show a flow with its steps and work",
            description="The plan, the inputs, and each step with its work items, its error, and the reason if it was "
            "skipped or cancelled.",
            answers={200: SuccessAnswer(description="the flow", model=FlowDocument)},
            errors=(UnknownFlow,),
        ),
        Route(
            method="GET",
            path="/api/v1/flows/{flow_id}/result",
            handler=get_flow_result,
            tag="flows",
            summary="Wait for the result of a flow",
            description="With `wait`, the answer comes when the flow ends, or after that many seconds. Status 200 is "
            "final; 202 means that the flow runs on: `outputs` are those so far, and the request can be repeated.",
            query=ResultWait,
            answers={
                200: SuccessAnswer(description="the flow has ended", model=FlowResult),
                202: SuccessAnswer(description="the flow has not ended within the wait", model=FlowResult),
            },
            errors=(UnknownFlow, InvalidInput),
        ),
    ]


def _journal_routes(engine: EngineFacade) -> list[Route]:
    async def list_flow_events(request: web.Request) -> web.Response:
        flow_id = _flow_id(request)
        paging = read_query(request, EventsPaging)
        return json_response(await engine.queries.events(flow_id, cursor=paging.cursor, limit=paging.limit))

    async def stream_flow(request: web.Request) -> web.StreamResponse:
        return await sse.flow_stream(request, engine, _flow_id(request))

    async def stream_all(request: web.Request) -> web.StreamResponse:
        return await sse.global_stream(request, engine)

    return [
        Route(
            method="GET",
            path="/api/v1/flows/{flow_id}/events",
            handler=list_flow_events,
            tag="journal",
            summary="Read the journal of a flow",
            description="Every change of the flow, oldest first.",
            query=EventsPaging,
            answers={200: SuccessAnswer(description="one page", model=EventsPage)},
            errors=(UnknownFlow, InvalidInput),
        ),
        Route(
            method="GET",
            path="/api/v1/flows/{flow_id}/stream",
            handler=stream_flow,
            tag="journal",
            summary="Follow a flow (server-sent events)",
            description="From the first event of the flow, or after `Last-Event-ID`; ends after the flow's last event.",
            query=StreamStart,
            headers=(_LAST_EVENT_ID,),
            answers=_STREAM,
            errors=(UnknownFlow, InvalidInput),
        ),
        Route(
            method="GET",
            path="/api/v1/stream",
            handler=stream_all,
            tag="journal",
            summary="Follow all flows (server-sent events)",
            description="From now on, or after `Last-Event-ID`; 0 is the beginning of the journal.",
            query=StreamStart,
            headers=(_LAST_EVENT_ID,),
            answers=_STREAM,
            errors=(InvalidInput,),
        ),
    ]


def _flow_id(request: web.Request) -> str:
    """The flow id of the path; an id that no flow can have raises UnknownFlow without a query."""
    flow_id = request.match_info["flow_id"]
    if not _FLOW_ID.fullmatch(flow_id):
        raise UnknownFlow
    return flow_id
