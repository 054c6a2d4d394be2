"""Builds the documents of workflows, approvals and policies that the API shows."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from counterfoil.domain.gate.calls import WORKFLOW_STATUS
from counterfoil.domain.gate.checkpoints import is_resumable, resume_count
from counterfoil.domain.gate.completion import METADATA
from counterfoil.domain.gate.decisions import review_reason, told
from counterfoil.domain.gate.retry_context import prior_completion_status
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.records import Approval, Gate
from counterfoil.domain.states import ApprovalStatus, Decision, FlowStatus, WorkStatus
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.engine.queries.documents import fragment
from counterfoil.store.kinds.approvals import APPROVAL_COLUMNS, read_approval
from counterfoil.store.kinds.gate import GATE_COLUMNS, read_gate
from counterfoil.store.protocol import Row
from counterfoil.wire.approvals import ApprovalFields, PendingApproval, ReviewDocument, StepReviewed
from counterfoil.wire.gate.calls import ClaimDocument, RetryContext
from counterfoil.wire.gate.workflows import CheckpointDocument, WorkflowStep, WorkflowSummary
from counterfoil.wire.policies import MatchedPolicy, PolicyDocument, PolicyVersion

_GATE_END = len(GATE_COLUMNS.names)
_APPROVAL_END = 1 + len(APPROVAL_COLUMNS.names)
"""Behind the ordinal and the columns of the approval."""

REVIEW_STATES = (ApprovalStatus.PENDING, ApprovalStatus.APPROVED, ApprovalStatus.REJECTED)
"""The states of an approval that a step shows: clients of agents know no others."""


def listed_workflow(row: Row) -> WorkflowSummary:
    """A workflow in a list: without its steps."""
    _, flow_id, status, created_at, error, finished_at, metadata, labels, options, *_ = row
    facts = parse_json(options)
    return {
        "workflow_id": flow_id,
        "workflow_name": facts.get("workflow_name"),
        "source": facts.get("source"),
        "status": WORKFLOW_STATUS[FlowStatus(status)],
        "error": fragment(error),
        "metadata": fragment(metadata),
        "labels": fragment(labels),
        "trace_id": facts.get("trace_id"),
        "total_steps": facts.get("total_steps"),
        "started_by": facts.get("started_by"),
        "created_at": rfc3339(created_at),
        "started_at": rfc3339(created_at),
        "completed_at": optional_rfc3339(finished_at),
        "finished_at": optional_rfc3339(finished_at),
    }


class GatedStep(NamedTuple):
    """A row of ``get_gates``: the gate of a step, with what belongs to its work items and its approval."""

    gate: Gate
    work_status: str
    deadline_at: int | None
    attempt: int
    error: str | None
    approval_status: str | None
    expires_at: int | None
    reviews: str | None
    completion: str | None
    """The result of the last completion, if that has metadata."""
    ordinal: int
    """Of the last completion; of the present work item, if there is none."""

    @classmethod
    def of(cls, row: Row) -> GatedStep:
        return cls(read_gate(row[:_GATE_END]), *row[_GATE_END:])

    @property
    def work_id(self) -> str:
        """The work item that ``ordinal`` belongs to."""
        return self.gate.completed_work_id or self.gate.work_id

    @property
    def last_review(self) -> dict[str, Any] | None:
        reviews: list[dict[str, Any]] = parse_json(self.reviews) if self.reviews else []
        return reviews[-1] if reviews else None

    @property
    def decision_reason(self) -> str | None:
        reason: str | None = self.gate.facts.get("reason")
        if self.approval_status is None or self.expires_at is None:
            return reason
        return review_reason(ApprovalStatus(self.approval_status), self.expires_at, self.last_review) or reason


def gated_step(row: Row, index: int, now: int) -> WorkflowStep:
    """A step as the gate knows it, with the state of its work item."""
    step = GatedStep.of(row)
    gate, work_status, deadline_at = step.gate, step.work_status, step.deadline_at
    approved = step.last_review if step.approval_status == ApprovalStatus.APPROVED else None
    claim: ClaimDocument | None = None
    if gate.holder is not None and work_status == WorkStatus.ACTIVE and (deadline_at or 0) > now:
        claim = {"holder": gate.holder, "lease_expires_at": rfc3339(deadline_at)}
    return {
        "step_id": gate.step_id,
        "step_index": index,
        "step_name": gate.facts.get("step_name", ""),
        "step_type": gate.facts.get("step_type", ""),
        "decision": gate.standing,
        "last_decision": gate.decision,
        "decision_id": gate.decision_id,
        "reason": gate.facts.get("reason"),
        "decision_reason": step.decision_reason,
        "policies_matched": gate.facts.get("policies", []),
        "gate_count": gate.gate_count,
        "completion_count": gate.completion_count,
        # as the next gate call will show it
        "prior_completion_status": prior_completion_status(gate.gate_count + 1, gate.completion_count),
        "idempotency_key": gate.idempotency_key,
        "gate_checked_at": rfc3339(gate.last_at),
        "first_attempt_at": rfc3339(gate.first_at),
        "last_attempt_at": rfc3339(gate.last_at),
        "completed_at": optional_rfc3339(gate.completed_at),
        "metadata": None if step.completion is None else parse_json(step.completion)[METADATA],
        "work_id": gate.work_id,
        "work_status": work_status,
        "attempt": step.attempt,
        "error": fragment(step.error),
        "claim": claim,
        "approval_id": gate.approval_id,
        "approval_status": step.approval_status if step.approval_status in REVIEW_STATES else None,
        "approved_by": None if approved is None else approved["by"],
        "approved_at": None if approved is None else approved["at"],
    }


def checkpoint_documents(steps: list[GatedStep], status: FlowStatus, *, pruned: bool) -> list[CheckpointDocument]:
    """The checkpoints of a workflow: its steps, and whether a run can be resumed from each."""
    approvals = {step.approval_status for step in steps}
    return [
        {
            "id": step.ordinal,
            "workflow_id": step.gate.flow_id,
            "step_id": step.gate.step_id,
            "step_index": index,
            "step_name": step.gate.facts.get("step_name", ""),
            "step_type": step.gate.facts.get("step_type", ""),
            "checkpoint_type": "step_gate" if step.gate.approval_id is None else "approval_boundary",
            "gate_decision": step.gate.standing,
            "gate_reason": step.decision_reason,
            "is_resumable": is_resumable(step.gate, status, approvals, pruned=pruned),
            "resume_count": resume_count(step.gate),
            "created_at": rfc3339(step.gate.first_at),
            "completed_at": optional_rfc3339(step.gate.completed_at),
        }
        for index, step in enumerate(steps)
    ]


def pending_approval(row: Row) -> PendingApproval:
    """A pending approval, with the field names that agents use."""
    approval = approval_fields(read_approval(row[1:_APPROVAL_END]))
    options, goals, facts, index = row[_APPROVAL_END:]
    step = {} if facts is None else parse_json(facts)
    return {
        **approval,
        "workflow_name": parse_json(options).get("workflow_name") or ", ".join(parse_json(goals)),
        "step_index": index,
        "step_name": step.get("step_name"),
        "step_type": step.get("step_type"),
        "decision": Decision.REQUIRE_APPROVAL,
        "decision_reason": approval["reason"],
        "policies_matched": approval["policies"],
        "step_input": approval["arguments"],
        "approval_status": approval["status"],
        "created_at": approval["requested_at"],
    }


def approval_fields(approval: Approval) -> ApprovalFields:
    """What a reviewer must know: what would be done, why an approval is needed, and until when."""
    agreed = sum(review["verdict"] == "approved" for review in approval.reviews)
    return {
        "approval_id": approval.approval_id,
        "status": approval.status,
        "flow_id": approval.flow_id,
        "workflow_id": approval.flow_id,
        "step_id": approval.step_id,
        "work_id": approval.work_id,
        "attempt": approval.attempt,
        "arguments": approval.arguments,
        "arguments_digest": approval.digest,
        "reason": approval.reason,
        "severity": approval.severity,
        "policies": cast("list[MatchedPolicy]", approval.policies),
        "requester": approval.requester,
        "approvals_needed": approval.approvals,
        "approvals_given": agreed,
        "separate_requester": approval.separate_requester,
        "reviews": cast("list[ReviewDocument]", approval.reviews),
        "requested_at": rfc3339(approval.requested_at),
        "expires_at": rfc3339(approval.expires_at),
        "decided_at": optional_rfc3339(approval.decided_at),
    }


def reviewed_step(gate: Gate, approval: Approval, context: RetryContext) -> StepReviewed:
    """A step of a workflow after its last review."""
    last = approval.reviews[-1]
    side = "approved" if last["verdict"] == "approved" else "rejected"
    document = {
        "workflow_id": gate.flow_id,
        "step_id": gate.step_id,
        "decision": gate.standing,
        "reason": told(approval) or approval.reason,
        "status": approval.status,
        "approval_status": approval.status,
        "approval_id": approval.approval_id,
        "approvals_needed": approval.approvals,
        "approvals_given": sum(review["verdict"] == "approved" for review in approval.reviews),
        f"{side}_by": last["by"],
        f"{side}_at": last["at"],
        "policies_matched": approval.policies,
        "retry_context": context,
    }
    return cast(StepReviewed, document)


def policy_document(policy: KeptPolicy) -> PolicyDocument:
    definition = {} if policy.definition is None else policy.definition.model_dump(mode="json")
    document = {
        "policy_id": policy.policy_id,
        **definition,
        "version": policy.version,
        "source": policy.source,
        "changed_by": policy.changed_by,
        "created_at": rfc3339(policy.created_at),
        "updated_at": rfc3339(policy.updated_at),
    }
    return cast(PolicyDocument, document)


def policy_version_document(row: Row) -> PolicyVersion:
    policy_id, version, definition, source, changed_by, at = row
    return {
        "policy_id": policy_id,
        "version": version,
        "definition": fragment(definition),
        "deleted": definition is None,
        "source": source,
        "changed_by": changed_by,
        "at": rfc3339(at),
    }
