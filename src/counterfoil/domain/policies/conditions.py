"""Conditions of policies: a field, an operator and a value, compiled to a function of the subject.

For an absent field, ``equals``, ``in``, ``contains``, ``regex`` and the comparisons are false; ``not_equals``,
``not_in`` and ``not_contains``, which always are the opposite of the others, are true. ``exists`` tells whether the
field is present; a text that the engine fills in, such as the idempotency key, is absent while it is empty.

A value of a type that the operator cannot handle is a failure, not false: otherwise a caller could evade a limit on an
amount by sending it as text. Equality is that of JSON: 1 and 1.0 are the same, 1 and true are not.
"""

from __future__ import annotations

import operator as comparisons
from collections.abc import Callable
from typing import Any, Literal, get_args

from counterfoil.domain.expressions.patterns import compile_regex
from counterfoil.domain.policies.fields import Field, Reading, field_named
from counterfoil.domain.policies.subject import Subject

Operator = Literal[
    "equals",
    "not_equals",
    "in",
    "not_in",
    "contains",
    "not_contains",
    "regex",
    "greater_than",
    "less_than",
    "at_least",
    "at_most",
    "exists",
]
Condition = Callable[[Subject], bool]

MAX_CHOICES = 1000

_ANY_TYPE = frozenset({"equals", "not_equals", "exists"})
_OPERATORS = {
    "boolean": _ANY_TYPE,
    "number": _ANY_TYPE | {"in", "not_in", "greater_than", "less_than", "at_least", "at_most"},
    "string": _ANY_TYPE | {"in", "not_in", "contains", "not_contains", "regex"},
    "any": frozenset(get_args(Operator)),
}
_COMPARISONS = {
    "greater_than": comparisons.gt,
    "less_than": comparisons.lt,
    "at_least": comparisons.ge,
    "at_most": comparisons.le,
}
_NEEDED = {
    "boolean": "must be true or false",
    "number": "must be a number",
    "string": "must be a string",
    "any": "must be a JSON value",
}


class ConditionFailed(ValueError):
    """A condition cannot be evaluated. The message names the field, never its value."""


def compile_condition(name: str, operator: Operator, value: Any) -> Condition:
    """The condition as a function; raises ValueError that begins with ``field:``, ``operator:`` or ``value:``."""
    try:
        field = field_named(name)
    except ValueError as error:
        raise ValueError(f"field: {error}") from None
    if operator not in _OPERATORS[field.type]:
        raise ValueError(f"operator: {operator} does not apply to {name}, which is a {field.type}")
    try:
        return _compile(name, field, operator, value)
    except ValueError as error:
        raise ValueError(f"value: {error}") from None


def _compile(name: str, field: Field, operator: Operator, value: Any) -> Condition:
    if operator == "exists":
        return _exists(field, value)
    if value is None:
        raise ValueError("is required and must not be null; exists tests whether there is a value")
    if operator in _COMPARISONS:
        return _compares(name, field.read, _COMPARISONS[operator], _checked(value, "number"))
    if operator == "regex":
        return _fits(name, field.read, _checked(value, "string"))
    positive = operator.removeprefix("not_")
    if positive == "equals":
        condition = _equals(field, value)
    elif positive == "in":
        condition = _among(field, value)
    else:
        condition = _contains(name, field, value)
    return condition if positive == operator else _opposite(condition)


def _checked(value: Any, kind: str, choices: tuple[str, ...] = ()) -> Any:
    """The value, if it is of this type; raises ValueError otherwise."""
    found = kind_of(value)
    if kind == "any" and found not in ("nan", "null"):
        return value
    if found != kind:
        raise ValueError(_NEEDED[kind])
    if choices and value not in choices:
        raise ValueError(f"must be one of {', '.join(repr(choice) for choice in choices)}")
    return value


def kind_of(value: Any) -> str:
    """The JSON type of a value; NaN and infinities have none."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "number"
    if isinstance(value, float):
        return "number" if value - value == 0 else "nan"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "null"


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal."""
    kind = kind_of(one)
    if kind != kind_of(other):
        return False
    if kind == "array":
        return len(one) == len(other) and all(map(same, one, other))
    if kind == "object":
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other)


# ---------------------------------------------------------------------------------------------------- operators


def _opposite(condition: Condition) -> Condition:
    return lambda subject: not condition(subject)


def _exists(field: Field, value: Any) -> Condition:
    wanted = True if value is None else _checked(value, "boolean")
    read = field.read
    if field.type == "string":
        return lambda subject: bool(read(subject)) is wanted
    return lambda subject: (read(subject) is not None) is wanted


def _equals(field: Field, value: Any) -> Condition:
    expected = _checked(value, field.type, field.choices)
    read = field.read
    if isinstance(expected, str):
        return lambda subject: bool(read(subject) == expected)
    if isinstance(expected, bool):
        return lambda subject: read(subject) is expected
    return lambda subject: same(read(subject), expected)


def _among(field: Field, value: Any) -> Condition:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_CHOICES:
        raise ValueError(f"must be an array of 1 to {MAX_CHOICES} values")
    if any(kind_of(choice) not in ("string", "boolean", "number") for choice in value):
        raise ValueError("must be an array of strings, numbers or booleans")
    choices = frozenset(_key(_checked(choice, field.type, field.choices)) for choice in value)
    read = field.read
    return lambda subject: _key(read(subject)) in choices


def _key(value: Any) -> Any:
    """A key for a set: Python treats true as equal to 1, and lists and maps are not hashable."""
    if isinstance(value, bool):
        return (value,)
    return value if isinstance(value, str | int | float) else None


def _contains(name: str, field: Field, value: Any) -> Condition:
    wanted = _checked(value, field.type)
    if wanted == "":
        raise ValueError("must not be empty: every string contains the empty string")
    read = field.read

    def condition(subject: Subject) -> bool:
        found = read(subject)
        if found is None:
            return False
        if isinstance(found, str) and isinstance(wanted, str):
            return wanted in found
        if isinstance(found, list):
            return any(same(element, wanted) for element in found)
        raise ConditionFailed(f"{name} is of a type that cannot contain the value")

    return condition


def _fits(name: str, read: Reading, pattern: str) -> Condition:
    found_in = compile_regex(pattern)

    def condition(subject: Subject) -> bool:
        text = read(subject)
        if text is None:
            return False
        if not isinstance(text, str):
            raise ConditionFailed(f"{name} is not a string")
        try:
            return found_in(text)
        except ValueError as error:
            raise ConditionFailed(f"{name} {error}") from None

    return condition


def _compares(name: str, read: Reading, compare: Callable[[Any, Any], bool], limit: float) -> Condition:
    def condition(subject: Subject) -> bool:
        number = read(subject)
        if type(number) is int:  # the usual case
            return compare(number, limit)
        if number is None:
            return False
        if kind_of(number) != "number":
            raise ConditionFailed(f"{name} is not a number")
        return compare(number, limit)

    return condition
