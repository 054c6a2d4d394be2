"""Workflows: runs of agents, with their steps as the gate knows them."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.errors import Failure
from counterfoil.wire.gate.calls import ClaimDocument, PriorCompletion
from counterfoil.wire.journal import JournalEvent
from counterfoil.wire.policies import DecisionText, MatchedPolicy
from counterfoil.wire.schema import OneOf, Time, Values, described, keyword
from counterfoil.wire.work import WorkState

ReviewState = Annotated[str, OneOf(Literal["pending", "approved", "rejected"])]
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
    decision_reason: Annotated[str | None, described("the reason of `decision`: of policies, or of reviewers")]
    policies_matched: list[MatchedPolicy]
    gate_count: int
    completion_count: int
    prior_completion_status: Annotated[PriorCompletion, described("as the next gate call will show it")]
    idempotency_key: str
    gate_checked_at: Time
    first_attempt_at: Time
    last_attempt_at: Time
    completed_at: Time | None
    metadata: Annotated[Values | None, described("of the last completion; null: it had none, or there is none")]
    work_id: str
    work_status: WorkState
    attempt: int
    error: Failure | None
    claim: ClaimDocument | None
    approval_id: str | None
    approval_status: Annotated[
        ReviewState | None,
        described("null: no approval was requested, or it has expired or become void (see the approval itself)"),
    ]
    approved_by: Annotated[str | None, described("the name of the API key that approved last")]
    approved_at: Time | None


class WorkflowStepDetail(WorkflowStep):
    workflow_id: str
    history: Annotated[list[JournalEvent], described("every decision, approval, attempt and report, oldest first")]


class WorkflowDocument(WorkflowSummary):
    """A workflow with its steps, in the order of their first gate calls."""

    current_step_index: int
    steps: list[WorkflowStep]


class WorkflowsPage(TypedDict):
    workflows: list[WorkflowSummary]
    total: Annotated[int, described("how many workflows match the filters, on all pages", minimum=0)]
    limit: int
    offset: int
    has_more: bool
    next_cursor: str | None


class CheckpointDocument(TypedDict):
    """A gated step, and whether a run can be resumed from it."""

    id: Annotated[int, described("for `.../checkpoints/{checkpoint_id}/resume`; a new completion has a new one")]
    workflow_id: str
    step_id: str
    step_index: int
    step_name: str
    step_type: str
    checkpoint_type: Annotated[str, OneOf(Literal["step_gate", "approval_boundary"])]
    gate_decision: DecisionText
    gate_reason: str | None
    is_resumable: Annotated[bool, described("the step is completed, and its workflow can continue behind it")]
    resume_count: Annotated[int, described("how often a run was resumed from this step", minimum=0)]
    created_at: Annotated[Time, described("the first gate call of the step")]
    completed_at: Time | None


class CheckpointsPage(TypedDict):
    workflow_id: str
    checkpoints: Annotated[list[CheckpointDocument], described("in the order of the steps")]


class CheckpointResumed(TypedDict):
    """Where the run continues: with the step that follows the completed one."""

    workflow_id: str
    status: WorkflowState
    checkpoint_id: int
    resumed_from_checkpoint: Annotated[str, described("the id of the completed step")]
    resumed_from_index: int
    new_decision: DecisionText
    decision_source: Annotated[
        str, OneOf(Literal["fresh", "cached"]), described("`cached`: the completed step is not evaluated again")
    ]
    resume_count: Annotated[int, described("how often a run was resumed from this step", minimum=1)]
    reopened: Annotated[bool, described("true: the workflow was aborted, and is in progress again")]
    message: str


class WorkflowEnded(TypedDict):
    """The state of the workflow after the call; a resumed workflow has neither `reason` nor `finished_at`."""

    workflow_id: str
    status: WorkflowState
    message: str
    reason: NotRequired[str | None]
    finished_at: NotRequired[Time]
