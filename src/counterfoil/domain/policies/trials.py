"""Dry runs of policies: what they would decide on a described call, or on a recorded one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from counterfoil.domain.flows.requests import LabelKey, LabelText, StepId
from counterfoil.domain.gate.requests import STRICT, Dollars, Key, ShortText, ToolContext
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.policy_set import Attempt, Subject


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TriedAttempt(_Part):
    """The retry fields of a call, and what is known of its effect; by default those of a first call of an agent."""

    gate_count: Annotated[StrictInt, Field(ge=1, le=10**9)] = 1
    completion_count: Annotated[StrictInt, Field(ge=0, le=10**9)] = 0
    prior_completion_status: Literal["none", "completed", "gated_not_completed"] | None = None
    prior_output_available: StrictBool | None = None
    last_decision: Literal["", "allow", "block", "require_approval"] = ""
    first_attempt_age_seconds: Annotated[float, Field(ge=0, le=10**12, strict=True)] = 0.0
    idempotency_key: Key = ""
    effect: Literal["", "pure", "idempotent", "dedupe", "reconcile", "unsafe_once"] = ""
    prior_delivery: Literal["", "not_delivered", "delivered", "unknown"] = ""

    def attempt(self) -> Attempt:
        """The attempt; fields that are not given follow from the counts."""
        status = self.prior_completion_status
        if status is None:
            status = "none" if self.gate_count == 1 else "completed" if self.completion_count else "gated_not_completed"
        available = status == "completed" if self.prior_output_available is None else self.prior_output_available
        return Attempt(
            gate_count=self.gate_count,
            completion_count=self.completion_count,
            prior_completion_status=status,
            prior_output_available=available,
            last_decision=self.last_decision,
            first_attempt_age_seconds=self.first_attempt_age_seconds,
            idempotency_key=self.idempotency_key,
            effect=self.effect,
            prior_delivery=self.prior_delivery,
        )


class TriedTool(ToolContext):
    """The tool of a described call; a trial is as strict as the policy that it is about."""

    model_config = STRICT


class TriedCall(_Part):
    """A call that is described in the request."""

    flow_id: Annotated[str, Field(max_length=200)] = "flow"
    step_id: StepId
    step_type: ShortText = "tool_call"
    step_name: ShortText = ""
    step_input: Annotated[dict[str, Any], Field(max_length=1024)] = {}
    tool_context: TriedTool | None = None
    model: ShortText | None = None
    provider: ShortText | None = None
    cost_usd: Dollars | None = None
    labels: Annotated[dict[LabelKey, LabelText], Field(max_length=32)] = {}
    attempt: TriedAttempt = TriedAttempt()

    def subject(self) -> Subject:
        tool = self.tool_context
        return Subject(
            flow_id=self.flow_id,
            step_id=self.step_id,
            step_type=self.step_type,
            attempt=self.attempt.attempt(),
            labels=self.labels,
            step_input=self.step_input,
            step_name=self.step_name,
            tool=None if tool is None else {"name": tool.tool_name, "type": tool.tool_type, "input": tool.tool_input},
            model=self.model,
            provider=self.provider,
            cost_usd=self.cost_usd,
        )


class RecordedCall(_Part):
    """The next call of a recorded step, with its last input and its attempts so far."""

    workflow_id: Annotated[str, Field(max_length=200)]
    step_id: StepId


class PolicyTrial(_Part):
    """``POST /api/v1/policies/test``. Without a policy, all policies in force are evaluated."""

    policy: PolicyDefinition | None = None
    call: TriedCall | None = None
    recorded: RecordedCall | None = None

    @model_validator(mode="after")
    def _is_about_one_call(self) -> Self:
        if (self.call is None) == (self.recorded is None):
            raise ValueError("call: give either call or recorded")
        return self
