"""Policies: their definitions, their versions, and what they decided about a call."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from counterfoil.domain.states import Decision
from counterfoil.wire.schema import OneOf, Time, Values, described
from counterfoil.wire.steps import ApprovalTermsDocument, PutWarning

DecisionText = Annotated[str, OneOf(Decision)]


class MatchedPolicy(TypedDict):
    """A policy that matched a call, with what it demands."""

    policy_id: str
    policy_name: str
    version: int
    action: DecisionText
    reason: str | None
    severity: str
    failed: Annotated[bool, described("true: the policy could not be evaluated, and therefore blocks")]


class PolicyMatchDocument(TypedDict):
    """Which steps a policy applies to: every given field must match."""

    flow_labels: dict[str, str]
    step_id: str | None
    step_type: str | None


class ConditionDocument(TypedDict):
    field: str
    operator: str
    value: Any


class PolicyActionDocument(ApprovalTermsDocument):
    """What is demanded of a call that the policy matches; the terms apply to `require_approval` only."""

    type: DecisionText


class PolicyDocument(TypedDict):
    """A policy: its definition with defaults filled in, and its version."""

    policy_id: str
    name: str
    description: str
    enabled: bool
    priority: int
    match: PolicyMatchDocument
    conditions: list[ConditionDocument]
    expression: str | None
    action: PolicyActionDocument
    version: int
    source: Annotated[str, described("where the definition comes from: `api` or `file`")]
    changed_by: str
    created_at: Time
    updated_at: Time


class PolicyPut(PolicyDocument):
    warnings: NotRequired[Annotated[list[PutWarning], described("absent when there are none")]]


class PoliciesPage(TypedDict):
    policies: list[PolicyDocument]
    next_cursor: str | None


class PolicyVersion(TypedDict):
    policy_id: str
    version: int
    definition: Annotated[
        Values | None, described("the definition as it was given; null: this version deleted the policy")
    ]
    deleted: bool
    source: str
    changed_by: str
    at: Time


class PolicyVersions(TypedDict):
    policy_id: str
    versions: Annotated[list[PolicyVersion], described("newest first")]


class EvaluatedAttempt(TypedDict):
    """What policies can refer to: the retry fields, and what is known of the effect."""

    gate_count: int
    completion_count: int
    prior_completion_status: str
    prior_output_available: bool
    last_decision: Annotated[str, described("empty on the first call")]
    first_attempt_age_seconds: float
    idempotency_key: str
    effect: Annotated[str, described("the effect policy of a step that the engine dispatches; otherwise empty")]
    prior_delivery: Annotated[str, described("of the previous attempt; empty if there was none")]


class EvaluatedCall(TypedDict):
    """The call as policies see it."""

    flow_id: str
    step_id: str
    step_type: str
    attempt: EvaluatedAttempt
    labels: dict[str, str]
    step_input: Values
    step_name: str
    tool: Annotated[Values | None, described("`name`, `type` and `input`; null: the step calls no tool")]
    model: str | None
    provider: str | None
    cost_usd: float | None


class PolicyTested(TypedDict):
    """What the policies would decide, and the call that they were evaluated with."""

    decision: DecisionText
    matched: bool
    reason: str | None
    policies_matched: list[MatchedPolicy]
    subject: EvaluatedCall
