"""JSON Schema for the values of attributes.

Nothing is ever fetched: a schema may refer to itself only. Compiling ends soon, whatever the schema is. Checking may
take long, and cannot be interrupted: ``bound`` says what is surely short, and what is not is checked in a process that
can be given up (domain/steps/checks.py). What is said about a value names the place in it, and never holds the value.
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

_PATTERN_BYTES = 256 * 1024  # compiled; large ones take long to compile, and to match
_PATTERN_SIZES = (1024, 4 * 1024, 16 * 1024, 64 * 1024, _PATTERN_BYTES)
_UNITS_PER_BYTE = 0.75 / 1024  # what a character costs for each byte of the compiled pattern, if all of it is in use
_KEPT = 4_096  # compiled schemas
_NO_JSON = (ValueError, TypeError, OverflowError)  # also text that is no Unicode
_UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})


class ValueSchema:
    """A compiled schema; immutable, and so safe to share between threads."""

    def __init__(self, schema: Any, validator: jsonschema_rs.Validator, cost: SchemaCost) -> None:
        self._schema = schema
        self._validator = validator
        self._cost = cost

    @classmethod
    def compile(cls, schema: Any) -> Self:
        """Check and compile; ValueError says what is wrong with the schema, and where."""
        if not isinstance(schema, dict | bool):
            raise ValueError("a JSON Schema must be an object, true or false")  # noqa: TRY004 - it came over the wire
        _check_size(schema)
        references = References(schema)
        cost = schema_cost(schema, references.target, _pattern_cost(references.patterns))
        return cls(schema, _validator(schema), cost)

    def bound(self, value: Any, enough: float) -> float:
        """Units (of 100 ns) that ``fits`` takes at most; once they are more than enough, any number that is more."""
        return self._cost.bound(value, enough)

    def fits(self, value: Any) -> bool:
        """Whether there is no problem; to say which one takes longer, for a large value much longer."""
        try:
            return _depth(value) <= MAX_DEPTH and bool(self._validator.is_valid(value))
        except _NO_JSON:
            return False

    def problem(self, value: Any) -> str | None:
        """None if the value fits, else what is wrong and where, without the value."""
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
        """Says what is wrong, in about the time that it takes to see that something is; None: nothing does."""
        if self._cost.back > 1:  # the library remembers outcomes, but not reasons
            return None
        rewritten = explained(self._schema)
        if rewritten == self._schema:
            return self._validator
        if any(not _UNEVALUATED.isdisjoint(node) for _, node in subschemas(self._schema)):
            return None
        try:
            return _validator(rewritten)
        except ValueError:  # something refers to an alternative by its place
            return None


@functools.lru_cache(maxsize=_KEPT)
def _compiled(text: str) -> ValueSchema:
    return ValueSchema.compile(json.loads(text))


def compiled(schema: Any) -> ValueSchema:
    """The same schema compiled once, as often as definitions with it are read."""
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return ValueSchema.compile(schema)  # which says what is wrong with it
    return _compiled(text)


def schema_problem(schema: ValueSchema, value: Any, *, each: bool) -> str | None:
    """How a value does not fit a schema, or one of its elements; None: it fits."""
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
        reason = f"is not a valid JSON Schema: {str(error.message)[:300]}"  # the schema is no secret, but may be long
        raise ValueError(f"{pointer(error.instance_path)}: {reason}") from None
    except (library.ReferencingError, ValueError) as error:
        raise ValueError(f"is not a valid JSON Schema: {error}") from None
    return validator


def _pattern_cost(patterns: list[str]) -> float:
    """What a character costs, by how large the largest of the patterns is when it is compiled."""
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
    """How deep a value is nested; one more than MAX_DEPTH stands for anything deeper, circles included."""
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
