"""How events change the gate's record of a step, and approvals."""

from __future__ import annotations

from counterfoil.domain.journal.event_types import APPROVAL_STATUS_OF, ENDS_WORK, Event, EventType
from counterfoil.domain.records import Approval, Gate
from counterfoil.domain.states import ApprovalStatus, Decision, check_approval_move

RESUMES = "resumes"
"""In the facts of a gate: how often a run was resumed from this step. No decision changes it."""


def gate_from(event: Event) -> Gate:
    """The gate's record after the first call for a step."""
    data = event.data
    decision = Decision(data["decision"])
    return Gate(
        flow_id=event.flow_id,
        step_id=event.step_id or "",
        work_id=event.work_id or "",
        idempotency_key=data["idempotency_key"],
        gate_count=1,
        completion_count=0,
        first_at=event.at,
        last_at=event.at,
        decision=decision,
        standing=decision,
        decision_id=data["decision_id"],
        input_digest=data["input_digest"],
        approval_id=data.get("approval_id"),
        holder=data.get("holder"),
        facts=data["facts"],
    )


def evolve_gate(gate: Gate, event: Event) -> None:
    """Apply an event of a step that an agent runs to the gate's record of it."""
    kind, data = event.type, event.data
    if kind is EventType.GATE_DECIDED:
        gate.gate_count += 1
        gate.last_at = event.at
        gate.decision = gate.standing = Decision(data["decision"])
        gate.holder = data.get("holder")
        if not data["cached"]:
            gate.work_id = event.work_id or ""
            gate.decision_id, gate.input_digest = data["decision_id"], data["input_digest"]
            kept = {RESUMES: gate.facts[RESUMES]} if RESUMES in gate.facts else {}
            gate.approval_id, gate.facts = data.get("approval_id"), {**data["facts"], **kept}
    elif kind is EventType.CHECKPOINT_RESUMED:
        gate.facts = {**gate.facts, RESUMES: gate.facts.get(RESUMES, 0) + 1}
    elif kind is EventType.WORK_SUCCEEDED:
        gate.completion_count += 1
        gate.completed_at, gate.completed_work_id = event.at, event.work_id
    else:
        gate.standing = Decision.ALLOW if kind is EventType.APPROVAL_APPROVED else Decision.BLOCK


def approval_from(event: Event) -> Approval:
    """The approval that an ``approval_requested`` event creates."""
    return Approval(
        flow_id=event.flow_id,
        step_id=event.step_id or "",
        work_id=event.work_id or "",
        attempt=event.attempt or 0,
        status=ApprovalStatus.PENDING,
        requested_at=event.at,
        **event.data,
    )


def evolve_approval(approval: Approval, event: Event) -> None:
    """Apply a review, or an expiry. If the item ends while its approval is pending, the approval becomes void."""
    status = APPROVAL_STATUS_OF.get(event.type)
    if event.type in ENDS_WORK:
        status = ApprovalStatus.VOID
    else:
        approval.reviews = [*approval.reviews, event.data["review"]] if "review" in event.data else approval.reviews
    if status is not None:
        check_approval_move(approval.status, status)
        approval.status, approval.decided_at = status, event.at
