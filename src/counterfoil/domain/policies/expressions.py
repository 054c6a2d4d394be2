"""Expressions of policies: CEL over the same names as the fields of conditions.

``step``, ``flow`` and ``tool`` have fixed, typed members: another name is refused when the policy is saved. A member
without a value is null, so ``tool.name == "pay"`` is simply false for a step without a tool. A value inside an input or
the labels may be missing, and reading it then fails: test it with ``has(step.input.amount)``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from counterfoil.domain.expressions.types import Compiled, Variable, compile_expression
from counterfoil.domain.expressions.values import ExpressionFailed, Extent, answer, bound_work, look_over
from counterfoil.domain.policies.subject import Subject

if TYPE_CHECKING:
    from cel_expr_python import cel

_Read = tuple[str, str | None]
"""A variable and its member; None for a variable without members."""

SCOPE = {
    "step": Variable(
        fixed=True,
        lacks="step has no",
        members={
            "gate_count": "number",
            "completion_count": "number",
            "prior_completion_status": "string",
            "prior_output_available": "boolean",
            "last_decision": "string",
            "first_attempt_age_seconds": "number",
            "idempotency_key": "string",
            "effect": "string",
            "prior_delivery": "string",
            "id": "string",
            "type": "string",
            "name": "string",
            "input": "object",
        },
    ),
    "flow": Variable(fixed=True, lacks="flow has no", members={"id": "string", "labels": "object"}),
    "tool": Variable(fixed=True, lacks="tool has no", members={"name": "string", "type": "string", "input": "object"}),
    "model": Variable("string"),
    "provider": Variable("string"),
    "cost_usd": Variable("number"),
}
_OF_STEP = {"id": "step_id", "type": "step_type", "name": "step_name", "input": "step_input"}
_OBJECTS = frozenset({("step", "input"), ("flow", "labels"), ("tool", "input")})
_OF_FLOW = {"id": "flow_id", "labels": "labels"}


class PolicyExpression:
    """A compiled expression; immutable."""

    def __init__(self, text: str, compiled: Compiled) -> None:
        self.text = text
        self.compiled = compiled
        self.reads = frozenset(
            (use.variable, use.name if SCOPE[use.variable].type == "object" else None) for use in compiled.tree.uses
        )

    def holds(self, readings: Readings) -> bool:
        """Whether the expression is true; raises ExpressionFailed if it cannot be evaluated."""
        bound_work(self.compiled.tree, readings.extents(self.reads))
        return answer(self.compiled, self.text, readings.activation(self.compiled, self.reads))


@functools.lru_cache(maxsize=1024)
def compile_policy_expression(text: str) -> PolicyExpression:
    """Check and compile; cached, because it takes milliseconds. Raises ValueError with what is wrong."""
    return PolicyExpression(text, compile_expression(text, SCOPE))


class Readings:
    """The values that expressions read of one subject. Each is checked and converted once, for all expressions.

    Only values that an expression reads are touched: any other input may be large or invalid.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._values: dict[_Read, tuple[Any, Extent]] = {}
        self._activations: dict[frozenset[_Read], cel.Activation] = {}

    def extents(self, reads: frozenset[_Read]) -> list[Extent]:
        return [self._looked_over(read)[1] for read in reads]

    def activation(self, compiled: Compiled, reads: frozenset[_Read]) -> cel.Activation:
        """The variables with the members that are read, in the library's form."""
        found = self._activations.get(reads)
        if found is None:
            variables: dict[str, Any] = {}
            for variable, member in reads:
                value = self._looked_over((variable, member))[0]
                if member is None:
                    variables[variable] = value
                else:
                    variables.setdefault(variable, {})[member] = value
            found = self._activations[reads] = compiled.environment.Activation(variables)
        return found

    def _looked_over(self, read: _Read) -> tuple[Any, Extent]:
        known = self._values.get(read)
        if known is None:
            value = _value(self._subject, *read)
            known = self._values[read] = (value, look_over(value))
        return known


def _value(subject: Subject, variable: str, member: str | None) -> Any:
    if member is None:
        return getattr(subject, variable)
    if variable == "step":
        value = getattr(subject, _OF_STEP[member]) if member in _OF_STEP else getattr(subject.attempt, member)
    elif variable == "flow":
        value = getattr(subject, _OF_FLOW[member])
    else:
        value = None if subject.tool is None else subject.tool.get(member)
    if (variable, member) not in _OBJECTS:
        return value
    if value is None:
        return {}  # so that has() works on it
    if not isinstance(value, Mapping):
        raise ExpressionFailed(f"{variable}.{member} is not an object")
    return dict(value)
