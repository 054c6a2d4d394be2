"""Predicates: a CEL expression over ``inputs`` that tells whether a step (or one of its items) runs.

Compiling and evaluating always end, with a result or a ValueError, whatever the text and the inputs are: see ``types``
and ``values``.

Threads: the library holds the interpreter's lock while it compiles and evaluates, and a Predicate is immutable, so it
can be used from several threads at once. They wait for each other, and so does an event loop; the work limit keeps that
short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from counterfoil.domain.expressions.types import MAX_TEXT, Compiled, Variable, compile_expression
from counterfoil.domain.expressions.values import MAX_DEPTH, ExpressionFailed, answer, bound_work, look_over

__all__ = ["MAX_DEPTH", "MAX_TEXT", "Predicate", "PredicateFailed"]

VARIABLE = "inputs"

PredicateFailed = ExpressionFailed
"""A predicate cannot be evaluated with these inputs. The message never contains a value of the inputs."""


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
        """Whether the predicate is true; raises PredicateFailed if it cannot be evaluated."""
        # Only the inputs that the expression reads are converted: the others may be large.
        data = dict(inputs) if self._names is None else {name: inputs[name] for name in self._names if name in inputs}
        bound_work(self._compiled.tree, (look_over(data),))
        return answer(self._compiled, self.text, self._compiled.environment.Activation({VARIABLE: data}))
