"""Attributes: the named values that a step takes and gives, and whether a value is what was declared."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator, model_validator

from counterfoil.domain.values import ValueSchema

ValueType = Literal["string", "number", "boolean", "object", "array", "any"]
YEAR_MS = 365 * 24 * 3_600_000


class Definition(BaseModel):
    """What a step's definition is made of: unknown fields are refused, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Attribute(Definition):
    """A named value that a step takes or gives."""

    role: Literal["required", "optional", "const", "output"]
    type: ValueType = "any"
    default: Any = None
    value: Any = None
    for_each: StrictBool = False
    timeout_ms: StrictInt | None = Field(default=None, ge=0, le=YEAR_MS)
    json_schema: Any = Field(default=None, alias="schema")
    priority: StrictInt = 0

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, schema: Any) -> Any:
        if schema is not None:
            ValueSchema.compile(schema)
        return schema

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        given = self.model_fields_set
        if "default" in given and self.role != "optional":
            raise ValueError("default: only an optional attribute has one")
        if "value" in given and self.role != "const":
            raise ValueError("value: only a const attribute has one")
        if self.role == "const" and "value" not in given:
            raise ValueError("value: a const attribute needs one")
        if self.timeout_ms is not None and self.role != "optional":
            raise ValueError("timeout_ms: only an optional attribute waits for a value")
        if self.for_each and self.role not in ("required", "optional"):
            raise ValueError("for_each: only a required or optional attribute can be fanned out over")
        if self.for_each and self.role == "optional" and self.default is None:
            raise ValueError("default: what is fanned out over needs an array here")
        if self.role == "optional" and self.default is not None and (problem := self.problem(self.default)):
            raise ValueError(f"default: {problem}")
        if self.role == "const" and (problem := self.problem(self.value)):
            raise ValueError(f"value: {problem}")
        return self

    @cached_property
    def _schema(self) -> ValueSchema | None:
        return None if self.json_schema is None else ValueSchema.compile(self.json_schema)

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, never the value itself; None: it is as declared.

        What is fanned out over is an array, each element as declared; type ``array`` says no more than that.
        """
        if not self.for_each:
            return self._problem(value, self.type)
        if not isinstance(value, list):
            return "must be an array, for the step fans out over it"
        wanted: ValueType = "any" if self.type == "array" else self.type
        for place, element in enumerate(value):
            problem = self._problem(element, wanted)
            if problem:
                return f"element {place} {problem}"
        return None

    def _problem(self, value: Any, wanted: ValueType) -> str | None:
        if not has_type(value, wanted):
            return f"must be of type {wanted}"
        if self._schema is not None and (problem := self._schema.problem(value)):
            return f"does not fit its schema: {problem}"
        return None


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "object": dict,
    "array": list,
}


def has_type(value: Any, wanted: ValueType) -> bool:
    """Whether a JSON value is of a declared type; booleans are no numbers, null fits only any."""
    if wanted == "any":
        return True
    if wanted == "boolean":
        return isinstance(value, bool)
    return isinstance(value, _JSON_TYPES[wanted]) and not isinstance(value, bool)
