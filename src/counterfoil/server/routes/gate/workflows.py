"""``/api/v1/workflows``: runs of agents; the routes of their steps are in workflow_steps.py."""

from __future__ import annotations

from typing import NamedTuple

from aiohttp import web

from counterfoil.domain import errors
from counterfoil.domain.gate.requests import (
    CreateWorkflow,
    EndWorkflow,
)
from counterfoil.domain.gate.workflows import Ending
from counterfoil.server.answers import json_response
from counterfoil.server.auth import OPERATORS, caller
from counterfoil.server.control_requests import WorkflowFilters, read_keyed
from counterfoil.server.requests import read_optional_model, read_query
from counterfoil.server.routes import EngineFacade, Handler, Route, SuccessAnswer
from counterfoil.server.routes.gate.paths import BODY_ERRORS, PATH, workflow_id_of
from counterfoil.wire.gate.workflows import WorkflowDocument, WorkflowEnded, WorkflowsPage

WORKFLOW_EXAMPLE = {"workflow_name": "refund", "source": "langgraph", "metadata": {"customer": "acme"}}


def workflow_routes(engine: EngineFacade) -> list[Route]:
    return [*_workflow_routes(engine), *_ending_routes(engine)]


def _workflow_routes(engine: EngineFacade) -> list[Route]:
    async def create_workflow(request: web.Request) -> web.Response:
        wanted = await read_keyed(request, CreateWorkflow)
        document, created = await engine.workflows.create(wanted, caller(request))
        response = json_response(document, 201 if created else 200)
        response.headers["Location"] = f"/api/v1/workflows/{document['workflow_id']}"
        if not created:
            response.headers["Idempotent-Replayed"] = "true"
        return response

    async def list_workflows(request: web.Request) -> web.Response:
        wanted = read_query(request, WorkflowFilters)
        return json_response(await engine.control_queries.workflows(**wanted.model_dump()))

    async def get_workflow(request: web.Request) -> web.Response:
        return json_response(await engine.control_queries.workflow(workflow_id_of(request)))

    return [
        Route(
            method="POST",
            path="/api/v1/workflows",
            handler=create_workflow,
            tag="workflows",
            summary="Create a workflow",
            description="With an `idempotency_key`, the same key and the same body return the same workflow.",
            request=CreateWorkflow,
            example=WORKFLOW_EXAMPLE,
            answers={
                201: SuccessAnswer(description="created", model=WorkflowDocument),
                200: SuccessAnswer(
                    description="the workflow that the same request created before", model=WorkflowDocument
                ),
            },
            errors=(*BODY_ERRORS, errors.IdempotencyKeyReused),
            roles=OPERATORS,
        ),
        Route(
            method="GET",
            path="/api/v1/workflows",
            handler=list_workflows,
            tag="workflows",
            summary="List workflows, newest first",
            description="One page, without the steps; `next_cursor` leads to the next page. Filters combine: a "
            "workflow must match each of them.",
            query=WorkflowFilters,
            answers={200: SuccessAnswer(description="a page of workflows", model=WorkflowsPage)},
            errors=(errors.InvalidInput,),
        ),
        Route(
            method="GET",
            path=PATH,
            handler=get_workflow,
            tag="workflows",
            summary="Show a workflow with its steps",
            description="Each step with its last decision, the state of its work, its approval and its claim, in the "
            "order of the first gate calls.",
            answers={200: SuccessAnswer(description="the workflow", model=WorkflowDocument)},
            errors=(errors.UnknownWorkflow,),
        ),
    ]


class _End(NamedTuple):
    verb: str
    ending: Ending
    summary: str
    description: str
    errors: tuple[type[errors.CounterfoilError], ...]


_ENDS = (
    _End(
        "complete",
        "completed",
        "Complete a workflow",
        "Steps that were allowed and never reported are cancelled.",
        (errors.ApprovalPending,),
    ),
    _End("fail", "failed", "Fail a workflow", "Its open steps are cancelled.", ()),
    _End("abort", "cancelled", "Abort a workflow", "Its open steps are cancelled.", ()),
)


def _ending_routes(engine: EngineFacade) -> list[Route]:
    async def resume_workflow(request: web.Request) -> web.Response:
        await read_optional_model(request, EndWorkflow, errors.InvalidInput)
        return json_response(await engine.workflows.resume(workflow_id_of(request)))

    def end_with(ending: Ending) -> Handler:
        async def end_workflow(request: web.Request) -> web.Response:
            said = await read_optional_model(request, EndWorkflow, errors.InvalidInput)
            return json_response(await engine.workflows.end(workflow_id_of(request), ending, said.reason))

        return end_workflow

    def route(end: _End) -> Route:
        handler = end_with(end.ending)
        handler.__name__ = f"{end.verb}_workflow"
        return Route(
            method="POST",
            path=f"{PATH}/{end.verb}",
            handler=handler,
            tag="workflows",
            summary=end.summary,
            description=end.description,
            request=EndWorkflow,
            request_optional=True,
            answers={200: SuccessAnswer(description="the workflow has ended", model=WorkflowEnded)},
            errors=(errors.UnknownWorkflow, errors.WorkflowTerminal, *end.errors, *BODY_ERRORS),
            roles=OPERATORS,
        )

    return [
        *map(route, _ENDS),
        Route(
            method="POST",
            path=f"{PATH}/resume",
            handler=resume_workflow,
            tag="workflows",
            summary="Check whether a workflow can continue",
            description="Nothing changes. The request is refused if the workflow has ended, has a pending approval, or "
            "has a rejected step.",
            request=EndWorkflow,
            request_optional=True,
            answers={200: SuccessAnswer(description="the workflow can continue", model=WorkflowEnded)},
            errors=(
                errors.UnknownWorkflow,
                errors.WorkflowTerminal,
                errors.ApprovalPending,
                errors.StepRejected,
                *BODY_ERRORS,
            ),
            roles=OPERATORS,
        ),
    ]
