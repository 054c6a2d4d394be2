"""Approvals: what reviewers must know to decide, and the step after a review."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.gate.calls import ApprovalState, RetryContext
from counterfoil.wire.journal import JournalEvent
from counterfoil.wire.policies import DecisionText, MatchedPolicy
from counterfoil.wire.schema import OneOf, Time, Values, described


class ReviewDocument(TypedDict):
    by: Annotated[str, described("the name of the API key")]
    verdict: Annotated[str, OneOf(Literal["approved", "rejected"])]
    comment: str | None
    at: Time


class ApprovalFields(TypedDict):
    """An approval without the history of its work item."""

    approval_id: str
    status: ApprovalState
    flow_id: str
    workflow_id: Annotated[str, described("the same as `flow_id`")]
    step_id: str
    work_id: str
    attempt: int
    arguments: Values | None
    arguments_digest: Annotated[str, described("identifies the arguments that are reviewed")]
    reason: str | None
    severity: str
    policies: list[MatchedPolicy]
    requester: str | None
    approvals_needed: int
    approvals_given: int
    separate_requester: bool
    reviews: list[ReviewDocument]
    requested_at: Time
    expires_at: Time
    decided_at: Time | None


class ApprovalDocument(ApprovalFields):
    """An approval with the history of its work item."""

    history: Annotated[list[JournalEvent], described("every event of the work item so far, oldest first")]


class ApprovalsPage(TypedDict):
    approvals: list[ApprovalDocument]
    next_cursor: str | None


class PendingApproval(ApprovalFields):
    """A pending approval, with the field names that agents use."""

    workflow_name: Annotated[str, described("of a flow that the engine drives: its goals")]
    step_index: Annotated[int, described("the position of the step in its workflow", minimum=0)]
    step_name: str | None
    step_type: str | None

    decision: DecisionText
    decision_reason: str | None
    policies_matched: list[MatchedPolicy]
    step_input: Values | None
    approval_status: ApprovalState
    created_at: Time


class PendingApprovals(TypedDict):
    pending_approvals: list[PendingApproval]
    count: Annotated[int, described("how many approvals this page has", minimum=0)]
    total: Annotated[int, described("how many approvals are pending", minimum=0)]
    limit: int
    offset: int
    has_more: bool


class StepReviewed(TypedDict):
    """A step after a review; either the `approved_` or the `rejected_` fields are there."""

    workflow_id: str
    step_id: str
    decision: DecisionText
    reason: str | None
    status: ApprovalState
    approval_status: ApprovalState
    approval_id: str
    approvals_needed: int
    approvals_given: int
    approved_by: NotRequired[str]
    approved_at: NotRequired[Time]
    rejected_by: NotRequired[str]
    rejected_at: NotRequired[Time]
    policies_matched: list[MatchedPolicy]
    retry_context: RetryContext
