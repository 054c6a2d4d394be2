"""Rulings of random policies about random subjects, compared with an oracle that knows no index and no compiling."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from counterfoil.domain.durations import parse_duration
from counterfoil.domain.expressions.patterns import compile_glob
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.policy_set import Attempt, Policy, PolicySet, Subject

pytestmark = pytest.mark.timeout(300)

QUICK = settings(max_examples=120, suppress_health_check=list(HealthCheck))

# ---------------------------------------------------------------------------------------------------- what is asked

NUMBERS = st.sampled_from([0, 1, 2, 2.0, 2.5, 3, 5])
TEXTS = st.sampled_from(["", "a", "b", "ab", "pay"])
SCALARS = NUMBERS | TEXTS | st.booleans()
VALUES = (
    SCALARS | st.none() | st.lists(SCALARS, max_size=2) | st.dictionaries(st.sampled_from("xy"), SCALARS, max_size=2)
)
INPUTS = st.dictionaries(st.sampled_from(["x", "y", "z"]), VALUES, max_size=3)
STATUSES = ("none", "completed", "gated_not_completed")
DECISIONS = ("", "allow", "block", "require_approval")
STEP_IDS = ("pay", "pay-1", "pay-2", "refund", "Pay")
STEP_TYPES = ("tool_call", "llm_call")
LABELS = st.dictionaries(st.sampled_from(["team", "env"]), st.sampled_from(["a", "b"]), max_size=2)

attempts = st.builds(
    Attempt,
    gate_count=st.integers(1, 4),
    completion_count=st.integers(0, 2),
    prior_completion_status=st.sampled_from(STATUSES),
    prior_output_available=st.booleans(),
    last_decision=st.sampled_from(DECISIONS),
    first_attempt_age_seconds=st.sampled_from([0.0, 1.0, 2.5]),
    idempotency_key=TEXTS,
)
subjects = st.builds(
    Subject,
    flow_id=st.sampled_from(["f-1", "f-2"]),
    step_id=st.sampled_from(STEP_IDS),
    step_type=st.sampled_from(STEP_TYPES),
    attempt=attempts,
    labels=LABELS,
    step_input=INPUTS,
    step_name=TEXTS,
    tool=st.none() | st.fixed_dictionaries({"name": TEXTS}, optional={"type": TEXTS, "input": INPUTS}),
    model=st.none() | TEXTS,
    provider=st.none() | TEXTS,
    cost_usd=st.none() | NUMBERS,
)

# ---------------------------------------------------------------------------------------------------- policies

OPEN = ["step.input.x", "step.input.y.x", "step.input.z.0", "tool.input.x"]
STRINGS = ["step.id", "step.type", "step.name", "flow.id", "flow.labels.team", "tool.name", "tool.type", "model"]
COUNTS = ["step.gate_count", "step.completion_count", "step.first_attempt_age_seconds", "cost_usd"]
CHOICES = {"step.prior_completion_status": STATUSES, "step.last_decision": DECISIONS}
ORDERS = ["greater_than", "less_than", "at_least", "at_most"]
PATTERNS = st.sampled_from(["^a", "b$", "a|p", "^$", "p.y"])


def condition(field: str, operator: str, value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


def conditions_on(fields: list[str], operators: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(condition, st.sampled_from(fields), st.sampled_from(operators), values)


conditions = st.one_of(
    conditions_on([*OPEN, *STRINGS, *COUNTS, *CHOICES], ["exists"], st.booleans()),
    conditions_on(OPEN, ["equals", "not_equals"], VALUES.filter(lambda value: value is not None)),
    conditions_on(OPEN, ["in", "not_in"], st.lists(SCALARS, min_size=1, max_size=3)),
    conditions_on(OPEN, ["contains", "not_contains"], SCALARS.filter(lambda value: value != "")),
    conditions_on(OPEN + STRINGS, ["regex"], PATTERNS),
    conditions_on(OPEN + COUNTS, ORDERS, NUMBERS),
    conditions_on(STRINGS, ["equals", "not_equals"], TEXTS),
    conditions_on(STRINGS, ["in", "not_in"], st.lists(TEXTS, min_size=1, max_size=3)),
    conditions_on(STRINGS, ["contains", "not_contains"], st.sampled_from(["a", "pay"])),
    conditions_on(COUNTS, ["equals", "not_equals"], NUMBERS),
    conditions_on(["step.prior_output_available"], ["equals", "not_equals"], st.booleans()),
    *(conditions_on([name], ["equals", "not_equals"], st.sampled_from(given)) for name, given in CHOICES.items()),
)

# Each expression with what it means: true, false, or None where it has no answer.
EXPRESSIONS: dict[str, Any] = {
    "step.gate_count > 2": lambda s: s.attempt.gate_count > 2,
    "cost_usd == null": lambda s: s.cost_usd is None,
    "cost_usd > 1": lambda s: None if s.cost_usd is None else s.cost_usd > 1,
    "tool.name == 'pay' && model != null": lambda s: (s.tool or {}).get("name") == "pay" and s.model is not None,
    "has(flow.labels.env)": lambda s: "env" in s.labels,
    "flow.labels.env == 'a'": lambda s: s.labels["env"] == "a" if "env" in s.labels else None,
}
actions = st.fixed_dictionaries(
    {"type": st.sampled_from(DECISIONS[1:])},
    optional={
        "reason": st.sampled_from(["one", "two"]),
        "severity": st.sampled_from(["low", "medium", "high", "critical"]),
        "expires_in": st.sampled_from(["90s", "15m", "24h", 5_000]),
        "approvals": st.integers(1, 3),
        "separate_requester": st.booleans(),
    },
)
matches = st.fixed_dictionaries(
    {},
    optional={
        "flow_labels": LABELS,
        "step_id": st.sampled_from([*STEP_IDS, "pay*", "*", "pay-?", "*d", "p*-*", "[p]ay"]),
        "step_type": st.sampled_from([*STEP_TYPES, "*_call", "tool*"]),
    },
)
definitions = st.fixed_dictionaries(
    {"name": st.just("p"), "action": actions},
    optional={
        "enabled": st.sampled_from([True, True, True, False]),
        "priority": st.integers(-1, 1),
        "match": matches,
        "conditions": st.lists(conditions, max_size=3),
        "expression": st.sampled_from(sorted(EXPRESSIONS)),
    },
)
policy_lists = st.lists(definitions, max_size=8)


def set_of(given_definitions: list[dict[str, Any]]) -> list[Policy]:
    return [
        Policy(f"p{number}", number, PolicyDefinition.model_validate(each))
        for number, each in enumerate(given_definitions)
    ]


# ---------------------------------------------------------------------------------------------------- the oracle


class NoAnswerError(Exception):
    pass


def document(subject: Subject) -> dict[str, Any]:
    step = dataclasses.asdict(subject.attempt)
    step |= {"id": subject.step_id, "type": subject.step_type, "name": subject.step_name, "input": subject.step_input}
    return {
        "step": step,
        "flow": {"id": subject.flow_id, "labels": subject.labels},
        "tool": subject.tool,
        "model": subject.model,
        "provider": subject.provider,
        "cost_usd": subject.cost_usd,
    }


def found(value: Any, path: str) -> Any:
    for key in path.split("."):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value


def canonical(value: Any) -> str:
    """JSON in which equal values are the same text."""

    def plain(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: plain(each) for key, each in part.items()}
        if isinstance(part, list):
            return [plain(each) for each in part]
        return float(part) if isinstance(part, int) and not isinstance(part, bool) else part

    return json.dumps(plain(value), sort_keys=True)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def holds(given_condition: dict[str, Any], subject: Subject) -> bool:
    field, operator, expected = given_condition["field"], given_condition["operator"], given_condition["value"]
    value = found(document(subject), field)
    if operator == "exists":
        there = value is not None and (value != "" or ".input." in field)
        return bool(there == expected)
    if operator.startswith("not_"):
        return not holds({**given_condition, "operator": operator.removeprefix("not_")}, subject)
    if value is None:
        return False
    if operator == "equals":
        return canonical(value) == canonical(expected)
    if operator == "in":
        return canonical(value) in [canonical(each) for each in expected]
    if operator == "contains" and isinstance(value, list):
        return canonical(expected) in [canonical(each) for each in value]
    if operator in ("contains", "regex"):
        if not isinstance(value, str) or not isinstance(expected, str):
            raise NoAnswerError
        return expected in value if operator == "contains" else re.search(expected, value) is not None
    if not is_number(value):
        raise NoAnswerError
    answers: dict[str, bool] = {
        "greater_than": value > expected,
        "less_than": value < expected,
        "at_least": value >= expected,
        "at_most": value <= expected,
    }
    return answers[operator]


def fits_glob(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return fits_glob(pattern[1:], text) or (bool(text) and fits_glob(pattern, text[1:]))
    return bool(text) and pattern[0] in ("?", text[0]) and fits_glob(pattern[1:], text[1:])


def verdict(given_definition: dict[str, Any], subject: Subject) -> str | None:
    """The action of one policy, ``failed``, or None."""
    match = given_definition.get("match", {})
    if not given_definition.get("enabled", True):
        return None
    if not fits_glob(match.get("step_id", "*"), subject.step_id):
        return None
    if not fits_glob(match.get("step_type", "*"), subject.step_type):
        return None
    if not match.get("flow_labels", {}).items() <= dict(subject.labels).items():
        return None
    answers: list[bool | None] = []
    for each in given_definition.get("conditions", []):
        try:
            answers.append(holds(each, subject))
        except NoAnswerError:
            answers.append(None)
    if "expression" in given_definition:
        answers.append(EXPRESSIONS[given_definition["expression"]](subject))
    if False in answers:
        return None
    return "failed" if None in answers else str(given_definition["action"]["type"])


def terms_of(holding: list[dict[str, Any]]) -> tuple[int, int, bool, str]:
    severities = ["low", "medium", "high", "critical"]
    return (
        max(action.get("approvals", 1) for action in holding),
        min(parse_duration(action.get("expires_in", "24h")) for action in holding),
        any(action.get("separate_requester", False) for action in holding),
        severities[max(severities.index(action.get("severity", "medium")) for action in holding)],
    )


# ---------------------------------------------------------------------------------------------------- properties


@QUICK
@given(policy_lists, subjects)
def test_a_ruling_is_what_the_oracle_says(given_definitions: list[dict[str, Any]], subject: Subject) -> None:
    ruling = PolicySet(set_of(given_definitions)).evaluate(subject)
    verdicts = {f"p{number}": verdict(each, subject) for number, each in enumerate(given_definitions)}
    matched = {name: outcome for name, outcome in verdicts.items() if outcome is not None}
    assert {each.policy_id: "failed" if each.failed else each.action for each in ruling.matched} == matched
    priorities = {f"p{number}": each.get("priority", 0) for number, each in enumerate(given_definitions)}
    assert [each.policy_id for each in ruling.matched] == sorted(matched, key=lambda name: (-priorities[name], name))
    outcomes = {"block" if outcome == "failed" else outcome for outcome in matched.values()}
    strongest = next((each for each in ("block", "require_approval") if each in outcomes), "allow")
    assert ruling.decision == strongest
    holding = [
        each["action"]
        for number, each in enumerate(given_definitions)
        if matched.get(f"p{number}") == "require_approval"
    ]
    assert (ruling.terms is not None) == (strongest == "require_approval")
    if ruling.terms is not None:
        assert dataclasses.astuple(ruling.terms) == terms_of(holding)
    if strongest != "allow":
        assert ruling.reason


@QUICK
@given(policy_lists, st.lists(subjects, min_size=1, max_size=4))
def test_the_index_changes_nothing(given_definitions: list[dict[str, Any]], asked: list[Subject]) -> None:
    policies = set_of(given_definitions)
    together = PolicySet(policies)
    for subject in asked * 2:  # the second time from what is remembered
        alone = [match for each in policies for match in PolicySet([each]).evaluate(subject).matched]
        ruling = together.evaluate(subject)
        assert sorted(ruling.matched, key=lambda match: match.policy_id) == alone
        assert ruling == PolicySet(reversed(policies)).evaluate(subject)
        if ruling.matched:
            assert together.concerns(subject.step_id, subject.step_type)


@QUICK
@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_a_glob_matches_what_it_says(pattern: str, text: str) -> None:
    assert compile_glob(pattern)(text) == fits_glob(pattern, text)
