"""What is wrong with a value: the words for what JSON Schema says. Nothing of the value is among them.

The library says of a value that fits none of several alternatives why each of them did not fit, and of each of their
own alternatives again. That takes a time and a memory that nothing bounds. So the schema that is asked for the reason
is another one, which wants the same, but whose alternatives stand behind a double negation: there only their outcome
counts.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.steps.schema_trees import DATA, NAMED, pointer

UNEXPLAINED = "the value: does not match the schema"
_NONE_OF_ONE = "none of oneOf"
_OUTCOMES = {"anyOf": ("anyOf",), "oneOf": (_NONE_OF_ONE, "oneOf")}


def explained(schema: Any) -> Any:
    """A schema that refuses the same values, and says so of alternatives in one word.

    What a double negation has evaluated does not count as evaluated: a schema that asks for that cannot be rewritten.
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
    """Asks how many of the alternatives fit. The name says what it means if they are not as many as they must be."""
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
# These texts are completed with what the schema says; nothing of the value is among it.
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
    if kind.name == "falseSchema":  # which keyword says so is more telling, if there is one
        return _REASONS.get(str(error.schema_path[-1]) if error.schema_path else "", _REASONS["falseSchema"])
    if kind.name == "type":
        return f"must be of type {' or '.join(kind.types)}"
    if kind.name == "not":
        return _REASONS[_outcome_of(kind.schema)]
    if kind.name in _LIMITS:
        return _LIMITS[kind.name].format_map(kind.as_dict())
    return _REASONS.get(kind.name, f"does not match the schema ({kind.name})")


def _outcome_of(negated: Any) -> str:
    """Which alternatives stand behind a double negation, or that it is a plain one."""
    inner = negated.get("not") if isinstance(negated, dict) else None
    name = inner.get("$comment") if isinstance(inner, dict) else None
    return name if name in ("anyOf", "oneOf", _NONE_OF_ONE) else "not"
