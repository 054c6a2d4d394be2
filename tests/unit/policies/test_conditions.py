from __future__ import annotations

from typing import Any, get_args

import pytest

from counterfoil.domain.policies.conditions import ConditionFailed, Operator, compile_condition
from counterfoil.domain.policies.fields import FIELD_NAMES, MAX_PATH
from counterfoil.domain.policies.policy_set import Subject
from tests.unit.policies.policy_subjects import attempt, subject

ABSENT = object()
FAILS = "fails"
FULL = subject(
    {"amount": 150, "order": {"total": 9.5, "lines": [{"sku": "a"}, {"sku": "b"}]}, "a.b": 1},
    at=attempt(
        3, "completed", completion_count=2, prior_output_available=True, last_decision="allow", age=12.5, key="k-1"
    ),
    labels={"team": "payments", "app.kubernetes.io/name": "till"},
    step_name="Transfer",
    tool={"name": "pay", "type": "mcp", "input": {"to": "x"}},
    model="gpt-5",
    provider="openai",
    cost_usd=0.25,
)
EMPTY = subject()


def holds(field: str, operator: Operator, value: Any, asked: Subject) -> bool | str:
    condition = compile_condition(field, operator, value)
    try:
        return condition(asked)
    except ConditionFailed as failure:
        message = str(failure)
    assert "secret" not in message
    assert field in message
    return FAILS


def of_input(operator: Operator, value: Any, found: Any) -> bool | str:
    """The answer for a value in the step's input; the tool's input must give the same."""
    step_input = {} if found is ABSENT else {"x": found}
    answer = holds("step.input.x", operator, value, subject(step_input))
    assert holds("tool.input.x", operator, value, subject(tool={"name": "t", "input": step_input})) == answer
    return answer


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step.gate_count", 3),
        ("step.completion_count", 2),
        ("step.prior_completion_status", "completed"),
        ("step.prior_output_available", True),
        ("step.last_decision", "allow"),
        ("step.first_attempt_age_seconds", 12.5),
        ("step.idempotency_key", "k-1"),
        ("step.id", "transfer"),
        ("step.type", "tool_call"),
        ("step.name", "Transfer"),
        ("step.input.amount", 150),
        ("step.input.order.total", 9.5),
        ("step.input.order.lines.1.sku", "b"),
        ("step.input.order.lines.1", {"sku": "b"}),
        ("flow.id", "f-1"),
        ("flow.labels.team", "payments"),
        ("flow.labels.app.kubernetes.io/name", "till"),
        ("tool.name", "pay"),
        ("tool.type", "mcp"),
        ("tool.input.to", "x"),
        ("model", "gpt-5"),
        ("provider", "openai"),
        ("cost_usd", 0.25),
    ],
)
def test_every_field_is_read(field: str, value: Any) -> None:
    assert holds(field, "equals", value, FULL) is True
    assert holds(field, "not_equals", value, FULL) is False
    assert holds(field, "exists", True, FULL) is True
    assert holds(field, "exists", None, FULL) is True
    assert holds(field, "exists", False, FULL) is False


def test_no_field_is_forgotten() -> None:
    assert len(FIELD_NAMES) == 21


@pytest.mark.parametrize(
    "field",
    [
        "step.last_decision",
        "step.idempotency_key",
        "step.name",
        "step.input.amount",
        "step.input.order.total",
        "flow.labels.team",
        "tool.name",
        "tool.type",
        "tool.input.to",
        "model",
        "provider",
        "cost_usd",
    ],
)
def test_what_is_absent_or_empty_does_not_exist(field: str) -> None:
    assert holds(field, "exists", True, EMPTY) is False
    assert holds(field, "exists", False, EMPTY) is True


@pytest.mark.parametrize("field", ["step.last_decision", "step.idempotency_key", "step.name"])
def test_a_text_of_the_engine_that_is_empty_can_still_be_compared(field: str) -> None:
    assert holds(field, "equals", "", EMPTY) is True
    assert holds(field, "in", [""], EMPTY) is True


@pytest.mark.parametrize(
    "path",
    ["a", "order.nope", "order.total.x", "order.lines.2", "order.lines.-1", "order.lines.x", "order.lines.99999999"],
)
def test_a_path_that_leads_nowhere_is_absent(path: str) -> None:
    assert holds(f"step.input.{path}", "exists", True, FULL) is False


def test_a_path_may_be_as_deep_as_it_is_allowed_to_be() -> None:
    value: Any = "here"
    for _ in range(MAX_PATH):
        value = {"a": value}
    field = "step.input." + ".".join("a" * MAX_PATH)
    assert holds(field, "equals", "here", subject(value)) is True


def test_a_tool_with_an_input_that_is_no_object_has_nothing_in_it() -> None:
    assert holds("tool.input.x", "exists", True, subject(tool={"name": "t", "input": "x"})) is False


# Each JSON type, by a value of it: what each operator says. Null is the same as absent.
FOUND: dict[str, Any] = {
    "absent": ABSENT,
    "null": None,
    "text": "b-secret",
    "empty": "",
    "int": 2,
    "float": 2.0,
    "true": True,
    "false": False,
    "list": ["b-secret", 2, True, [1], {"k": 1}],
    "object": {"k": 1, "b": [True]},
    "nan": float("nan"),
}


def fails_but_for(*names: str) -> dict[str, bool | str]:
    return {name: FAILS for name in FOUND if name not in ("absent", "null", *names)}


NUMBERS_ONLY = fails_but_for("int", "float")
LISTS_ONLY = fails_but_for("list")
TEXTS_ONLY = fails_but_for("text", "empty")
NO_CONTAINERS = fails_but_for("list", "text", "empty")
TABLE: list[tuple[Operator, Any, dict[str, bool | str]]] = [
    ("equals", "b-secret", {"text": True}),
    ("equals", "", {"empty": True}),
    ("equals", 2, {"int": True, "float": True}),
    ("equals", 2.0, {"int": True, "float": True}),
    ("equals", 1, {}),
    ("equals", True, {"true": True}),
    ("equals", False, {"false": True}),
    ("equals", ["b-secret", 2.0, True, [1], {"k": 1}], {"list": True}),
    ("equals", ["b-secret", 2, 1, [1], {"k": 1}], {}),
    ("equals", ["b-secret"], {}),
    ("equals", {"b": [True], "k": 1.0}, {"object": True}),
    ("equals", {"b": [1], "k": 1}, {}),
    ("equals", {"k": 1}, {}),
    ("in", ["b-secret", "c"], {"text": True}),
    ("in", [2], {"int": True, "float": True}),
    ("in", [1, 0], {}),
    ("in", [True], {"true": True}),
    ("in", [False, 7, ""], {"false": True, "empty": True}),
    ("contains", "secret", {"text": True, **NO_CONTAINERS}),
    ("contains", "b-secret", {"text": True, "list": True, **NO_CONTAINERS}),
    ("contains", 2.0, {**LISTS_ONLY, "list": True}),
    ("contains", 1, LISTS_ONLY),
    ("contains", True, {**LISTS_ONLY, "list": True}),
    ("contains", {"k": 1}, {**LISTS_ONLY, "list": True}),
    ("contains", [1], {**LISTS_ONLY, "list": True}),
    ("regex", "^b-", {**TEXTS_ONLY, "text": True}),
    ("regex", "^$", {**TEXTS_ONLY, "empty": True}),
    ("greater_than", 1, {"int": True, "float": True, **NUMBERS_ONLY}),
    ("greater_than", 2, NUMBERS_ONLY),
    ("greater_than", 1.5, {"int": True, "float": True, **NUMBERS_ONLY}),
    ("less_than", 2, NUMBERS_ONLY),
    ("less_than", 2.5, {"int": True, "float": True, **NUMBERS_ONLY}),
    ("at_least", 2, {"int": True, "float": True, **NUMBERS_ONLY}),
    ("at_least", 3, NUMBERS_ONLY),
    ("at_most", 2.0, {"int": True, "float": True, **NUMBERS_ONLY}),
    ("at_most", 1, NUMBERS_ONLY),
    ("exists", True, {name: True for name in FOUND if name not in ("absent", "null")}),
    ("exists", False, {"absent": True, "null": True}),
]
OPPOSITES: dict[str, Operator] = {"equals": "not_equals", "in": "not_in", "contains": "not_contains"}


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.parametrize(("operator", "value", "expected"), TABLE)
def test_every_operator_with_every_type(
    operator: Operator, value: Any, expected: dict[str, bool | str], kind: str
) -> None:
    answer = of_input(operator, value, FOUND[kind])
    assert answer == expected.get(kind, False)
    if operator in OPPOSITES:
        assert of_input(OPPOSITES[operator], value, FOUND[kind]) == (FAILS if answer == FAILS else not answer)


def test_no_operator_is_forgotten() -> None:
    assert {*get_args(Operator)} == {operator for operator, _, _ in TABLE} | {*OPPOSITES.values()}


@pytest.mark.parametrize(
    ("field", "operator", "value", "full", "empty"),
    [
        ("step.gate_count", "greater_than", 2, True, False),
        ("step.gate_count", "in", [1, 2], False, True),
        ("step.first_attempt_age_seconds", "less_than", 30, True, True),
        ("step.id", "contains", "fer", True, True),
        ("step.id", "not_contains", "fer", False, False),
        ("step.id", "regex", "^tr", True, True),
        ("flow.labels.team", "in", ["payments"], True, False),
        ("flow.labels.team", "not_in", ["payments"], False, True),
        ("flow.labels.team", "not_contains", "pay", False, True),
        ("model", "regex", "^gpt", True, False),
        ("model", "not_equals", "gpt-5", False, True),
        ("cost_usd", "at_most", 1, True, False),
        ("cost_usd", "not_in", [0.25], False, True),
        ("tool.name", "contains", "pay", True, False),
    ],
)
def test_known_fields_with_and_without_a_value(
    field: str, operator: Operator, value: Any, full: bool, empty: bool
) -> None:
    assert holds(field, operator, value, FULL) is full
    assert holds(field, operator, value, EMPTY) is empty


def test_whole_numbers_of_any_size_are_compared_exactly() -> None:
    assert of_input("greater_than", 2**53, 2**53 + 1) is True
    assert of_input("equals", 2**53, 2**53 + 1) is False
    assert of_input("greater_than", 1.5, 10**400) is True


def test_a_tool_whose_name_is_no_text_fails() -> None:
    odd = subject(tool={"name": ["secret"], "type": 3})
    assert holds("tool.name", "regex", "x", odd) == FAILS
    assert holds("tool.type", "contains", "x", odd) == FAILS
