"""Evaluates a checked CEL expression. Evaluation always ends, with a value or ExpressionFailed.

The library alone does not guarantee that: values that are nested too deeply crash the process, text after a NUL
character is dropped silently, and its limit of 10,000 iterations does not count the cost of one iteration. So values
are checked before they are passed on, and the work that an expression could do with them is estimated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from counterfoil.domain.expressions.cel import Tree
from counterfoil.domain.expressions.types import Compiled, encodable

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_DEPTH = 100
MAX_WORK = 50_000_000
"""The most elements that an expression may read: one or two seconds in the worst case."""

MAX_RESULT = 4_000_000
"""The most elements (a text counts as one for each eight characters) that the value of an expression may have."""

_MAX_ITERATIONS = 10_000  # the library's own limit
_CHARACTERS_PER_ELEMENT = 8


class ExpressionFailed(ValueError):
    """An expression cannot be evaluated with these values. The message never contains one of them."""


class Extent(NamedTuple):
    """The size of the values that an expression reads."""

    longest: int
    """The number of elements of the longest list or map."""
    weight: int


def answer(compiled: Compiled, text: str, activation: cel.Activation) -> bool:
    """Evaluate the expression; the values must have been checked, and the work bounded."""
    try:
        value = compiled.expression.eval(activation)
        kind, result = value.type().name(), value.value()
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ExpressionFailed(_explain(str(error), text)) from None
    if kind == "ERROR":
        raise ExpressionFailed(_explain(str(result), text))
    if not isinstance(result, bool):
        raise ExpressionFailed(f"evaluated to a value of type {kind.lower()}, not true or false")
    return result


def evaluate(compiled: Compiled, text: str, activation: cel.Activation) -> Any:
    """The JSON value of an expression; the values must have been checked, and work and result bounded."""
    try:
        value = compiled.expression.eval(activation)
        kind, result = value.type().name(), value.plain_value()
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ExpressionFailed(_explain(str(error), text)) from None
    if kind == "ERROR":
        raise ExpressionFailed(_explain(str(result), text))
    _require_json(result)
    return result


def _require_json(value: Any) -> None:
    """Refuse what JSON does not have: bytes, times, infinities, names that are no strings."""
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise ExpressionFailed("evaluated to an object with a key that is not a string")
        for member in value.values():
            _require_json(member)
    elif isinstance(value, list):
        for element in value:
            _require_json(element)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ExpressionFailed("a number or time is out of range")
    elif value is not None and not isinstance(value, str | int):
        raise ExpressionFailed("evaluated to a value that JSON does not have: convert it with string()")


def bound_result(tree: Tree, extents: Iterable[Extent]) -> None:
    """Refuse values of which the expression could make a result that is too large: each use may copy all of them."""
    if len(tree.uses) * sum(extent.weight for extent in extents) > MAX_RESULT:
        raise ExpressionFailed("the inputs are too large for this expression")


def bound_work(tree: Tree, extents: Iterable[Extent]) -> None:
    """Refuse values on which the expression could do too much work."""
    longest, weight = 0, 0
    for extent in extents:
        longest = max(longest, extent.longest)
        weight += extent.weight
    iterations = min(_MAX_ITERATIONS, tree.macros * max(longest, tree.literals) ** tree.nesting)
    size = weight + tree.literals
    if size * (1 + tree.work_once + iterations * tree.work_repeated) > MAX_WORK:
        raise ExpressionFailed("the inputs are too large for this expression")


def look_over(data: Any) -> Extent:
    """The size of a value; refuses values that the library would crash on or misread."""
    elements = weight = longest = 0
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            elements += 1
            if isinstance(value, str):
                weight += len(value) // _CHARACTERS_PER_ELEMENT
                _look_over_text(value)
            elif isinstance(value, dict):
                longest = max(longest, len(value))
                below.extend(value)
                below.extend(value.values())
                if not all(isinstance(key, str) for key in value):
                    raise ExpressionFailed("an object has a key that is not a string")
            elif isinstance(value, list):
                longest = max(longest, len(value))
                below.extend(value)
            elif isinstance(value, int):
                if not -(2**63) <= value < 2**64:
                    raise ExpressionFailed("an integer has more than 64 bits: pass it as a string")
            elif value is not None and not isinstance(value, float):
                raise ExpressionFailed(f"a value is not JSON: {type(value).__name__}")
        if elements + len(below) > MAX_WORK:
            raise ExpressionFailed("the inputs are too large")
        if not below:
            return Extent(longest, elements + weight)
        level = below
    raise ExpressionFailed(f"the inputs are nested too deeply: {MAX_DEPTH} levels are allowed")


def _look_over_text(value: str) -> None:
    # The library reads text up to its first NUL: "admin\0x" would be "admin".
    if "\0" in value:
        raise ExpressionFailed("a text contains a NUL character")
    if not encodable(value):
        raise ExpressionFailed("a text contains an unpaired surrogate")


_REASONS = (
    ("Iteration budget", f"it iterates over more than {_MAX_ITERATIONS} elements"),
    ("divide by zero", "it divides by zero"),
    ("modulus by zero", "it divides by zero"),
    ("overflow", "a number or time is out of range"),
    ("out of range", "a number or time is out of range"),
    ("out of int64 range", "a number or time is out of range"),
    ("Index error", "a list index is out of range"),
    ("regular expression", "a regular expression is not valid, or too large"),
    ("imezone", "a time zone is unknown"),
    ("imestamp", "a string is not a timestamp such as 2026-01-31T12:00:00Z"),
    ("uration", "a string is not a duration such as 90s"),
    ("convert", "a value cannot be converted"),
    ("conversion", "a value cannot be converted"),
)
_TYPES = r"\([\w, .<>]*\)"
_NO_OVERLOAD = re.compile(rf"No matching overloads found : ((?:{_TYPES}\.)?[\w<>=!+*/%@?:&|\[\]-]+{_TYPES})")
_NO_KEY = re.compile(r'Key not found in map : "?(.*?)"?$', re.DOTALL)


def _explain(message: str, text: str) -> str:
    """An explanation in place of the library's message, which may contain values that are secret."""
    overload = _NO_OVERLOAD.search(message)
    if overload:
        return f"a value has the wrong type for: {overload[1]}"
    missing = _NO_KEY.search(message)
    if missing:  # a key that is in the expression is not secret
        named = missing[1] and missing[1] in text
        return f"there is no value {missing[1]}" if named else "there is no value with that key"
    return next((reason for part, reason in _REASONS if part in message), "it cannot be evaluated with these inputs")
