"""Answers about workflows, approvals and policies, as the OpenAPI document has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from counterfoil.domain.states import ApprovalStatus, Decision, WorkStatus
from counterfoil.server.answers import Document, PutWarning, Values

WorkflowStatus = Literal["in_progress", "completed", "failed", "aborted"]


class RetryContext(Document):
    """Which attempt this is, and what became of those before."""

    gate_count: Annotated[int, Field(ge=0, description="calls of the gate for this step, this one included")]
    completion_count: Annotated[int, Field(ge=0)]
    prior_completion_status: Literal["none", "completed", "gated_not_completed"]
    prior_output_available: bool
    prior_output: Annotated[Values | None, Field(description="only with `include_prior_output=true`")]
    prior_completion_at: str | None
    first_attempt_at: str
    last_attempt_at: str
    last_decision: Decision
    idempotency_key: Annotated[str, Field(description="empty: the step has none")]


class PolicyMatch(Document):
    policy_id: str
    policy_name: str
    version: int
    action: Decision
    reason: str | None
    severity: str
    failed: Annotated[bool, Field(description="it could not be evaluated, and therefore blocks")]


class Claim(Document):
    holder: str
    lease_expires_at: str


class ClaimProlonged(Document):
    lease_expires_at: str | None
    cancel_requested: Annotated[bool, Field(description="the workflow has ended: nobody wants the result any more")]


class GateAnswer(Document):
    """The same shape for allow, block and require_approval."""

    decision: Decision
    workflow_id: str
    step_id: str
    decision_id: Annotated[str, Field(description="of the evaluation; a cached answer repeats it")]
    reason: str | None
    policy_ids: list[str]
    policies_matched: list[PolicyMatch]
    cached: bool
    decision_source: Literal["fresh", "cached"]
    work_id: str
    work_status: Annotated[WorkStatus, Field(description="`succeeded`: this very step is done, with this very input")]
    claim: Claim | None
    approval_id: str | None
    approval_status: ApprovalStatus | None
    retry_context: RetryContext


class WorkflowSummary(Document):
    workflow_id: Annotated[str, Field(examples=["wf_0192f0c1a2b37c4d8e5f60718293a4b5"])]
    workflow_name: str | None
    source: str | None
    status: WorkflowStatus
    error: dict[str, Any] | None
    metadata: Values
    labels: dict[str, str]
    trace_id: str | None
    started_by: str | None
    created_at: str
    started_at: str
    completed_at: str | None


class WorkflowStep(Document):
    """A step as the gate knows it."""

    step_id: str
    step_index: int
    step_name: str
    step_type: str
    decision: Annotated[Decision, Field(description="what the same question would be told now")]
    gate_count: int
    completion_count: int
    prior_completion_status: Literal["completed", "gated_not_completed"]
    idempotency_key: str
    gate_checked_at: str
    completed_at: str | None
    claim: Claim | None
    approval_id: str | None
    approval_status: ApprovalStatus | None


class WorkflowStepDetail(WorkflowStep):
    history: Annotated[list[dict[str, Any]], Field(description="every decision, approval, attempt and report")]


class WorkflowDocument(WorkflowSummary):
    steps: list[WorkflowStep]


class WorkflowsPage(Document):
    workflows: list[WorkflowSummary]
    has_more: bool
    next_cursor: str | None


class WorkflowEnded(Document):
    workflow_id: str
    status: WorkflowStatus
    message: str


class ApprovalDocument(Document):
    """What people are asked, with all that they must know to decide."""

    approval_id: str
    status: ApprovalStatus
    flow_id: str
    step_id: str
    work_id: str
    attempt: int
    arguments: Values | None
    reason: str | None
    severity: str
    policies: list[PolicyMatch]
    requester: str | None
    approvals_needed: int
    approvals_given: int
    separate_requester: bool
    reviews: list[dict[str, Any]]
    requested_at: str
    expires_at: str
    decided_at: str | None


class ApprovalsPage(Document):
    approvals: list[ApprovalDocument]
    next_cursor: str | None


class PendingApprovals(Document):
    pending_approvals: list[ApprovalDocument]
    count: int


class StepReviewed(Document):
    workflow_id: str
    step_id: str
    decision: Decision
    approval_id: str
    approval_status: ApprovalStatus
    retry_context: RetryContext


class PolicyDocument(Document):
    policy_id: str
    name: str
    enabled: bool
    version: int
    source: str
    changed_by: str
    created_at: str
    updated_at: str


class PolicyPut(PolicyDocument):
    warnings: list[PutWarning] = Field(default=[], description="left out if there are none")


class PoliciesPage(Document):
    policies: list[PolicyDocument]
    next_cursor: str | None


class PolicyVersions(Document):
    policy_id: str
    versions: list[dict[str, Any]]


class PolicyTested(Document):
    """What a policy would say."""

    decision: Decision
    matched: bool
    reason: str | None
    policies_matched: list[PolicyMatch]
    subject: Values
