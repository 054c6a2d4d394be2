"""Attributes: the named inputs and outputs of a step, and whether a value matches its declaration."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, field_validator, model_validator

from counterfoil.domain.steps.checks import SHORT
from counterfoil.domain.steps.values import ValueSchema, compiled, schema_problem

ValueType = Literal["string", "number", "boolean", "object", "array", "any"]
YEAR_MS = 365 * 24 * 3_600_000


class Definition(BaseModel):
    """Base of the parts of a definition: unknown fields are refused, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Attribute(Definition):
    """A named input or output of a step."""

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
            compiled(schema)
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
            raise ValueError("default: must be an array, because the step fans out over it")
        for name, value in self.own_values():
            if (problem := self.type_problem(value)) or (self._is_short(value) and (problem := self.problem(value))):
                raise ValueError(f"{name}: {problem}")
        return self

    def own_values(self) -> list[tuple[Literal["default", "value"], Any]]:
        """The default or constant of the attribute itself."""
        if self.role == "const":
            return [("value", self.value)]
        return [("default", self.default)] if self.role == "optional" and self.default is not None else []

    def _is_short(self, value: Any) -> bool:
        """Whether the check is fast: if not, it is made when the step is registered, not each time it is loaded."""
        schema = self.compiled_schema
        if schema is None:
            return True
        return schema.bound([value] if self.for_each else value, SHORT) <= SHORT

    @cached_property
    def compiled_schema(self) -> ValueSchema | None:
        return None if self.json_schema is None else compiled(self.json_schema)

    @cached_property
    def schema_text(self) -> bytes:
        return json.dumps(self.json_schema).encode()

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, without the value itself; None: it matches. May be slow.

        The value of a ``for_each`` attribute is an array with elements as declared; type ``array`` says no more than
        that.
        """
        problem = self.type_problem(value)
        if problem or self.compiled_schema is None:
            return problem
        return schema_problem(self.compiled_schema, value, each=self.for_each)

    def type_problem(self, value: Any) -> str | None:
        """The same for ``type`` and ``for_each`` only."""
        if not self.for_each:
            return None if has_type(value, self.type) else f"must be of type {self.type}"
        if not isinstance(value, list):
            return "must be an array, because the step fans out over it"
        if self.type in ("any", "array"):
            return None
        for place, element in enumerate(value):
            if not has_type(element, self.type):
                return f"element {place} must be of type {self.type}"
        return None


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "object": dict,
    "array": list,
}


def has_type(value: Any, wanted: ValueType) -> bool:
    """Whether a JSON value is of a declared type; booleans are not numbers, null matches only any."""
    if wanted == "any":
        return True
    if wanted == "boolean":
        return isinstance(value, bool)
    return isinstance(value, _JSON_TYPES[wanted]) and not isinstance(value, bool)
