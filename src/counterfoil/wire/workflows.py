"""Workflows: runs of agents, with their steps as the gate knows them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.errors import Failure
from counterfoil.wire.gate import ApprovalState, ClaimDocument, PriorCompletion
from counterfoil.wire.journal import JournalEvent
from counterfoil.wire.policies import DecisionText, MatchedPolicy
from counterfoil.wire.schema import OneOf, Time, Values, described, keyword
from counterfoil.wire.work import WorkState

WorkflowState = Annotated[str, OneOf(Literal["in_progress", "completed", "failed", "aborted"])]


class WorkflowSummary(TypedDict):
    """A workflow as a list shows it: without its steps."""

    workflow_id: Annotated[str, keyword(examples=["wf_0192f0c1a2b37c4d8e5f60718293a4b5"])]
    workflow_name: str | None
    source: str | None
    status: WorkflowState
    error: Failure | None
    metadata: Values
    labels: dict[str, str]
    trace_id: str | None
    total_steps: int | None
    started_by: str | None
    created_at: Time
    started_at: Time
    completed_at: Time | None
    finished_at: Time | None


class WorkflowStep(TypedDict):
    """A step as the gate knows it."""

    step_id: str
    step_index: int
    step_name: str
    step_type: str
    decision: Annotated[DecisionText, described("the answer that the same gate call would get now")]
    last_decision: DecisionText
    decision_id: str
    reason: str | None
    policies_matched: list[MatchedPolicy]
    gate_count: int
    completion_count: int
    prior_completion_status: Annotated[PriorCompletion, described("as the next gate call will show it")]
    idempotency_key: str
    gate_checked_at: Time
    first_attempt_at: Time
    last_attempt_at: Time
    completed_at: Time | None
    work_id: str
    work_status: WorkState
    attempt: int
    error: Failure | None
    claim: ClaimDocument | None
    approval_id: str | None
    approval_status: ApprovalState | None


class WorkflowStepDetail(WorkflowStep):
    workflow_id: str
    history: Annotated[list[JournalEvent], described("every decision, approval, attempt and report, oldest first")]


class WorkflowDocument(WorkflowSummary):
    """A workflow with its steps, in the order of their first gate calls."""

    current_step_index: int
    steps: list[WorkflowStep]


class WorkflowsPage(TypedDict):
    workflows: list[WorkflowSummary]
    limit: int
    has_more: bool
    next_cursor: str | None


class WorkflowEnded(TypedDict):
    """The state of the workflow after the call; a resumed workflow has neither `reason` nor `finished_at`."""

    workflow_id: str
    status: WorkflowState
    message: str
    reason: NotRequired[str | None]
    finished_at: NotRequired[Time]
