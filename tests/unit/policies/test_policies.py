from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.durations import LONGEST_MS
from counterfoil.domain.places import place_errors
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.states import Decision
from tests.unit.policies.policy_subjects import definition


def refusals(**fields: Any) -> list[tuple[str, str]]:
    """The places and messages, as the server shows them."""
    with pytest.raises(ValidationError) as refused:
        definition(**fields)
    return [(fault["place"], fault["message"]) for fault in place_errors(refused.value)]


def condition(field: str = "step.gate_count", operator: str = "equals", value: Any = 1) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


def test_the_policy_of_the_design_is_taken_as_it_is() -> None:
    given = {
        "name": "no rapid retries",
        "enabled": True,
        "priority": 10,
        "match": {"flow_labels": {}, "step_id": "transfer*", "step_type": "tool_call"},
        "conditions": [{"field": "step.gate_count", "operator": "greater_than", "value": 3}],
        "expression": None,
        "action": {
            "type": "require_approval",
            "reason": "fourth attempt",
            "severity": "high",
            "expires_in": "24h",
            "approvals": 1,
        },
    }
    taken = PolicyDefinition.model_validate(given)
    assert taken.model_dump(mode="json", exclude_unset=True) == given
    assert taken.action.expires_in_ms == 86_400_000


def test_a_name_and_an_action_are_enough() -> None:
    taken = PolicyDefinition.model_validate({"name": "all", "action": {"type": "allow"}})
    assert (taken.enabled, taken.priority, taken.conditions, taken.expression) == (True, 0, [], None)
    assert (taken.action.type, taken.action.severity, taken.action.approvals) == (Decision.ALLOW, "medium", 1)
    assert (taken.action.expires_in, taken.action.separate_requester) == ("24h", False)


def test_what_was_taken_is_taken_again() -> None:
    taken = definition(conditions=[condition("step.input.a", "in", [1, 1.5, True, "x"])], expression="cost_usd > 1")
    assert PolicyDefinition.model_validate_json(taken.model_dump_json()) == taken


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"name": ""}, "name", "at least 1"),
        ({"nmae": "x"}, "nmae", ""),
        ({"priority": "high"}, "priority", ""),
        ({"enabled": 1}, "enabled", "true or false"),
        ({"match": {"step": "x"}}, "match.step", ""),
        ({"match": {"step_id": ""}}, "match.step_id", "at least 1"),
        ({"match": {"flow_labels": {"team": 1}}}, "match.flow_labels.team", "string"),
        ({"conditions": [condition()] * 33}, "conditions", "32"),
        ({"conditions": [condition(), condition("step.gate_cuont")]}, "conditions.1.field", "no such field"),
        ({"conditions": [condition("step.input")]}, "conditions.0.field", "no such field"),
        ({"conditions": [condition("step.input.a..b")]}, "conditions.0.field", "such as step.input.order.total"),
        ({"conditions": [condition("tool.input." + ".".join("a" * 33))]}, "conditions.0.field", "at most 32 names"),
        ({"conditions": [condition("flow.labels.")]}, "conditions.0.field", "no such field"),
        ({"conditions": [condition(operator="is")]}, "conditions.0.operator", "equals"),
        ({"conditions": [condition(operator="regex", value="a")]}, "conditions.0.operator", "does not apply"),
        ({"conditions": [condition("model", "at_most", 3)]}, "conditions.0.operator", "does not apply"),
        (
            {"conditions": [condition("step.prior_output_available", "in", [True])]},
            "conditions.0.operator",
            "does not apply",
        ),
        ({"conditions": [condition(value="3")]}, "conditions.0.value", "must be a number"),
        ({"conditions": [condition(value=True)]}, "conditions.0.value", "must be a number"),
        ({"conditions": [condition(value=float("nan"))]}, "conditions.0.value", "must be a number"),
        ({"conditions": [condition(value=None)]}, "conditions.0.value", "is required"),
        ({"conditions": [{"field": "model", "operator": "equals"}]}, "conditions.0.value", "is required"),
        ({"conditions": [condition("model", value=3)]}, "conditions.0.value", "must be a string"),
        ({"conditions": [condition("step.prior_output_available")]}, "conditions.0.value", "true or false"),
        ({"conditions": [condition("model", "exists", "yes")]}, "conditions.0.value", "true or false"),
        ({"conditions": [condition("step.input.a", "at_least", "3")]}, "conditions.0.value", "must be a number"),
        ({"conditions": [condition("step.input.a", value=float("inf"))]}, "conditions.0.value", "JSON"),
        ({"conditions": [condition("model", "in", "gpt")]}, "conditions.0.value", "must be an array"),
        ({"conditions": [condition("model", "in", [])]}, "conditions.0.value", "must be an array"),
        ({"conditions": [condition("model", "in", ["a"] * 1001)]}, "conditions.0.value", "1 to 1000"),
        ({"conditions": [condition("model", "in", ["a", 1])]}, "conditions.0.value", "must be a string"),
        ({"conditions": [condition("step.input.a", "in", [[1]])]}, "conditions.0.value", "strings, numbers"),
        ({"conditions": [condition("step.input.a", "not_in", [None])]}, "conditions.0.value", "strings, numbers"),
        ({"conditions": [condition("model", "contains", "")]}, "conditions.0.value", "must not be empty"),
        ({"conditions": [condition("model", "regex", "(")]}, "conditions.0.value", "not a regular expression"),
        ({"conditions": [condition("model", "regex", 3)]}, "conditions.0.value", "must be a string"),
        ({"conditions": [condition("step.last_decision", value="allowed")]}, "conditions.0.value", "'allow'"),
        ({"conditions": [condition("step.prior_completion_status", "in", ["done"])]}, "conditions.0.value", "'none'"),
        ({"expression": ""}, "expression", "at least 1"),
        ({"expression": "step.gate_cuont > 3"}, "expression", "step has no gate_cuont"),
        ({"action": "deny"}, "action.type", "allow"),
        ({"action": {"type": "block", "severity": "huge"}}, "action.severity", "critical"),
        ({"action": {"type": "block", "approvals": 0}}, "action.approvals", ""),
        ({"action": {"type": "block", "approvals": 11}}, "action.approvals", ""),
        ({"action": {"type": "block", "approvals": True}}, "action.approvals", ""),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(fields: dict[str, Any], place: str, message: str) -> None:
    [(refused_place, refused_message)] = refusals(**fields)
    assert refused_place == place
    assert message in refused_message


@pytest.mark.parametrize("expires_in", ["1x", "", "0s", "367d", 999, LONGEST_MS + 1, 1.5, True, None])
def test_an_approval_cannot_wait_for_less_than_a_second_or_more_than_a_year(expires_in: Any) -> None:
    [(place, message)] = refusals(action={"type": "require_approval", "expires_in": expires_in})
    assert place == "action.expires_in"
    assert message.startswith("must be")


def test_an_approval_may_wait_as_long_as_milliseconds_say() -> None:
    assert definition({"type": "require_approval", "expires_in": 90_000}).action.expires_in_ms == 90_000


def test_every_wrong_condition_is_named() -> None:
    wrong = [condition("nope"), condition(), condition(value="x")]
    assert [place for place, _ in refusals(conditions=wrong)] == ["conditions.0.field", "conditions.2.value"]


def test_a_refusal_never_shows_the_value() -> None:
    with pytest.raises(ValidationError) as refused:
        definition(conditions=[condition("model", "regex", "(secret"), condition(value="secret")])
    assert "secret" not in json.dumps(place_errors(refused.value))


@pytest.mark.parametrize("field", ["flow.labels.team", "flow.labels.a.b", "step.input.a", "tool.input.a.0.b"])
def test_open_fields_take_any_name(field: str) -> None:
    assert definition(conditions=[condition(field, "exists", value=False)]).conditions[0].field == field


def test_an_enabled_policy_can_be_disabled_as_a_copy() -> None:
    taken = definition(conditions=[condition()])
    assert taken.model_copy(update={"enabled": False}).compiled_conditions() == taken.compiled_conditions()
