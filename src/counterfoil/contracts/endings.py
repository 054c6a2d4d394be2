"""How an execution of a tool ended: a result, a final failure, a transient failure, or an unknown outcome."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from counterfoil.contracts.declaration import ContractTerms
from counterfoil.contracts.errors import (
    ContractViolation,
    OutcomeUnknown,
    ToolError,
    ToolFailure,
    Transient,
    UnsafeOnceIncomplete,
    failure_document,
)
from counterfoil.domain.effects.reservations import EffectOutcome

logger = logging.getLogger("counterfoil.contracts")

TRY_LATER = "Try the same call again later."


@dataclass(frozen=True, slots=True)
class CallEnding:
    """A result as it is recorded, or a failure."""

    document: Any = None
    failure: ToolError | None = None

    @property
    def code(self) -> str | None:
        return self.failure.code if self.failure else None

    def outcome(self) -> EffectOutcome:
        if self.failure is None:
            return EffectOutcome(success=True, result=self.document)
        return EffectOutcome(success=False, error=failure_document(self.failure))


def ended_with(terms: ContractTerms, adapter: TypeAdapter[Any], made: Any) -> CallEnding:
    """A result as JSON. One that cannot be recorded is a defect, found after the effect: a final failure."""
    try:
        document = adapter.dump_python(made, mode="json", warnings="error")
        adapter.validate_python(document)
        return CallEnding(document)
    except Exception as error:  # noqa: BLE001 (pydantic raises several, and so may serializers of users)
        logger.warning("the result of tool %s does not fit its return type: %s", terms.name, error)
        violation = ContractViolation("the tool was executed, but its result does not fit its return type")
        violation.__cause__ = error
        return CallEnding(failure=violation)


def ended_by(terms: ContractTerms, error: Exception) -> CallEnding:
    """What an exception of the tool means: a final or a transient failure. An unknown outcome is raised."""
    if isinstance(error, ToolFailure | Transient):
        if not terms.declares(error.code):
            return _undeclared(error)
        return CallEnding(failure=_completed(terms, error))
    if (found := terms.spec_of(error)) is not None:
        code, spec = found
        made: ToolError = Transient(code) if spec.retriable else ToolFailure(code)
        made.__cause__ = error
        return CallEnding(failure=_completed(terms, made))
    if isinstance(error, ContractViolation):  # of another contract, that the tool called
        return CallEnding(failure=error)
    if isinstance(error, ToolError):
        return _undeclared(error)
    retriable = terms.effect != "irreversible"
    raise OutcomeUnknown(
        f"the tool raised {type(error).__name__}, which its contract does not declare: "
        "whether it had its effect is not known",
        corrective_action=TRY_LATER if retriable else UnsafeOnceIncomplete.default_action,
        retriable=retriable,
    ) from error


def _undeclared(error: ToolError) -> CallEnding:
    violation = ContractViolation.undeclared_code(error.code)
    violation.__cause__ = error
    if isinstance(error, ToolFailure):
        return CallEnding(failure=violation)
    raise violation  # it may be transient: the reservation stays, and nothing is recorded


def _completed(terms: ContractTerms, error: ToolError) -> ToolError:
    """What the tool did not say itself is as the contract declares it."""
    spec = terms.errors[error.code]
    if error.hint == error.default_hint:
        error.hint = spec.hint or error.hint
    if error.corrective_action == error.default_action:
        error.corrective_action = spec.corrective_action
    return error
