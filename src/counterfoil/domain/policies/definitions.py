"""Definitions of policies: the steps that each applies to, its conditions, and its action.

A valid definition can be evaluated: fields, operators, values, patterns and the expression are all checked by compiling
them, and a refusal names the place.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, StrictBool, StrictInt, model_validator
from pydantic.functional_validators import AfterValidator

from counterfoil.domain.approvals.terms import ApprovalTerms
from counterfoil.domain.flows.requests import LabelKey, LabelText
from counterfoil.domain.policies.conditions import Condition, Operator, compile_condition
from counterfoil.domain.policies.expressions import PolicyExpression, compile_policy_expression
from counterfoil.domain.states import Decision
from counterfoil.domain.steps.attributes import Definition
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN

POLICY_ID_PATTERN = STEP_ID_PATTERN
MAX_CONDITIONS = 32


def _expression(text: str) -> str:
    compile_policy_expression(text)
    return text


Glob = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""A text in which ``*`` matches any text and ``?`` one character; case-sensitive."""


class PolicyMatch(Definition):
    """The steps that a policy applies to: every given field must match."""

    flow_labels: dict[LabelKey, LabelText] = Field(default_factory=dict, max_length=32)
    step_id: Glob | None = None
    step_type: Glob | None = None


class PolicyCondition(Definition):
    """One condition on one field; ``exists`` needs no value and accepts false."""

    field: Annotated[str, Field(min_length=1, max_length=512)]
    operator: Operator
    value: Any = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        _ = self.compiled
        return self

    @cached_property
    def compiled(self) -> Condition:
        """The condition as a function of the subject; raises ValueError if it is not valid."""
        return compile_condition(self.field, self.operator, self.value)


class PolicyAction(ApprovalTerms):
    """The action for a step that the policy matches. All fields except type and reason concern approvals."""

    type: Decision


class PolicyDefinition(Definition):
    """A policy as it is saved. Without conditions and expression, it matches every step that it applies to."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: Annotated[str, Field(max_length=4096)] = ""
    enabled: StrictBool = True
    priority: Annotated[StrictInt, Field(ge=-1_000_000, le=1_000_000)] = 0
    """The order in which policies are shown, highest first. It decides nothing: block overrides require_approval, which
    overrides allow."""
    match: PolicyMatch = PolicyMatch()
    conditions: list[PolicyCondition] = Field(default_factory=list, max_length=MAX_CONDITIONS)
    expression: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_expression)] | None = None
    action: PolicyAction

    def compiled_conditions(self) -> tuple[Condition, ...]:
        return tuple(condition.compiled for condition in self.conditions)

    def compiled_expression(self) -> PolicyExpression | None:
        return None if self.expression is None else compile_policy_expression(self.expression)
