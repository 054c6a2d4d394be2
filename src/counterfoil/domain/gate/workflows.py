"""Creates, ends and resumes workflows: flows whose agent decides which step comes next and when they end."""

from __future__ import annotations

from typing import Any, Literal

from counterfoil.domain.errors import (
    ApprovalPending,
    IdempotencyKeyReused,
    StepRejected,
    WorkflowTerminal,
)
from counterfoil.domain.flows.ending import end_early
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.calls import WORKFLOW_STATUS, workflow
from counterfoil.domain.gate.cooperative import COOPERATIVE_PLAN
from counterfoil.domain.gate.key_scopes import key_id
from counterfoil.domain.gate.requests import CreateWorkflow
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import COOPERATIVE, FlowInputs, KeyOwner
from counterfoil.domain.states import FINAL_FLOWS, WorkStatus

Ending = Literal["completed", "failed", "cancelled"]


def create(view: FlowView, flow_id: str, request: CreateWorkflow, caller: str, now: int) -> tuple[str, bool]:
    """Create a workflow, or find the one that the same request created; returns its id and whether it is new."""
    if request.idempotency_key:
        own = key_id("workflow", request.idempotency_key)
        owner = view.find_key(own)
        if owner is not None:
            if owner.digest != request.content():
                raise IdempotencyKeyReused(workflow_id=owner.flow_id)
            return owner.flow_id, False
        view.give_key(KeyOwner(own, flow_id, None, request.content(), now, None))
    options: dict[str, Any] = {
        "workflow_name": request.workflow_name,
        "source": request.source,
        "trace_id": request.trace_id,
        "total_steps": request.total_steps,
        "started_by": caller,
    }
    if request.idempotency_scope == "global":
        options["key_scope"] = {"window_ms": request.idempotency_window}
    inputs = FlowInputs(flow_id, [], {}, request.metadata, {**request.told(), **request.labels}, options)
    data = {
        "goals": [],
        "plan": COOPERATIVE,
        "steps": {},
        "init": {},
        "metadata": inputs.metadata,
        "labels": inputs.labels,
        "options": options,
    }
    view.record(Event(EventType.FLOW_STARTED, now, flow_id, data=data))
    view.start_with(inputs, COOPERATIVE_PLAN)
    return flow_id, True


def end(view: FlowView, flow_id: str, ending: Ending, reason: str | None, now: int) -> None:
    """End the workflow as its agent says. Open work is cancelled; ending it again in the same way changes nothing."""
    flow = workflow(view, flow_id)
    if flow.status in FINAL_FLOWS:
        status = WORKFLOW_STATUS[flow.status]
        raise WorkflowTerminal(f"the workflow has ended: it is {status}", workflow_id=flow_id, status=status)
    if ending == "completed":
        _refuse_pending(view, flow_id)
    error = (
        None
        if ending != "failed"
        else {"code": "WORKFLOW_FAILED", "message": reason or "the agent reported a failure without a reason"}
    )
    if ending == "cancelled" and reason:
        error = {"code": "WORKFLOW_ABORTED", "message": reason}
    told = {
        "completed": "the workflow was completed",
        "failed": "the workflow failed",
        "cancelled": "the workflow was aborted",
    }
    end_early(view, flow_id, now, ending, told[ending], error, compensate=False)


def resume(view: FlowView, flow_id: str) -> None:
    """Refuse an agent that cannot continue: its workflow has ended, or a step waits for approval or was rejected."""
    flow = workflow(view, flow_id)
    if flow.status in FINAL_FLOWS:
        status = WORKFLOW_STATUS[flow.status]
        raise WorkflowTerminal(f"the workflow has ended: it is {status}", workflow_id=flow_id, status=status)
    refuse_unapproved(view, flow_id)


def refuse_unapproved(view: FlowView, flow_id: str) -> None:
    """Refuse a workflow with a step that waits for an approval, or was rejected."""
    _refuse_pending(view, flow_id)
    rejected = [
        step.step_id
        for step in view.steps_of(flow_id)
        if step.error is not None and step.error.get("code") == "APPROVAL_REJECTED"
    ]
    if rejected:
        raise StepRejected(workflow_id=flow_id, steps=rejected)


def _refuse_pending(view: FlowView, flow_id: str) -> None:
    held = sorted(work.step_id for work in view.open_work(flow_id) if work.status is WorkStatus.HELD)
    if held:
        raise ApprovalPending(workflow_id=flow_id, steps=held)
