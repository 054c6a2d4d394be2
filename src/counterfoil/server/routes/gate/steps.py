"""The gate in front of each step of a workflow, the reports of its outcome, and its reviews."""

from __future__ import annotations

from aiohttp import web

from counterfoil.domain import errors
from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import ApproveStep, CompleteStep, GateRequest, ProlongClaim, RejectStep
from counterfoil.engine.approvals.commands import Verdict
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import OPERATORS, REVIEWERS, caller
from counterfoil.server.control_requests import GateQuery, PendingPaging, read_keyed
from counterfoil.server.requests import read_model, read_optional_model, read_query
from counterfoil.server.routes import EngineFacade, Handler, Route, SuccessAnswer
from counterfoil.server.routes.approvals import REVIEW_ERRORS
from counterfoil.server.routes.gate.paths import BODY_ERRORS, STEP_PATH, step_id_of, workflow_id_of
from counterfoil.wire.approvals import PendingApprovals, StepReviewed
from counterfoil.wire.gate.calls import ClaimProlonged, GateAnswer
from counterfoil.wire.gate.workflows import WorkflowStepDetail

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


def workflow_step_routes(engine: EngineFacade) -> list[Route]:
    return [*_approval_routes(engine), *_gate_routes(engine), *_report_routes(engine)]


def _gate_routes(engine: EngineFacade) -> list[Route]:
    async def gate_step(request: web.Request) -> web.Response:
        workflow_id, step_id = workflow_id_of(request), step_id_of(request)
        options = read_query(request, GateQuery)
        wanted = await read_keyed(request, GateRequest, optional=True)
        include = options.include_prior_output == "true"
        return json_response(
            await engine.workflows.gate(GateCall(workflow_id, step_id, wanted, caller(request), include))
        )

    async def get_workflow_step(request: web.Request) -> web.Response:
        workflow_id, step_id = workflow_id_of(request), step_id_of(request, known=True)
        return json_response(await engine.control_queries.workflow_step(workflow_id, step_id))

    return [
        Route(
            method="POST",
            path=f"{STEP_PATH}/gate",
            handler=gate_step,
            tag="workflows",
            summary="Ask whether a step may be run",
            description="200 for `allow`, `block` and `require_approval` alike. The recorded decision is repeated "
            '(`cached`), unless `"retry_policy": "reevaluate"` asks the policies again.',
            request=GateRequest,
            request_optional=True,
            example=GATE_EXAMPLE,
            query=GateQuery,
            answers={200: SuccessAnswer(description="the decision", model=GateAnswer)},
            errors=(
                errors.UnknownWorkflow,
                errors.WorkflowTerminal,
                errors.IdempotencyKeyMismatch,
                errors.IdempotencyKeyInUse,
                errors.StepInputMismatch,
                errors.StepInFlight,
                errors.ApprovalHold,
                *BODY_ERRORS,
            ),
            roles=OPERATORS,
        ),
        Route(
            method="GET",
            path=STEP_PATH,
            handler=get_workflow_step,
            tag="workflows",
            summary="Show a step with the history of all its decisions and attempts",
            description="Decisions, approvals, attempts and reports, as events of the journal, oldest first. A step "
            "is known from its first gate call on.",
            answers={200: SuccessAnswer(description="the step", model=WorkflowStepDetail)},
            errors=(errors.UnknownWorkflow, errors.UnknownStep),
        ),
    ]


def _report_routes(engine: EngineFacade) -> list[Route]:
    async def complete_step(request: web.Request) -> web.Response:
        workflow_id, step_id = workflow_id_of(request), step_id_of(request)
        report = await read_keyed(request, CompleteStep, optional=True)
        repeated = await engine.workflows.complete_step(workflow_id, step_id, report)
        response = empty_response()
        if repeated:
            response.headers["Idempotent-Replayed"] = "true"
        return response

    async def prolong_claim(request: web.Request) -> web.Response:
        workflow_id, step_id = workflow_id_of(request), step_id_of(request)
        sign = await read_model(request, ProlongClaim, errors.InvalidInput)
        return json_response(await engine.workflows.prolong_claim(workflow_id, step_id, sign))

    return [
        Route(
            method="POST",
            path=f"{STEP_PATH}/complete",
            handler=complete_step,
            tag="workflows",
            summary="Report the outcome of a step",
            description="The first outcome is final. The same again answers 204 with `Idempotent-Replayed: true` and "
            'changes nothing. `{"success": false}` reports a failed attempt: the step stays open.',
            request=CompleteStep,
            request_optional=True,
            example=COMPLETE_EXAMPLE,
            answers={204: SuccessAnswer(description="recorded")},
            errors=(
                errors.UnknownWorkflow,
                errors.UnknownStep,
                errors.WorkflowTerminal,
                errors.IdempotencyKeyMismatch,
                errors.StepNotAllowed,
                errors.CompletionConflict,
                errors.ClaimLost,
                *BODY_ERRORS,
            ),
            roles=OPERATORS,
        ),
        Route(
            method="POST",
            path=f"{STEP_PATH}/heartbeat",
            handler=prolong_claim,
            tag="workflows",
            summary="Prolong a claim",
            description="For the holder that the gate's answer named. It does not count as a gate call.",
            request=ProlongClaim,
            example={"holder": "agent-7", "lease_seconds": 60},
            answers={200: SuccessAnswer(description="the new end of the lease", model=ClaimProlonged)},
            errors=(errors.UnknownWorkflow, errors.UnknownStep, errors.ClaimLost, *BODY_ERRORS),
            roles=OPERATORS,
        ),
    ]


def _approval_routes(engine: EngineFacade) -> list[Route]:
    async def list_pending_approvals(request: web.Request) -> web.Response:
        wanted = read_query(request, PendingPaging)
        return json_response(await engine.control_queries.pending_approvals(limit=wanted.limit, offset=wanted.offset))

    async def approve_step(request: web.Request) -> web.Response:
        said = await read_optional_model(request, ApproveStep, errors.InvalidInput)
        return await review(request, "approve", said.comment)

    async def reject_step(request: web.Request) -> web.Response:
        said = await read_optional_model(request, RejectStep, errors.InvalidInput)
        return await review(request, "reject", said.reason)

    async def review(request: web.Request, verdict: Verdict, comment: str | None) -> web.Response:
        workflow_id, step_id = workflow_id_of(request), step_id_of(request)
        return json_response(
            await engine.approvals.review_step(workflow_id, step_id, caller(request), verdict, comment)
        )

    def route(verb: str, handler: Handler, summary: str, model: type[ApproveStep | RejectStep]) -> Route:
        return Route(
            method="POST",
            path=f"{STEP_PATH}/{verb}",
            handler=handler,
            tag="approvals",
            summary=summary,
            description="The same as for the approval itself, under `/api/v1/approvals`.",
            request=model,
            request_optional=True,
            answers={200: SuccessAnswer(description="the step after the review", model=StepReviewed)},
            errors=(errors.UnknownWorkflow, errors.UnknownStep, errors.NoApprovalNeeded, *REVIEW_ERRORS),
            roles=REVIEWERS,
        )

    return [
        Route(
            method="GET",
            path="/api/v1/workflows/approvals/pending",
            handler=list_pending_approvals,
            tag="approvals",
            summary="List pending approvals",
            description="The pending approvals of `GET /api/v1/approvals`, oldest first, with the field names of gate "
            "answers; also those of flows that the engine drives.",
            query=PendingPaging,
            answers={200: SuccessAnswer(description="oldest first", model=PendingApprovals)},
            errors=(errors.InvalidInput,),
        ),
        route("approve", approve_step, "Approve a step of a workflow", ApproveStep),
        route("reject", reject_step, "Reject a step of a workflow", RejectStep),
    ]
