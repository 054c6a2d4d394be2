"""Describes why a value does not match its JSON Schema. A description holds nothing of the value.

For a value that matches none of several alternatives, the library explains why each of them did not match, and does so
recursively, which takes unbounded time and memory. So explanations are made with an equivalent schema whose
alternatives stand inside a double negation: of these the library reports only the result.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.steps.schema_trees import DATA, NAMED, pointer

UNEXPLAINED = "the value: does not match the schema"
_NONE_OF_ONE = "none of oneOf"
_OUTCOMES = {"anyOf": ("anyOf",), "oneOf": (_NONE_OF_ONE, "oneOf")}


def explained(schema: Any) -> Any:
    """An equivalent schema, for which the library reports alternatives with a single error.

    Inside a double negation nothing counts as evaluated, so a schema with ``unevaluated...`` keywords cannot be
    rewritten.
    """
    if isinstance(schema, list):
        return [explained(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    written: dict[str, Any] = {}
    outcomes: list[Any] = []
    for keyword, below in schema.items():
        if keyword in _OUTCOMES and isinstance(below, list):
            outcomes += [_outcome(name, below) for name in _OUTCOMES[keyword]]
        elif keyword in NAMED and isinstance(below, dict):
            written[keyword] = {name: explained(item) for name, item in below.items()}
        else:
            written[keyword] = below if keyword in DATA else explained(below)
    if outcomes:
        written["allOf"] = [*written.get("allOf", ()), *outcomes]
    return written


def _outcome(name: str, alternatives: list[Any]) -> dict[str, Any]:
    """Counts the matching alternatives. The name tells what a wrong number of them means."""
    return {"not": {"not": {"$comment": name, "oneOf" if name == "oneOf" else "anyOf": alternatives}}}


_REASONS: dict[str, str] = {
    "additionalItems": "has more elements than the schema allows",
    "additionalProperties": "has a field that the schema does not allow",
    "anyOf": "matches none of the alternatives (anyOf)",
    "const": "is not the allowed value",
    "contains": "does not contain the required elements",
    "enum": "is not one of the allowed values",
    "falseSchema": "is not allowed here",
    "not": "matches a schema that it must not match (not)",
    "oneOf": "matches more than one of the alternatives (oneOf)",
    _NONE_OF_ONE: "matches none of the alternatives (oneOf)",
    "propertyNames": "has a field with a name that is not allowed",
    "unevaluatedItems": "has an element that the schema does not allow",
    "unevaluatedProperties": "has a field that the schema does not allow",
    "uniqueItems": "has the same element twice",
}
# These texts are completed with values of the schema, never of the checked value.
_LIMITS: dict[str, str] = {
    "exclusiveMaximum": "must be less than {limit}",
    "exclusiveMinimum": "must be more than {limit}",
    "format": "is not in the format {format}",
    "maxItems": "may have at most {limit} elements",
    "maxLength": "may have at most {limit} characters",
    "maxProperties": "may have at most {limit} fields",
    "maximum": "must be at most {limit}",
    "minItems": "must have at least {limit} elements",
    "minLength": "must have at least {limit} characters",
    "minProperties": "must have at least {limit} fields",
    "minimum": "must be at least {limit}",
    "multipleOf": "must be a multiple of {multiple_of}",
    "pattern": "does not match the pattern {pattern:.100}",
    "required": "needs the field {property:.100}",
}


def problem_of(error: Any) -> str:
    """The place in the value, and what is wrong there."""
    return f"{pointer(error.instance_path)}: {_reason(error)}"


def _reason(error: Any) -> str:
    kind = error.kind
    if kind.name == "falseSchema":  # its keyword, if there is one, says more
        return _REASONS.get(str(error.schema_path[-1]) if error.schema_path else "", _REASONS["falseSchema"])
    if kind.name == "type":
        return f"must be of type {' or '.join(kind.types)}"
    if kind.name == "not":
        return _REASONS[_outcome_of(kind.schema)]
    if kind.name in _LIMITS:
        return _LIMITS[kind.name].format_map(kind.as_dict())
    return _REASONS.get(kind.name, f"does not match the schema ({kind.name})")


def _outcome_of(negated: Any) -> str:
    """The kind of alternatives inside a double negation, or that it is an ordinary one."""
    inner = negated.get("not") if isinstance(negated, dict) else None
    name = inner.get("$comment") if isinstance(inner, dict) else None
    return name if name in ("anyOf", "oneOf", _NONE_OF_ONE) else "not"
