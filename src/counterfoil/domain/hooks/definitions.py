"""The definition of a hook: its token, what it collects, and what it does on a conflict and at its deadline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictInt, field_validator, model_validator

from counterfoil.domain.expressions.types import Variable, compile_expression
from counterfoil.domain.expressions.values import ExpressionFailed, answer, bound_work, look_over
from counterfoil.domain.hooks.tokens import MAX_TOKEN, Template, template, token_problem
from counterfoil.domain.steps.attributes import Attribute, Definition
from counterfoil.domain.steps.values import compiled

MOST_COLLECTED = 1_000
"""The most payloads of one hook."""
PAYLOADS = "payloads"
"""The output of a hook that collects several payloads."""


class Until:
    """A compiled condition over ``payload``, the one that has come, and ``payloads``, all so far; immutable."""

    def __init__(self, text: str) -> None:
        """Raises ValueError if it is not valid."""
        self._text = text
        self._compiled = compile_expression(text, {"payload": Variable("any"), "payloads": Variable("array")})

    def holds(self, payload: Any, payloads: list[Any]) -> bool:
        """Whether no further payload is needed. A condition that cannot be evaluated is false."""
        values = {"payload": payload, "payloads": payloads}
        try:
            bound_work(self._compiled.tree, (look_over(value) for value in values.values()))
            return answer(self._compiled, self._text, self._compiled.environment.Activation(values))
        except ExpressionFailed:
            return False


class HookDefinition(Definition):
    """How a step of kind ``hook`` waits."""

    token: Annotated[str, Field(min_length=1, max_length=4 * MAX_TOKEN)] | None = None
    """A template over the inputs of the step; None: the engine makes an unguessable token."""
    collect: Annotated[StrictInt, Field(ge=1, le=MOST_COLLECTED)] = 1
    until: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    json_schema: Any = Field(default=None, alias="schema")
    on_conflict: Literal["fail", "wait", "supersede"] = "fail"
    on_timeout: Literal["fail", "complete"] = "fail"

    @field_validator("json_schema")
    @classmethod
    def _is_a_schema(cls, schema: Any) -> Any:
        if schema is not None:
            compiled(schema)
        return schema

    @model_validator(mode="after")
    def _can_be_used(self) -> Self:
        if self.token is not None:
            try:
                names = Template(self.token).names
            except ValueError as error:
                raise ValueError(f"token: {error}") from None
            problem = None if names else token_problem(self.token.replace("{{", "{").replace("}}", "}"))
            if problem is not None:
                raise ValueError(f"token: {problem}")
        if self.until is not None:
            try:
                Until(self.until)
            except ValueError as error:
                raise ValueError(f"until: {error}") from None
        return self

    @property
    def template(self) -> Template | None:
        return None if self.token is None else template(self.token)

    @cached_property
    def condition(self) -> Until | None:
        """``until``, compiled: compiling is slow."""
        return None if self.until is None else Until(self.until)

    @cached_property
    def payload(self) -> Attribute:
        """What each payload must be, as the declaration of a value."""
        return Attribute(role="output", schema=self.json_schema)

    def refuse_unusable(self, inputs: Mapping[str, Attribute], outputs: Iterable[str]) -> None:
        """Raise ValueError for what the step cannot give: an input of the template, or an output that never comes."""
        for name in self.template.names if self.template is not None else ():
            attribute = inputs.get(name)
            if attribute is None:
                raise ValueError(f"hook.token: the step declares no input {name}")
            if not attribute.for_each and attribute.type in ("object", "array"):
                raise ValueError(f"hook.token: {name} is an {attribute.type}, and no text")
        never = sorted(set(outputs) - {PAYLOADS}) if self.collect > 1 else []
        if never:
            raise ValueError(f"attributes: a hook that collects several payloads has one output, {PAYLOADS}")
