"""What a check saw: answers of callers, and a report with the problems that make the check fail."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic_core import to_jsonable_python

from counterfoil.contracts.errors import CallInFlight, ToolError
from counterfoil.domain.canonical import canonical_json

CountEffects = Callable[[], int | Awaitable[int]]
"""How often the effect has happened so far, asked where it happens: at the downstream system, not in the tool."""


class ContractCheckFailed(AssertionError):
    """A tool did not pass a check; ``report`` has everything that was seen."""

    def __init__(self, report: CheckReport) -> None:
        self.report = report
        super().__init__(str(report))


@dataclass(frozen=True, slots=True)
class CallerAnswer:
    """What one caller got: ``result`` as JSON, or ``error`` (``code``, ``retriable``, ...)."""

    result: Any = None
    error: dict[str, Any] | None = None

    @property
    def code(self) -> str | None:
        return None if self.error is None else str(self.error["code"])

    @property
    def is_in_flight(self) -> bool:
        """Told to come again, since another caller holds the key: no answer about the action itself."""
        return self.code == CallInFlight.code

    @property
    def identity(self) -> bytes:
        """Equal for answers that say the same about the action."""
        error = None if self.error is None else {**self.error, "retry_after": None}
        return canonical_json([error, self.result])

    def __str__(self) -> str:
        if self.error is None:
            return f"result {self.result}"
        hint = self.error.get("hint")
        return f"{self.code} ({hint})" if hint else str(self.code)

    @classmethod
    def of_result(cls, result: Any) -> Self:
        return cls(to_jsonable_python(result, fallback=repr))

    @classmethod
    def of_exception(cls, error: Exception) -> Self:
        if isinstance(error, ToolError):
            return cls(error=error.to_dict())
        return cls(error={"code": type(error).__name__, "retriable": False, "hint": str(error)})

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        return cls(document.get("result"), document.get("error"))

    def to_document(self) -> dict[str, Any]:
        return {"result": self.result, "error": self.error}


@dataclass(frozen=True)
class CheckReport:
    """``problems``: why the check failed, one sentence each; empty: it passed."""

    tool: str
    problems: list[str] = field(default_factory=list, kw_only=True)

    @property
    def passed(self) -> bool:
        return not self.problems

    def lines(self) -> list[str]:
        """What was seen, for people."""
        return []

    def checked(self) -> Self:
        """This report; raises ContractCheckFailed if there are problems."""
        if self.problems:
            raise ContractCheckFailed(self)
        return self

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "failed"
        return "\n".join([f"{self.tool}: {verdict}", *(f"- {problem}" for problem in self.problems), *self.lines()])


async def counted(effects: CountEffects) -> int:
    found = effects()
    return await found if inspect.isawaitable(found) else found
