"""Inspections: what is checked at once, what is known already, and what must be checked elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.steps.attributes import Attribute
from counterfoil.domain.steps.checks import NO_FINDINGS, CheckNeeded, Findings, Inspection, ValueCheck

NUMBERS = Attribute(role="output", schema={"items": {"type": "integer"}})
EACH = Attribute(role="required", for_each=True, schema={"items": {"type": "integer"}})
LONG = list(range(30_000))
WRONG = "does not match its schema: /1: must be of type integer"


def problem(attribute: Attribute, value: Any, findings: Findings = NO_FINDINGS) -> str | None:
    inspection = Inspection(findings)
    found = inspection.problem(attribute, value)
    inspection.close()
    return found


def needed(attribute: Attribute, value: Any) -> ValueCheck:
    with pytest.raises(CheckNeeded) as raised:
        problem(attribute, value)
    [check] = raised.value.checks
    return check


def test_what_is_short_is_checked_at_once() -> None:
    assert problem(NUMBERS, [1, 2]) is None
    assert problem(NUMBERS, [1, "two"]) == WRONG
    assert problem(EACH, [[1], [2]]) is None
    assert problem(EACH, [[1], [2, "two"]]) == f"element 1 {WRONG}"


def test_a_wrong_type_needs_no_check_however_long_the_value_is() -> None:
    attribute = Attribute(role="output", type="object", schema={"maxProperties": 1})
    assert problem(attribute, LONG) == "must be of type object"
    attribute = Attribute(role="required", type="string", for_each=True, schema={"minLength": 1})
    assert problem(attribute, ["a"] * 50_000 + [1]) == "element 50000 must be of type string"
    assert problem(attribute, "a") == "must be an array, because the step fans out over it"


def test_what_may_be_long_is_checked_elsewhere_and_then_known() -> None:
    check = needed(NUMBERS, LONG)
    assert (check.value, check.each) == (dump_json(LONG), False)
    assert problem(NUMBERS, list(LONG), {check.key: None}) is None
    assert problem(NUMBERS, LONG, {check.key: "is wrong"}) == "is wrong"
    each = needed(EACH, [LONG, LONG])
    assert each.each


def test_a_finding_is_about_one_schema_and_one_value() -> None:
    other = Attribute(role="output", schema={"items": {"type": "number"}})
    checks = [
        needed(NUMBERS, LONG),
        needed(NUMBERS, [*LONG, 1]),
        needed(other, LONG),
        needed(EACH, [LONG]),
        needed(NUMBERS, [LONG]),
    ]
    assert len({check.key for check in checks}) == len(checks)
    assert needed(NUMBERS, LONG).key == checks[0].key


def test_what_one_decision_checks_at_once_is_limited_in_all() -> None:
    inspection = Inspection(NO_FINDINGS)
    for number in range(200):
        assert inspection.problem(NUMBERS, [number] * 500) is None
    with pytest.raises(CheckNeeded) as raised:
        inspection.close()
    assert 100 < len(raised.value.checks) < 200


def test_each_element_counts() -> None:
    assert needed(EACH, [[1] * 5] * 10_000).each


def test_why_a_large_value_does_not_fit_is_found_out_elsewhere() -> None:
    """To see that it does not takes no time; to say why takes a copy of it."""
    attribute = Attribute(role="output", schema={"maxItems": 1})
    assert problem(attribute, [1, 2]) == "does not match its schema: the value: may have at most 1 elements"
    assert needed(attribute, [1] * 5_000).value == dump_json([1] * 5_000)


def test_what_is_nested_too_deeply_is_told_at_once() -> None:
    value: Any = []
    for _ in range(150):
        value = [value]
    told = problem(NUMBERS, value)
    assert told is not None
    assert "nested too deeply" in told
