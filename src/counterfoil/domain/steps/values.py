"""Compiles JSON Schemas and checks the values of attributes against them.

No schema is ever fetched: references may only lead to the same schema. Compiling is always fast. Checking may be slow
and cannot be interrupted: ``bound`` tells which checks are certain to be fast; all others are made in a process that
can be killed (domain/steps/checks.py). Descriptions of problems name the place in the value, and never hold the value.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Self

from counterfoil.domain.steps.schema_costs import MAX_DEPTH, SchemaCost, schema_cost
from counterfoil.domain.steps.schema_trees import References, pointer, subschemas
from counterfoil.domain.steps.value_problems import UNEXPLAINED, explained, problem_of

if TYPE_CHECKING:
    import jsonschema_rs

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 64

_PATTERN_BYTES = 256 * 1024  # compiled; large ones are slow to compile and to match
_PATTERN_SIZES = (1024, 4 * 1024, 16 * 1024, 64 * 1024, _PATTERN_BYTES)
_UNITS_PER_BYTE = 0.75 / 1024  # cost of a character for each byte of the compiled pattern, in the worst case
_KEPT = 4_096  # number of cached compiled schemas
_NO_JSON = (ValueError, TypeError, OverflowError)  # also for text that is not valid Unicode
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class ValueSchema:
    """A compiled schema; immutable, and so safe to share between threads."""

    def __init__(self, schema: Any, validator: jsonschema_rs.Validator, cost: SchemaCost) -> None:
        self._schema = schema
        self._validator = validator
        self._cost = cost

    @classmethod
    def compile(cls, schema: Any) -> Self:
        """Check and compile; raises ValueError with what is wrong with the schema, and where."""
        if not isinstance(schema, dict | bool):
            raise ValueError("a JSON Schema must be an object, true or false")  # noqa: TRY004 - it came over the wire
        _check_size(schema)
        references = References(schema)
        cost = schema_cost(schema, references.target, _pattern_cost(references.patterns))
        return cls(schema, _validator(schema), cost)

    def bound(self, value: Any, enough: float) -> float:
        """An upper bound for ``fits``, in units of 100 ns; above ``enough``, any larger number."""
        return self._cost.bound(value, enough)

    def fits(self, value: Any) -> bool:
        """Whether the value matches. Finding out why it does not takes longer, for a large value much longer."""
        try:
            return _depth(value) <= MAX_DEPTH and bool(self._validator.is_valid(value))
        except _NO_JSON:
            return False

    def problem(self, value: Any) -> str | None:
        """None if the value matches, else what is wrong and where, without the value."""
        if _depth(value) > MAX_DEPTH:
            return f"is nested too deeply: {MAX_DEPTH} levels are allowed"
        try:
            return None if self._validator.is_valid(value) else self._explain(value)
        except _NO_JSON:
            return "is not a JSON value"

    def _explain(self, value: Any) -> str:
        explaining = self._explaining
        try:
            if explaining is not None:
                explaining.validate(value)
        except _library().ValidationError as error:
            return problem_of(error)
        return UNEXPLAINED

    @functools.cached_property
    def _explaining(self) -> jsonschema_rs.Validator | None:
        """A validator that explains mismatches about as fast as it finds them; None: there is none for this schema."""
        if self._cost.back > 1:  # the library caches results, but not reasons
            return None
        rewritten = explained(self._schema)
        if rewritten == self._schema:
            return self._validator
        if any(not _UNEVALUATED.isdisjoint(node) for _, node in subschemas(self._schema)):
            return None
        try:
            return _validator(rewritten)
        except ValueError:  # a reference leads to an alternative by its place
            return None


@functools.lru_cache(maxsize=_KEPT)
def _compiled(text: str) -> ValueSchema:
    return ValueSchema.compile(json.loads(text))


def compiled(schema: Any) -> ValueSchema:
    """The compiled schema, from a cache: definitions with the same schema are loaded often."""
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return ValueSchema.compile(schema)  # raises with what is wrong
    return _compiled(text)


def schema_problem(schema: ValueSchema, value: Any, *, each: bool) -> str | None:
    """Why a value, or one of its elements, does not match a schema; None: it matches."""
    for place, element in enumerate(value if each else [value]):
        problem = schema.problem(element)
        if problem:
            return f"{f'element {place} ' if each else ''}does not match its schema: {problem}"
    return None


@functools.cache
def _library() -> Any:
    import jsonschema_rs as library  # noqa: PLC0415 - 15 MB that most processes never need

    return library


def _validator(schema: Any, pattern_bytes: int = _PATTERN_BYTES) -> jsonschema_rs.Validator:
    library = _library()
    try:
        validator: jsonschema_rs.Validator = library.validator_for(
            schema,
            offline=True,
            validate_formats=True,
            pattern_options=library.RegexOptions(size_limit=pattern_bytes, dfa_size_limit=_PATTERN_BYTES),
        )
    except library.ValidationError as error:
        reason = f"is not a valid JSON Schema: {str(error.message)[:300]}"  # the schema is not secret, but may be long
        raise ValueError(f"{pointer(error.instance_path)}: {reason}") from None
    except (library.ReferencingError, ValueError) as error:
        raise ValueError(f"is not a valid JSON Schema: {error}") from None
    return validator


def _pattern_cost(patterns: list[str]) -> float:
    """The cost of a character, by the compiled size of the largest pattern."""
    if not patterns:
        return 0.0
    probe = {"allOf": [{"pattern": pattern} for pattern in patterns]}
    for size in _PATTERN_SIZES[:-1]:
        try:
            _validator(probe, size)
        except ValueError:
            continue
        return size * _UNITS_PER_BYTE
    return _PATTERN_BYTES * _UNITS_PER_BYTE


def _check_size(schema: Any) -> None:
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise ValueError(f"a JSON Schema may be nested at most {MAX_SCHEMA_DEPTH} levels deep")
    try:
        size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())
    except (ValueError, TypeError):
        raise ValueError("a JSON Schema must be JSON") from None
    if size > MAX_SCHEMA_BYTES:
        raise ValueError(f"a JSON Schema may have at most {MAX_SCHEMA_BYTES} bytes")


def _depth(value: Any) -> int:
    """The nesting depth of a value; MAX_DEPTH + 1 stands for anything deeper, including cycles."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list | tuple):
                below.extend(item)
        level = below
        depth += 1
    return depth
