"""Predicates: a CEL expression over ``inputs`` that says whether a step (or an item of it) is wanted.

Whatever the text and the inputs are, compiling and asking end, and end with an answer or a ValueError: see
``expression_types`` and ``expression_values``.

Threads: the library holds the interpreter's lock while it compiles and evaluates, and a Predicate is never changed
after it was compiled: it may be asked from several threads at once. They wait for one another, and so does an event
loop; the limit of work keeps that short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from counterfoil.domain.expressions.types import MAX_TEXT, Compiled, Variable, compile_expression
from counterfoil.domain.expressions.values import MAX_DEPTH, ExpressionFailed, answer, bound_work, look_over

__all__ = ["MAX_DEPTH", "MAX_TEXT", "Predicate", "PredicateFailed"]

VARIABLE = "inputs"

PredicateFailed = ExpressionFailed
"""A predicate has no answer for these inputs. The message never contains a value of the inputs."""


class Predicate:
    """A compiled predicate; immutable."""

    def __init__(self, text: str, compiled: Compiled) -> None:
        self.text = text
        self._compiled = compiled
        names = {use.name for use in compiled.tree.uses}
        self._names = None if None in names else sorted(name for name in names if name is not None)

    @classmethod
    def compile(cls, text: str, types: Mapping[str, str]) -> Self:
        """Check and compile; ``types`` has the step's inputs by name, and is empty if the step declares nothing."""
        inputs = Variable(members=types or None, lacks="the step takes no")
        return cls(text, compile_expression(text, {VARIABLE: inputs}))

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the predicate holds; PredicateFailed if that cannot be said."""
        # Only what the expression reads is converted: the rest may be large, and is nobody's business here.
        data = dict(inputs) if self._names is None else {name: inputs[name] for name in self._names if name in inputs}
        bound_work(self._compiled.tree, (look_over(data),))
        return answer(self._compiled, self.text, self._compiled.environment.Activation({VARIABLE: data}))
