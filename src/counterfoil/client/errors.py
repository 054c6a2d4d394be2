"""What can go wrong on the caller's side of the wire.

ClientError
├── ConnectionFailed        nobody answered, or the answer never came
├── InvalidDispatch         what a step endpoint received is no dispatch
├── ReportUndelivered       a report could not be handed in, however often it was tried
├── ReportRefused           the engine refuses what was sent, and would refuse it again
└── ApiError                the engine answered with an error
    ├── NotFound            UnknownStep, UnknownFlow, UnknownWork, UnknownSchedule
    ├── Invalid             InvalidStep, InvalidInput, InvalidSchedule, UnreachableGoal, PlanCycle
    ├── Conflict            FlowExists, FlowFinal, FlowNotFailed, WorkNotFailed
    ├── Denied              Unauthenticated, Forbidden
    └── Unavailable         not now; ``retry_after`` says when

The refusals of the gate, of approvals and of policies are in ``gate_errors``.
Two more are raised *by* step handlers, to say how a work item ended: StepFailed and NotCompleted.
No message ever holds a receipt token or an API key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """The root: catch this one to catch everything that the client raises."""


class ConnectionFailed(ClientError):
    """No answer came. Whether the request was carried out is not known."""


class InvalidDispatch(ClientError, ValueError):
    """A request body that is not what the engine sends to a step endpoint."""


class ReportUndelivered(ClientError):
    """Every try to hand in a report failed; the engine will notice by the callback deadline."""


class ReportRefused(ClientError):
    """The engine refused a heartbeat for a reason that trying again cannot cure."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class ApiError(ClientError):
    """The engine's own error: ``code`` is stable, ``message`` for people, ``details`` for programs."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        *,
        retry_after: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after = retry_after
        super().__init__(f"{code}: {message}")


class NotFound(ApiError):
    """There is no such thing."""


class UnknownStep(NotFound):
    """No step has this id."""


class UnknownFlow(NotFound):
    """No flow has this id."""


class UnknownWork(NotFound):
    """No work item has this id."""


class UnknownSchedule(NotFound):
    """No schedule has this id."""


class Invalid(ApiError):
    """The request itself is wrong; ``details`` says where."""


class InvalidStep(Invalid):
    """The step definition breaks a rule."""


class InvalidInput(Invalid):
    """A value is missing or of the wrong type."""


class InvalidSchedule(Invalid):
    """The schedule breaks a rule."""


class UnreachableGoal(Invalid):
    """A goal needs inputs that nothing provides; ``details["missing"]`` says which, and who could."""


class PlanCycle(Invalid):
    """Steps wait for each other: ``details["steps"]``."""


class Conflict(ApiError):
    """The request is well formed, but the present state does not allow it."""


class FlowExists(Conflict):
    """A flow with this id was started before."""


class FlowFinal(Conflict):
    """The flow has ended."""


class FlowNotFailed(Conflict):
    """Only a flow that has failed can be redriven."""


class WorkNotFailed(Conflict):
    """Only work that has failed can be redriven."""


class Denied(ApiError):
    """The caller may not do this."""


class Unauthenticated(Denied):
    """An API key is needed, or the one given is wrong."""


class Forbidden(Denied):
    """The role of the API key does not allow it."""


class Unavailable(ApiError):
    """Nothing was recorded; the same request may be sent again after ``retry_after`` seconds."""


class StepFailed(Exception):
    """Raised by a step handler: the work failed for good, and trying again would not help."""


class NotCompleted(Exception):
    """Raised by a step handler: not this time; the engine tries again, not before ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)
