"""Completion of a step by its agent: the first outcome is final, repeating it changes nothing, another is refused."""

from __future__ import annotations

from counterfoil.domain.canonical import same_json
from counterfoil.domain.errors import ClaimLost, CompletionConflict, StepNotAllowed, UnknownStep, WorkflowTerminal
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.calls import WORKFLOW_STATUS, workflow
from counterfoil.domain.gate.decisions import check_key, given_up
from counterfoil.domain.gate.requests import CompleteStep
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.records import Flow, Gate, Work
from counterfoil.domain.states import FINAL_FLOWS, Decision, WorkStatus
from counterfoil.domain.time import optional_rfc3339
from counterfoil.domain.work.decisions import work_event

METADATA = "metadata"
"""Of a completion: the first member of its result, if there is any (``get_gates`` recognizes it there)."""


def complete(view: FlowView, flow_id: str, step_id: str, report: CompleteStep, now: int) -> bool:
    """Record the outcome of a step; True: the same outcome is already recorded, and nothing has changed."""
    flow, gate = workflow(view, flow_id), view.find_gate(flow_id, step_id)
    if gate is None:
        raise UnknownStep("no gate call was made for this step")
    check_key(gate, report.key)
    work = view.work(gate.work_id)
    if _is_repeated(view, gate, work, report):
        return True
    _refuse(flow, gate, work)
    _refuse_stale(gate, work, report)
    if report.success:
        result = {"success": True, "outputs": report.output, "error": None}
        if report.metadata:
            result = {METADATA: report.metadata, **result}
        data = {"result": result, "via": "complete", "usage": report.usage()}
        view.record(work_event(work, EventType.WORK_SUCCEEDED, now, data))
    else:
        _tried(view, work, report, now)
    settle(view, flow_id, now)
    return False


def _is_repeated(view: FlowView, gate: Gate, work: Work, report: CompleteStep) -> bool:
    """Whether the report repeats a recorded outcome: that of this item, or the last one of the step.

    A repeat is accepted even if the workflow has ended or the gate's decision has changed: the first answer may have
    been lost.
    """
    if not report.success:
        error = work.error or {}
        return work.status is WorkStatus.NOT_COMPLETED and error.get("message") == _why(report)
    if work.status is not WorkStatus.SUCCEEDED:
        if gate.completed_work_id is None or gate.standing is Decision.ALLOW:
            return False
        work = view.work(gate.completed_work_id)
    recorded = work.result or {}
    return not recorded.get("pruned") and same_json(recorded.get("outputs") or {}, report.output or {})


def _refuse(flow: Flow, gate: Gate, work: Work) -> None:
    ids = {"workflow_id": gate.flow_id, "step_id": gate.step_id}
    if work.status is WorkStatus.SUCCEEDED:
        raise CompletionConflict(**ids, recorded_at=optional_rfc3339(work.recorded_at))
    if flow.status in FINAL_FLOWS:
        status = WORKFLOW_STATUS[flow.status]
        raise WorkflowTerminal(f"the workflow has ended: it is {status}", **ids, status=status)
    if gate.standing is not Decision.ALLOW:
        raise StepNotAllowed(**ids, decision=gate.standing, approval_id=gate.approval_id)
    if work.status is WorkStatus.CANCELLED:  # and the workflow was resumed since
        told = "the attempt was cancelled when the workflow was aborted; call the gate of the step again"
        raise StepNotAllowed(told, **ids, decision=gate.standing, approval_id=gate.approval_id)


def _refuse_stale(gate: Gate, work: Work, report: CompleteStep) -> None:
    """Refuse a failure from a former holder of the claim: it must not end the attempt of the present holder.

    A success is accepted from any holder, because its effect has happened.
    """
    if not report.success and report.holder is not None and report.holder != gate.holder:
        raise ClaimLost(workflow_id=gate.flow_id, step_id=gate.step_id, work_status=work.status)


def _tried(view: FlowView, work: Work, report: CompleteStep, now: int) -> None:
    """The attempt failed, and the step stays open: its agent calls the gate for another attempt."""
    if work.status is WorkStatus.PENDING:  # approved since the last gate call, and the agent ran it
        event = work_event(work, EventType.WORK_GRANTED, now, {"deadline_at": now})
        event.attempt = work.attempt + 1
        view.record(event)
    event = given_up(view.work(work.work_id), now, "STEP_FAILED", _why(report))
    event.data["delivery"] = "answered"
    event.data["error"]["retriable"] = report.retriable
    event.data["usage"] = report.usage()
    if report.metadata:
        event.data[METADATA] = report.metadata
    if view.work(work.work_id).status is WorkStatus.NOT_COMPLETED:
        event.type = EventType.WORK_POSTPONED  # a second report on an attempt that has ended
    view.record(event)


def _why(report: CompleteStep) -> str:
    return report.error or "the agent reported a failure without an error message"
