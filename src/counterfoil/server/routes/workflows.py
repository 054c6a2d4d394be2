"""``/api/v1/workflows``: flows that an agent runs itself, and the gate in front of each of their steps."""

from __future__ import annotations

import re
from typing import NamedTuple

from aiohttp import web

from counterfoil.domain import errors
from counterfoil.domain.flows import FLOW_ID_PATTERN
from counterfoil.domain.gate_calls import GateCall
from counterfoil.domain.gate_requests import (
    Approve,
    CompleteStep,
    CreateWorkflow,
    EndWorkflow,
    GateRequest,
    ProlongClaim,
    Reject,
)
from counterfoil.domain.steps import STEP_ID_PATTERN
from counterfoil.engine.approvals import Verdict
from counterfoil.engine.control import Ending
from counterfoil.server import control_answers as answers
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import OPERATORS, REVIEWERS, caller
from counterfoil.server.control_requests import GateOptions, PendingLimit, WorkflowFilters, read_keyed
from counterfoil.server.requests import read_model, read_optional_model, read_query
from counterfoil.server.routes import Answer, EngineFacade, Handler, Route
from counterfoil.server.routes.approvals import REVIEW_ERRORS

_WORKFLOW_ID = re.compile(FLOW_ID_PATTERN)
_STEP_ID = re.compile(STEP_ID_PATTERN)
_PATH = "/api/v1/workflows/{workflow_id}"
_STEP_PATH = f"{_PATH}/steps/{{step_id}}"
_BODY_ERRORS = (errors.InvalidInput, errors.BadRequest, errors.UnsupportedMediaType, errors.PayloadTooLarge)

WORKFLOW_EXAMPLE = {"workflow_name": "refund", "source": "langgraph", "metadata": {"customer": "acme"}}
GATE_EXAMPLE = {
    "step_name": "Wire transfer",
    "step_type": "tool_call",
    "step_input": {"amount": 100},
    "idempotency_key": "payment:wire:acct4471:invoice-7721",
    "claim": {"lease_seconds": 60},
}
COMPLETE_EXAMPLE = {
    "output": {"transfer_id": "txn-88f210"},
    "idempotency_key": "payment:wire:acct4471:invoice-7721",
}


def workflow_routes(engine: EngineFacade) -> list[Route]:
    return [
        *_approval_routes(engine),
        *_workflow_routes(engine),
        *_ending_routes(engine),
        *_step_routes(engine),
        *_claim_routes(engine),
    ]


def _workflow_routes(engine: EngineFacade) -> list[Route]:
    async def create_workflow(request: web.Request) -> web.Response:
        wanted = await read_keyed(request, CreateWorkflow)
        document, created = await engine.control.create_workflow(wanted, caller(request))
        response = json_response(document, 201 if created else 200)
        response.headers["Location"] = f"/api/v1/workflows/{document['workflow_id']}"
        if not created:
            response.headers["Idempotent-Replayed"] = "true"
        return response

    async def list_workflows(request: web.Request) -> web.Response:
        wanted = read_query(request, WorkflowFilters)
        return json_response(await engine.control.queries.workflows(**wanted.model_dump()))

    async def get_workflow(request: web.Request) -> web.Response:
        return json_response(await engine.control.queries.workflow(_workflow_id(request)))

    return [
        Route(
            method="POST",
            path="/api/v1/workflows",
            handler=create_workflow,
            tag="workflows",
            summary="Begin a workflow",
            description="With an `idempotency_key`, the same key and the same body give the same workflow.",
            request=CreateWorkflow,
            example=WORKFLOW_EXAMPLE,
            answers={
                201: Answer(description="begun", model=answers.WorkflowDocument),
                200: Answer(description="the one that the same request began before", model=answers.WorkflowDocument),
            },
            errors=(*_BODY_ERRORS, errors.IdempotencyKeyReused),
            roles=OPERATORS,
        ),
        Route(
            method="GET",
            path="/api/v1/workflows",
            handler=list_workflows,
            tag="workflows",
            summary="List workflows, newest first",
            query=WorkflowFilters,
            answers={200: Answer(description="a page of workflows", model=answers.WorkflowsPage)},
            errors=(errors.InvalidInput,),
        ),
        Route(
            method="GET",
            path=_PATH,
            handler=get_workflow,
            tag="workflows",
            summary="Show a workflow with its steps",
            answers={200: Answer(description="the workflow", model=answers.WorkflowDocument)},
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
        "Say that a workflow is done",
        "Steps that were allowed and never reported are cancelled.",
        (errors.ApprovalPending,),
    ),
    _End("fail", "failed", "Say that a workflow has failed", "What is open of it is cancelled.", ()),
    _End("abort", "cancelled", "Give a workflow up", "What is open of it is cancelled.", ()),
)


def _ending_routes(engine: EngineFacade) -> list[Route]:
    async def resume_workflow(request: web.Request) -> web.Response:
        await read_optional_model(request, EndWorkflow, errors.InvalidInput)
        return json_response(await engine.control.resume_workflow(_workflow_id(request)))

    def end_with(ending: Ending) -> Handler:
        async def end_workflow(request: web.Request) -> web.Response:
            said = await read_optional_model(request, EndWorkflow, errors.InvalidInput)
            return json_response(await engine.control.end_workflow(_workflow_id(request), ending, said.reason))

        return end_workflow

    def route(end: _End) -> Route:
        handler = end_with(end.ending)
        handler.__name__ = f"{end.verb}_workflow"
        return Route(
            method="POST",
            path=f"{_PATH}/{end.verb}",
            handler=handler,
            tag="workflows",
            summary=end.summary,
            description=end.description,
            request=EndWorkflow,
            request_optional=True,
            answers={200: Answer(description="it has ended", model=answers.WorkflowEnded)},
            errors=(errors.UnknownWorkflow, errors.WorkflowTerminal, *end.errors, *_BODY_ERRORS),
            roles=OPERATORS,
        )

    return [
        *map(route, _ENDS),
        Route(
            method="POST",
            path=f"{_PATH}/resume",
            handler=resume_workflow,
            tag="workflows",
            summary="Ask whether a workflow can go on",
            description="It changes nothing: it is refused if the workflow has ended, waits for people, or has a step "
            "that they rejected.",
            request=EndWorkflow,
            request_optional=True,
            answers={200: Answer(description="it can", model=answers.WorkflowEnded)},
            errors=(
                errors.UnknownWorkflow,
                errors.WorkflowTerminal,
                errors.ApprovalPending,
                errors.StepRejected,
                *_BODY_ERRORS,
            ),
            roles=OPERATORS,
        ),
    ]


def _step_routes(engine: EngineFacade) -> list[Route]:
    async def gate_step(request: web.Request) -> web.Response:
        workflow_id, step_id = _workflow_id(request), _step_id(request)
        options = read_query(request, GateOptions)
        wanted = await read_keyed(request, GateRequest, optional=True)
        include = options.include_prior_output == "true"
        return json_response(
            await engine.control.gate(GateCall(workflow_id, step_id, wanted, caller(request), include))
        )

    async def complete_step(request: web.Request) -> web.Response:
        workflow_id, step_id = _workflow_id(request), _step_id(request)
        report = await read_keyed(request, CompleteStep, optional=True)
        repeated = await engine.control.complete_step(workflow_id, step_id, report)
        response = empty_response()
        if repeated:
            response.headers["Idempotent-Replayed"] = "true"
        return response

    return [
        Route(
            method="POST",
            path=f"{_STEP_PATH}/gate",
            handler=gate_step,
            tag="workflows",
            summary="Ask whether a step may be run",
            description="200 for `allow`, `block` and `require_approval` alike. The recorded decision is repeated "
            '(`cached`), unless `"retry_policy": "reevaluate"` asks the policies again.',
            request=GateRequest,
            request_optional=True,
            example=GATE_EXAMPLE,
            query=GateOptions,
            answers={200: Answer(description="the decision", model=answers.GateAnswer)},
            errors=(
                errors.UnknownWorkflow,
                errors.WorkflowTerminal,
                errors.IdempotencyKeyMismatch,
                errors.IdempotencyKeyInUse,
                errors.StepInputMismatch,
                errors.StepInFlight,
                errors.ApprovalHold,
                *_BODY_ERRORS,
            ),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path=f"{_STEP_PATH}/complete",
            handler=complete_step,
            tag="workflows",
            summary="Report what became of a step",
            description="The first outcome is final. The same again answers 204 with `Idempotent-Replayed: true` and "
            'changes nothing. `{"success": false}` reports an attempt that failed: the step is still to be done.',
            request=CompleteStep,
            request_optional=True,
            example=COMPLETE_EXAMPLE,
            answers={204: Answer(description="recorded")},
            errors=(
                errors.UnknownWorkflow,
                errors.UnknownStep,
                errors.WorkflowTerminal,
                errors.IdempotencyKeyMismatch,
                errors.StepNotAllowed,
                errors.CompletionConflict,
                *_BODY_ERRORS,
            ),
            roles=OPERATORS,
        ),
    ]


def _claim_routes(engine: EngineFacade) -> list[Route]:
    async def prolong_claim(request: web.Request) -> web.Response:
        workflow_id, step_id = _workflow_id(request), _step_id(request)
        sign = await read_model(request, ProlongClaim, errors.InvalidInput)
        return json_response(await engine.control.prolong_claim(workflow_id, step_id, sign))

    async def get_workflow_step(request: web.Request) -> web.Response:
        return json_response(await engine.control.queries.workflow_step(_workflow_id(request), _step_id(request)))

    return [
        Route(
            method="POST",
            path=f"{_STEP_PATH}/heartbeat",
            handler=prolong_claim,
            tag="workflows",
            summary="Prolong a claim",
            description="For the holder that the gate's answer named. It is no call of the gate, and counts as none.",
            request=ProlongClaim,
            example={"holder": "agent-7", "lease_seconds": 60},
            answers={200: Answer(description="until when", model=answers.ClaimProlonged)},
            errors=(errors.UnknownWorkflow, errors.UnknownStep, errors.ClaimLost, *_BODY_ERRORS),
            roles=OPERATORS,
        ),
        Route(
            method="GET",
            path=_STEP_PATH,
            handler=get_workflow_step,
            tag="workflows",
            summary="Show a step with the history of all its decisions and attempts",
            answers={200: Answer(description="the step", model=answers.WorkflowStepDetail)},
            errors=(errors.UnknownWorkflow, errors.UnknownStep),
        ),
    ]


def _approval_routes(engine: EngineFacade) -> list[Route]:
    async def list_pending_approvals(request: web.Request) -> web.Response:
        return json_response(await engine.control.queries.pending_approvals(read_query(request, PendingLimit).limit))

    async def approve_step(request: web.Request) -> web.Response:
        said = await read_optional_model(request, Approve, errors.InvalidInput)
        return await review(request, "approve", said.comment)

    async def reject_step(request: web.Request) -> web.Response:
        said = await read_optional_model(request, Reject, errors.InvalidInput)
        return await review(request, "reject", said.reason)

    async def review(request: web.Request, verdict: Verdict, comment: str | None) -> web.Response:
        workflow_id, step_id = _workflow_id(request), _step_id(request)
        return json_response(await engine.control.review_step(workflow_id, step_id, caller(request), verdict, comment))

    def route(verb: str, handler: Handler, summary: str, model: type[Approve | Reject]) -> Route:
        return Route(
            method="POST",
            path=f"{_STEP_PATH}/{verb}",
            handler=handler,
            tag="approvals",
            summary=summary,
            description="The same as for the approval itself, under `/api/v1/approvals`.",
            request=model,
            request_optional=True,
            answers={200: Answer(description="the step as it is now", model=answers.StepReviewed)},
            errors=(errors.UnknownWorkflow, errors.UnknownStep, errors.NoApprovalNeeded, *REVIEW_ERRORS),
            roles=REVIEWERS,
        )

    return [
        Route(
            method="GET",
            path="/api/v1/workflows/approvals/pending",
            handler=list_pending_approvals,
            tag="approvals",
            summary="List what waits for people",
            query=PendingLimit,
            answers={200: Answer(description="oldest first", model=answers.PendingApprovals)},
            errors=(errors.InvalidInput,),
        ),
        route("approve", approve_step, "Agree to a step of a workflow", Approve),
        route("reject", reject_step, "Refuse a step of a workflow", Reject),
    ]


def _workflow_id(request: web.Request) -> str:
    """The workflow id of the path; one that no workflow can have is not worth a query."""
    workflow_id = request.match_info["workflow_id"]
    if not _WORKFLOW_ID.fullmatch(workflow_id):
        raise errors.UnknownWorkflow
    return workflow_id


def _step_id(request: web.Request) -> str:
    step_id = request.match_info["step_id"]
    if not _STEP_ID.fullmatch(step_id):
        fault = "must be 1 to 128 letters, digits, or . _ ~ : - and begin with a letter or digit"
        raise errors.InvalidInput("the step id is not valid", errors=[{"place": "step_id", "message": fault}])
    return step_id
