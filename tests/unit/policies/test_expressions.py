from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from pydantic import ValidationError

from counterfoil.domain.expressions.values import ExpressionFailed, Extent, look_over
from counterfoil.domain.places import place_errors
from counterfoil.domain.policies.expressions import Readings, compile_policy_expression
from counterfoil.domain.policies.policy_set import Subject
from tests.unit.policies.policy_subjects import attempt, definition, subject

FULL = subject(
    {"amount": 150, "order": {"total": 9.5}, "a.b": 1, "items": [1, 2.5, 4]},
    at=attempt(
        3, "completed", completion_count=2, prior_output_available=True, last_decision="allow", age=12.5, key="k-1"
    ),
    labels={"team": "payments"},
    step_name="Transfer",
    tool={"name": "pay", "type": "mcp", "input": {"to": "x"}},
    model="gpt-5",
    provider="openai",
    cost_usd=0.25,
)
EMPTY = subject()


def holds(text: str, asked: Subject) -> bool:
    return compile_policy_expression(text).holds(Readings(asked))


@pytest.mark.parametrize(
    ("text", "full", "empty"),
    [
        ("step.gate_count > 2", True, False),
        ("step.gate_count > 2.5", True, False),
        ("step.gate_count == 3.0", True, False),
        ("step.completion_count == 2", True, False),
        ('step.prior_completion_status == "completed"', True, False),
        ("step.prior_output_available", True, False),
        ("!step.prior_output_available && step.gate_count < 2", False, True),
        ('step.last_decision == ""', False, True),
        ("step.first_attempt_age_seconds < 30", True, True),
        ("step.first_attempt_age_seconds > 12.4", True, False),
        ('step.idempotency_key.startsWith("k-")', True, False),
        ('step.id == "transfer" && step.type == "tool_call"', True, True),
        ('step["id"] == "transfer"', True, True),
        ("step.name != ''", True, False),
        ("has(step.input.amount) && step.input.amount > 100", True, False),
        ("has(step.input.amount) && step.input.amount > 99.5", True, False),
        ("has(step.input.order) && step.input.order.total < 10", True, False),
        ('"a.b" in step.input && step.input["a.b"] == 1', True, False),
        ("has(step.input.items) && step.input.items.exists(i, i > step.gate_count)", True, False),
        ("size(step.input) == 0", False, True),
        ('flow.id == "f-1"', True, True),
        ('has(flow.labels.team) && flow.labels.team == "payments"', True, False),
        ('flow.labels == {"team": "payments"}', True, False),
        ('tool.name == "pay"', True, False),
        ("tool.name == null", False, True),
        ('tool.type in ["mcp", "api"]', True, False),
        ('has(tool.input.to) && tool.input.to == "x"', True, False),
        ("model == null", False, True),
        ('model != null && model.startsWith("gpt")', True, False),
        ('provider == "openai"', True, False),
        ("cost_usd != null && cost_usd > 0", True, False),
        ("cost_usd != null && cost_usd > 0.2", True, False),
        ("true", True, True),
    ],
)
def test_every_name_of_the_fields_is_a_name_of_expressions(text: str, full: bool, empty: bool) -> None:
    assert holds(text, FULL) is full
    assert holds(text, EMPTY) is empty


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step.gate_cuont > 3", "step has no gate_cuont"),
        ('step["gate_cuont"] > 3', "step has no gate_cuont"),
        ("true || [1].all(i, i == step.nope)", "step has no nope"),
        ("flow.name == 'x'", "flow has no name"),
        ("tool.nmae == 'x'", "tool has no nmae"),
        ("inputs.amount > 1", "undeclared reference to 'inputs.amount'"),
        ("costs > 3", "undeclared reference to 'costs'"),
        ("step.gate_count > 'a'", "(number, string)"),
        ("step.gate_count", "must evaluate to true or false, not int"),
        ("step.id > 3", "line 1, column 9: found no matching overload for '_>_' applied to '(string, int)'"),
        ("true && step.id", "line 1, column 6"),
        ("step.id.x == 1", "'string' cannot be the operand of a select"),
        ("step.prior_output_available == 1", "(boolean, int)"),
        ("step.input > 3", "(map(string, dyn), int)"),
        ("step.input", "must evaluate to true or false, not map"),
        ("flow.id == 1", "(string, int)"),
        ("tool.name == 1", "(string, int)"),
        ("model > 3", "line 1, column 7: found no matching overload for '_>_' applied to '(string, int)'"),
        ("model.x == 1", "'string' cannot be the operand of a select"),
        ("has(model.x)", "string"),
        ("provider == 3 || model == ''", "(string, int)"),
        ('cost_usd > "3"', "(number, string)"),
        ("model", "must evaluate to true or false, not string"),
        ("cost_usd", "must evaluate to true or false"),
        ("has(step.gate_count)", "has() cannot be used on step"),
        ("has(tool.name)", "compare them with null"),
        ("size(step) > 3", "step cannot be used as a value: use one of its fields gate_count"),
        ("step[model] == 1", "step cannot be used as a value"),
        ('"name" in tool', "tool cannot be used as a value"),
        ("[1].all(step, step > 0)", "step is already defined"),
        ("[1].all(model, model > 0)", "model is already defined"),
        ("step.input.xs.map(x, x + 1) == [2]", "map() is not available"),
        ("step.input.text.matches(model)", "must be a literal"),
        ("3", "must evaluate to true or false, not int"),
        ("step.gate_count >", "line 1, column 18: Syntax error"),
        ("(" * 100 + "true" + ")" * 100, "nested too deeply"),
        ("true\0", "NUL"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_when_saved(text: str, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        definition(expression=text)
    [fault] = place_errors(refused.value)
    assert fault["place"] == "expression"
    assert message in fault["message"]
    assert "_00" not in fault["message"]


@pytest.mark.parametrize(
    ("text", "asked", "message"),
    [
        ("step.input.amount > 100", EMPTY, "there is no value amount"),
        ("step.input.amount > 100", subject({"amount": "secret"}), "has the wrong type for"),
        ("step.input.amount > 100", subject({"amount": None}), "has the wrong type for"),
        ("flow.labels.team == 'a'", EMPTY, "there is no value team"),
        ("cost_usd > 1", EMPTY, "has the wrong type for"),
        ("model.startsWith('a')", EMPTY, "has the wrong type for: .null_type..startsWith.string."),
        ("step.input.x == 1", subject({"x": 2**70}), "64 bits"),
        ("step.input.x == 'a'", subject({"x": "a\0secret"}), "NUL"),
        ("step.input.x == 'a'", subject({"x": object()}), "not JSON"),
        ("tool.input.x == 'a'", subject(tool={"name": "t", "input": ["secret"]}), "tool.input is not an object"),
        ("step.input.x", subject({"x": "secret"}), "evaluated to a value of type string"),
        ("step.input.xs.all(a, step.input.xs == step.input.xs)", subject({"xs": [1] * 100_000}), "too large"),
        ("step.input.xs.exists(i, i < 0)", subject({"xs": [1] * 100_000}), "more than 10000 elements"),
    ],
)
def test_a_failure_says_why_but_not_the_value(text: str, asked: Subject, message: str) -> None:
    with pytest.raises(ExpressionFailed, match=message) as failed:
        holds(text, asked)
    assert "secret" not in str(failed.value)


BOMBS = [
    "step.input.x.all(a, step.input.x.all(b, tool.input.x.all(c, step.input.x.all(d, a + b + c + d >= 0))))",
    "step.input.x.all(a, tool.input.x == step.input.x)",
    "tool.input.x.all(a, size(step.input.x + tool.input.x) > 0)",
    "step.input.x.filter(a, a >= 0).filter(a, tool.input.x.filter(b, b == a).size() > 0).size() > 0",
    "step.input.x.all(a, model.matches('(a*)*b'))",
    " && ".join(["step.input.x == tool.input.x"] * 100),
]


@pytest.mark.parametrize("size", [100, 9_000, 100_000])
@pytest.mark.parametrize("text", BOMBS)
def test_whatever_is_asked_ends(text: str, size: int) -> None:
    values = {"x": list(range(size))}
    asked = subject(values, tool={"name": "t", "input": values}, model="a" * size)
    with suppress(ExpressionFailed):
        holds(text, asked)


def test_the_work_counts_what_all_variables_hold() -> None:
    text = "step.input.x == tool.input.x || " * 90 + "false"
    values = {"x": [1] * 300_000}
    assert holds(text, subject(values, tool={"name": "t", "input": {"x": [1]}})) is False
    with pytest.raises(ExpressionFailed, match="too large"):
        holds(text, subject(values, tool={"name": "t", "input": values}))


def test_what_is_not_read_does_not_matter() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    odd = subject({"x": deep, "y": "\0"}, at=attempt(3), labels={"a": "\0"})
    assert holds("step.gate_count == 3 && flow.id == 'f-1'", odd)
    with pytest.raises(ExpressionFailed, match="a NUL character"):
        holds("step.gate_count == 3 && size(step.input) == 2", odd)
    with pytest.raises(ExpressionFailed, match="nested too deeply"):
        holds("size(step.input) == 1", subject({"x": deep}))


def test_values_are_looked_over_and_converted_once_for_all_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []

    def look(value: Any) -> Extent:
        looked_at.append(value)
        return look_over(value)

    monkeypatch.setattr("counterfoil.domain.policies.expressions.look_over", look)
    readings = Readings(FULL)
    for limit in range(5):
        assert compile_policy_expression(f"step.gate_count != {limit + 9} && step.input.amount > 1").holds(readings)
    assert len(looked_at) == 2
    assert len(readings._activations) == 1


def test_the_same_text_is_compiled_once_and_not_all_are_kept() -> None:
    assert compile_policy_expression("step.gate_count > 77") is compile_policy_expression("step.gate_count > 77")
    assert compile_policy_expression.cache_info().maxsize == 1024


def test_the_libraries_are_loaded_when_they_are_needed() -> None:
    program = (
        "import sys\n"
        "from counterfoil.domain.policies.definitions import PolicyDefinition\n"
        "from counterfoil.domain.policies.policy_set import NO_POLICIES\n"
        "condition = {'field': 'model', 'operator': 'equals', 'value': 'a'}\n"
        "policy = {'name': 'a', 'action': {'type': 'block'}, 'conditions': [condition]}\n"
        "PolicyDefinition.model_validate(policy)\n"
        "assert not any(name.startswith(('cel_expr', 'jsonschema_rs')) for name in sys.modules)\n"
        "PolicyDefinition.model_validate(policy | {'expression': 'true'})\n"
        "assert 'cel_expr_python' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)
