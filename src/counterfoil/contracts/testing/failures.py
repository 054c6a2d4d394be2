"""``undeclared_errors``: drive a tool into failures, and find what its contract does not declare."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from counterfoil.contracts.calls import ToolCall
from counterfoil.contracts.declaration import ContractTerms
from counterfoil.contracts.errors import OWN_CODES, ContractViolation, OutcomeUnknown
from counterfoil.contracts.stores.sqlite import SqliteDedupStore
from counterfoil.contracts.testing.reports import CallerAnswer, CheckReport
from counterfoil.contracts.testing.targets import Contract, contract_of

ArrangedFailure = Callable[[], Awaitable[Any] | AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | None]
"""Makes the downstream system fail from now on, or while the context manager that it returns is open."""
FailureCase = ArrangedFailure | Mapping[str, Any]
"""How a failure is brought about: by the downstream system, or by arguments."""


@dataclass(frozen=True, slots=True)
class DrivenFailure:
    """A failure and the call that met it. ``undeclared``: the code or the exception that the contract does not know."""

    name: str
    answer: CallerAnswer
    undeclared: str | None = None

    def __str__(self) -> str:
        return f"  {self.name}: {self.answer}" + (f"; undeclared: {self.undeclared}" if self.undeclared else "")


@dataclass(frozen=True)
class ErrorsReport(CheckReport):
    """``unseen``: declared codes that no failure brought about."""

    failures: list[DrivenFailure] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        unseen = [f"  declared, and not seen: {', '.join(self.unseen)}"] if self.unseen else []
        return [*map(str, self.failures), *unseen]

    @property
    def undeclared(self) -> list[str]:
        return sorted({each.undeclared for each in self.failures if each.undeclared is not None})


async def undeclared_errors(
    tool: str | Contract,
    arguments: Mapping[str, Any],
    failures: Mapping[str, FailureCase],
    *,
    exhaustive: bool = False,
    given: Mapping[str, Any] | None = None,
    call: Mapping[str, Any] | None = None,
) -> ErrorsReport:
    """Call the tool once under each failure, on a dedup store of its own and without the pauses between its retries.

    Found are codes that the tool raises and its contract does not declare, exceptions that mean no declared code, and
    errors that show an idempotency key. ``exhaustive``: every code that the contract declares must be seen as well.
    """
    contract = contract_of(tool, given)
    driven = [await _driven(contract, name, arguments, case, dict(call or {})) for name, case in failures.items()]
    seen = {failure.answer.code for failure, _ in driven}
    unseen = [code for code in contract.terms.errors if code not in seen and code not in OWN_CODES]
    problems = [problem for _, found in driven for problem in found]
    if exhaustive and unseen:
        problems.append(f"no failure brought about what the contract declares: {', '.join(unseen)}")
    report = ErrorsReport(contract.terms.name, [failure for failure, _ in driven], unseen, problems=problems)
    return report.checked()


async def _driven(
    contract: Contract, name: str, arguments: Mapping[str, Any], case: FailureCase, identity: dict[str, Any]
) -> tuple[DrivenFailure, list[str]]:
    key = f"failure-{uuid4().hex}"
    given = dict(case) if isinstance(case, Mapping) else {}
    made = ToolCall({**arguments, **given}, **{"idempotency_key": key, **identity})
    undeclared = None
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as arranged:
            store = await arranged.enter_async_context(SqliteDedupStore(Path(folder) / "effects.db"))
            if not isinstance(case, Mapping):
                await _arrange(arranged, case())
            try:
                answer = CallerAnswer.of_result(await contract.bind(store, sleep=_no_pause).run(made))
            except Exception as error:  # noqa: BLE001 (every end of a call is an answer)
                answer, undeclared = CallerAnswer.of_exception(error), _undeclared(error)
    return DrivenFailure(name, answer, undeclared), _problems(contract.terms, name, answer, undeclared, key)


async def _arrange(stack: contextlib.AsyncExitStack, made: Any) -> None:
    if inspect.isawaitable(made):
        made = await made
    if isinstance(made, AbstractAsyncContextManager):
        await stack.enter_async_context(made)
    elif isinstance(made, AbstractContextManager):
        stack.enter_context(made)


async def _no_pause(_: float) -> None:
    await asyncio.sleep(0)


def _undeclared(error: Exception) -> str | None:
    if isinstance(error, ContractViolation):
        return str(error.details.get("code", error.hint))
    if isinstance(error, OutcomeUnknown) and error.__cause__ is not None:
        return type(error.__cause__).__name__
    return None


def _problems(terms: ContractTerms, name: str, answer: CallerAnswer, undeclared: str | None, key: str) -> list[str]:
    problems = []
    if undeclared is not None:
        problems.append(f"{name}: the contract does not declare {undeclared}")
    if key in json.dumps(answer.error):
        problems.append(f"{name}: the error shows the idempotency key")
    if answer.code in terms.errors and not (answer.error or {}).get("corrective_action"):
        problems.append(f"{name}: {answer.code} has no corrective action for the model")
    return problems
