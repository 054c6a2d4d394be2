"""The engine's answers about workflows, approvals, policies and subscriptions, as types."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from counterfoil.client.documents import Event

Decision = Literal["allow", "block", "require_approval"]
ApprovalStatus = Literal["pending", "approved", "rejected", "expired", "void"]


class RetryContext(TypedDict):
    """Which attempt this is, and what became of those before. Always all ten fields."""

    gate_count: int
    completion_count: int
    prior_completion_status: Literal["none", "completed", "gated_not_completed"]
    prior_output_available: bool
    prior_output: dict[str, Any] | None
    prior_completion_at: str | None
    first_attempt_at: str
    last_attempt_at: str
    last_decision: Decision
    idempotency_key: str


class PolicyMatch(TypedDict):
    """A policy that had a say. ``failed``: it could not be evaluated, and therefore blocks."""

    policy_id: str
    policy_name: str
    version: int
    action: Decision
    reason: str | None
    severity: str
    failed: bool


class Claim(TypedDict):
    """Who has a step to himself, and until when."""

    holder: str
    lease_expires_at: str


class ClaimProlonged(TypedDict):
    """``cancel_requested``: the workflow has ended, and nobody wants the result any more."""

    lease_expires_at: str | None
    cancel_requested: bool


class KeyOwner(TypedDict):
    """Who used an idempotency key first."""

    workflow_id: str
    step_id: str


class GateAnswer(TypedDict):
    """The same shape for allow, block and require_approval.

    ``replayed`` and ``owner``: another workflow with the same key has done it, and this is its output.
    """

    decision: Decision
    workflow_id: str
    step_id: str
    decision_id: str
    reason: str | None
    policy_ids: list[str]
    policies_matched: list[PolicyMatch]
    cached: bool
    decision_source: Literal["fresh", "cached"]
    work_id: str
    work_status: str
    attempt: int
    claim: Claim | None
    approval_id: str | None
    approval_status: ApprovalStatus | None
    retry_context: RetryContext
    approval_expires_at: NotRequired[str]
    replayed: NotRequired[bool]
    owner: NotRequired[KeyOwner]


class WorkflowStep(TypedDict):
    """A step as the gate knows it. ``decision``: what the same question would be told now."""

    step_id: str
    step_index: int
    step_name: str
    step_type: str
    decision: Decision
    last_decision: Decision
    decision_id: str
    reason: str | None
    policies_matched: list[PolicyMatch]
    gate_count: int
    completion_count: int
    prior_completion_status: str
    idempotency_key: str
    first_attempt_at: str
    last_attempt_at: str
    completed_at: str | None
    work_id: str
    work_status: str
    attempt: int
    error: dict[str, Any] | None
    claim: Claim | None
    approval_id: str | None
    approval_status: ApprovalStatus | None
    history: NotRequired[list[Event]]


class WorkflowSummary(TypedDict):
    """A workflow as a list shows it."""

    workflow_id: str
    workflow_name: str | None
    source: str | None
    status: Literal["in_progress", "completed", "failed", "aborted"]
    error: dict[str, Any] | None
    metadata: dict[str, Any]
    labels: dict[str, str]
    trace_id: str | None
    total_steps: int | None
    started_by: str | None
    created_at: str
    completed_at: str | None


class Workflow(WorkflowSummary):
    """A workflow with its steps, in the order in which they were asked for."""

    steps: list[WorkflowStep]


class WorkflowPage(TypedDict):
    workflows: list[WorkflowSummary]
    has_more: bool
    next_cursor: str | None


class WorkflowEnded(TypedDict):
    workflow_id: str
    status: str
    message: str


class Approval(TypedDict):
    """What people are asked, with all that they must know to decide. ``history``: the attempts before."""

    approval_id: str
    status: ApprovalStatus
    flow_id: str
    workflow_id: str
    step_id: str
    work_id: str
    attempt: int
    arguments: dict[str, Any] | None
    arguments_digest: str
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
    history: NotRequired[list[Event]]


class ApprovalPage(TypedDict):
    approvals: list[Approval]
    next_cursor: str | None


class StepReviewed(TypedDict):
    """A step after somebody has reviewed it."""

    workflow_id: str
    step_id: str
    decision: Decision
    reason: str | None
    approval_id: str
    approval_status: ApprovalStatus
    approvals_needed: int
    approvals_given: int
    retry_context: RetryContext


class Policy(TypedDict):
    policy_id: str
    name: str
    description: str
    enabled: bool
    priority: int
    match: dict[str, Any]
    conditions: list[dict[str, Any]]
    expression: str | None
    action: dict[str, Any]
    version: int
    source: str
    changed_by: str
    created_at: str
    updated_at: str
    warnings: NotRequired[list[dict[str, str]]]
    """Of ``put_policy`` only: ``code`` and ``message`` of what it will not do as it should."""


class PolicyPage(TypedDict):
    policies: list[Policy]
    next_cursor: str | None


class PolicyTested(TypedDict):
    """What would be said of a call, and what the policies knew of it."""

    decision: Decision
    matched: bool
    reason: str | None
    policies_matched: list[PolicyMatch]
    subject: dict[str, Any]


class Subscription(TypedDict):
    """Who is told of which events. ``signing_secret``: only in the answer to a put; ``note``: why it is disabled."""

    subscription_id: str
    url: str
    events: list[str]
    match: dict[str, Any]
    enabled: bool
    description: str
    note: str | None
    created_at: str
    updated_at: str
    signing_secret: NotRequired[str]


class SubscriptionPage(TypedDict):
    subscriptions: list[Subscription]
    next_cursor: str | None


class Delivery(TypedDict):
    """What a subscriber was not told yet, or could not be told."""

    delivery_id: str
    subscription_id: str
    type: str
    flow_id: str | None
    status: Literal["pending", "given_up"]
    attempts: int
    next_attempt_at: str | None
    note: str | None
    created_at: str
    message: dict[str, Any]


class DeliveryPage(TypedDict):
    deliveries: list[Delivery]
    next_cursor: str | None
