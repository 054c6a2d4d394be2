"""Subjects and policies for the tests of policies: each test says only what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.policy_set import Attempt, Policy, Subject


def attempt(
    gate_count: int = 1,
    prior: str = "none",
    *,
    completion_count: int = 0,
    prior_output_available: bool = False,
    last_decision: str = "",
    age: float = 0.0,
    key: str = "",
) -> Attempt:
    return Attempt(gate_count, completion_count, prior, prior_output_available, last_decision, age, key)


def subject(
    step_input: Mapping[str, Any] | None = None,
    *,
    step_id: str = "transfer",
    step_type: str = "tool_call",
    at: Attempt | None = None,
    labels: Mapping[str, str] | None = None,
    **others: Any,
) -> Subject:
    return Subject("f-1", step_id, step_type, at or attempt(), labels or {}, step_input or {}, **others)


def definition(action: str | dict[str, Any] = "block", **fields: Any) -> PolicyDefinition:
    given = {"type": action} if isinstance(action, str) else action
    return PolicyDefinition.model_validate({"name": "a policy", "action": given, **fields})


def policy(policy_id: str, action: str | dict[str, Any] = "block", **fields: Any) -> Policy:
    return Policy(policy_id, 1, definition(action, **{"name": policy_id, **fields}))
