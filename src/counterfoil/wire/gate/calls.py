"""The gate: its answer to an agent, and the claim of a step."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.domain.states import ApprovalStatus
from counterfoil.wire.policies import DecisionText, MatchedPolicy
from counterfoil.wire.schema import OneOf, Time, Values, described
from counterfoil.wire.work import WorkState

ApprovalState = Annotated[str, OneOf(ApprovalStatus)]
PriorCompletion = Annotated[str, OneOf(Literal["none", "completed", "gated_not_completed"])]


class RetryContext(TypedDict):
    """Which attempt this is, and the outcome of the attempts before it. Always all ten fields."""

    gate_count: Annotated[int, described("gate calls for this step, this one included", minimum=0)]
    completion_count: Annotated[int, described("reported completions of this step", minimum=0)]
    prior_completion_status: PriorCompletion
    prior_output_available: bool
    prior_output: Annotated[Values | None, described("only with `include_prior_output=true`")]
    prior_completion_at: Time | None
    first_attempt_at: Time
    last_attempt_at: Time
    last_decision: DecisionText
    idempotency_key: Annotated[str, described("empty: the step has none")]


class ClaimDocument(TypedDict):
    """The agent that alone may run the step, and until when."""

    holder: str
    lease_expires_at: Time


class ClaimProlonged(TypedDict):
    lease_expires_at: Time | None
    cancel_requested: Annotated[bool, described("true: the workflow has ended, and the result is not needed")]


class KeyOwnerDocument(TypedDict):
    """The step that used an idempotency key first."""

    workflow_id: str
    step_id: str


class GateAnswer(TypedDict):
    """The same shape for allow, block and require_approval."""

    decision: DecisionText
    workflow_id: str
    step_id: str
    decision_id: Annotated[str, described("of the evaluation; a cached answer repeats it")]
    reason: str | None
    policy_ids: list[str]
    policies_matched: list[MatchedPolicy]
    cached: bool
    decision_source: Annotated[str, OneOf(Literal["fresh", "cached"])]
    work_id: str
    work_status: Annotated[WorkState, described("`succeeded`: this step is done, with this input")]
    attempt: int
    claim: ClaimDocument | None
    approval_id: str | None
    approval_status: ApprovalState | None
    retry_context: RetryContext
    approval_expires_at: NotRequired[Annotated[Time, described("only where an approval was requested")]]
    replayed: NotRequired[
        Annotated[bool, described("true: another workflow completed the step with the same key; this is its output")]
    ]
    owner: NotRequired[Annotated[KeyOwnerDocument, described("with `replayed`: the step that has the output")]]
