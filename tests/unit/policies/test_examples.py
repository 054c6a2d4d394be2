from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterfoil.domain.policies.definitions import POLICY_ID_PATTERN, PolicyDefinition
from counterfoil.domain.policies.policy_set import Attempt, Policy, PolicySet
from counterfoil.domain.states import Decision
from tests.unit.policies.policy_subjects import attempt, subject

FILE = Path(__file__).parents[3] / "config" / "policies.example.json"
THIRD, RAPID, KEEPS = "third-attempt-needs-approval", "no-rapid-retries", "keeps-not-completing"
HOUR = 3600.0


def shipped() -> dict[str, PolicyDefinition]:
    return {name: PolicyDefinition.model_validate(given) for name, given in json.loads(FILE.read_text()).items()}


def test_the_shipped_policies_are_valid_and_enabled() -> None:
    import re

    policies = shipped()
    assert set(policies) == {THIRD, RAPID, KEEPS}
    assert all(policy.enabled and policy.action.reason and policy.description for policy in policies.values())
    assert all(re.match(POLICY_ID_PATTERN, name) for name in policies)


@pytest.mark.parametrize(
    ("at", "matched", "decision"),
    [
        (attempt(1), [], "allow"),
        (attempt(2, "gated_not_completed", age=HOUR), [], "allow"),
        (attempt(2, "gated_not_completed", age=30.0), [], "allow"),
        (attempt(2, "gated_not_completed", age=29.9), [RAPID], "block"),
        (attempt(2, "completed", age=1.0), [RAPID], "block"),
        (attempt(3, "completed", age=HOUR), [], "allow"),
        (attempt(3, "gated_not_completed", age=HOUR), [THIRD], "require_approval"),
        (attempt(4, "gated_not_completed", age=HOUR), [THIRD], "require_approval"),
        (attempt(4, "gated_not_completed", age=3.0), [RAPID, THIRD], "block"),
        (attempt(5, "gated_not_completed", age=HOUR), [KEEPS, THIRD], "require_approval"),
        (attempt(5, "completed", age=HOUR), [], "allow"),
        (attempt(9, "gated_not_completed", age=1.0), [KEEPS, RAPID, THIRD], "block"),
    ],
)
def test_what_the_shipped_policies_do(at: Attempt, matched: list[str], decision: str) -> None:
    policies = PolicySet(Policy(name, 1, definition) for name, definition in shipped().items())
    ruling = policies.evaluate(subject(at=at))
    assert [match.policy_id for match in ruling.matched] == matched
    assert ruling.decision == decision
    assert not any(match.failed for match in ruling.matched)
    if decision == Decision.REQUIRE_APPROVAL:
        assert ruling.terms is not None
        assert ruling.terms.severity == ("critical" if KEEPS in matched else "high")
