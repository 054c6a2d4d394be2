"""What can go wrong on the caller's side of the wire.

ClientError
├── ConnectionFailed        no answer: the engine cannot be reached, or the connection broke
├── InvalidDispatch         what a step endpoint received is no dispatch
├── ReportUndelivered       every attempt to deliver a report failed
├── ReportRefused           the engine refuses a heartbeat, and would refuse it again
├── StepUnwanted            the workflow ended while the step was run
├── NotAllowed              the gate answered, and the step may not be run (now): StepBlocked, ApprovalRequired
└── ApiError                the engine answered with an error; each code has its class
    ├── Refused             a report does not count: AlreadySucceeded, WorkCancelled, ...
    ├── NotFound            UnknownStep, UnknownFlow, UnknownWork, ...
    ├── Invalid             InvalidStep, InvalidInput, UnreachableGoal, ...
    ├── Conflict            FlowExists, FlowFinal, NotWaitingForReconciliation, ...
    │   ├── StepConflict    IdempotencyKeyMismatchError, StepInFlightError, ClaimLostError, ...
    │   └── ReviewConflict  NotPendingError, ApprovalExpiredError, SameReviewerError
    ├── Denied              Unauthenticated, Forbidden, SelfApprovalError
    ├── Unacceptable        PayloadTooLarge, UnsupportedMediaType, ...
    ├── Unavailable         not now; ``retry_after`` says when
    └── InternalError       a fault of the engine

The classes of error codes are those that the engine itself raises: ``counterfoil.domain.errors`` declares each once.
Each has its own name here, as tracebacks show it. Some have a second name, which is the one that programs use.
Two more are raised *by* step handlers, to say how a work item ended: StepFailed and NotCompleted.
No message ever holds a receipt token or an API key.
"""

from __future__ import annotations

from counterfoil.client.documents import GateAnswer, PolicyMatch, RetryContext
from counterfoil.domain.errors import (
    AlreadyFailed,
    AlreadySucceeded,
    ApprovalExpired,
    ApprovalHold,
    ApprovalPending,
    BadRequest,
    CallbackNotReplayable,
    ClaimLost,
    ClientError,
    CompletionConflict,
    Conflict,
    ConflictingResult,
    CounterfoilError,
    Denied,
    FlowExists,
    FlowFinal,
    FlowNotFailed,
    Forbidden,
    HookNotFound,
    IdempotencyKeyInUse,
    IdempotencyKeyMismatch,
    IdempotencyKeyReused,
    InternalError,
    Invalid,
    InvalidInput,
    InvalidPayload,
    InvalidPolicy,
    InvalidResult,
    InvalidSchedule,
    InvalidSignature,
    InvalidStep,
    InvalidSubscription,
    MethodNotAllowed,
    NoApprovalNeeded,
    NotPending,
    NotResumable,
    NotWaitingForReconciliation,
    PayloadTooLarge,
    PlanCycle,
    Refused,
    RequestTimeout,
    ReviewConflict,
    SameReviewer,
    SelfApproval,
    StepConflict,
    StepInFlight,
    StepInputMismatch,
    StepNotAllowed,
    StepRejected,
    SubscriptionDisabled,
    Unacceptable,
    UnapprovedSteps,
    Unauthenticated,
    Unavailable,
    UndecodableResult,
    Unknown,
    UnknownApproval,
    UnknownCallback,
    UnknownCheckpoint,
    UnknownDelivery,
    UnknownFlow,
    UnknownPolicy,
    UnknownReceipt,
    UnknownRelayRequest,
    UnknownRoute,
    UnknownSchedule,
    UnknownStep,
    UnknownSubscription,
    UnknownWork,
    UnknownWorkflow,
    UnreachableGoal,
    UnsafeOnceRequiresControl,
    UnsupportedMediaType,
    WorkCancelled,
    WorkflowTerminal,
    WorkNotActive,
    WorkNotFailed,
)

# second names
ApiError = CounterfoilError
NotFound = Unknown
ApprovalExpiredError = ApprovalExpired
ApprovalHoldError = ApprovalHold
ApprovalPendingError = ApprovalPending
ClaimLostError = ClaimLost
CompletionConflictError = CompletionConflict
IdempotencyKeyInUseError = IdempotencyKeyInUse
IdempotencyKeyMismatchError = IdempotencyKeyMismatch
IdempotencyKeyReusedError = IdempotencyKeyReused
NoApprovalNeededError = NoApprovalNeeded
NotPendingError = NotPending
SameReviewerError = SameReviewer
SelfApprovalError = SelfApproval
StepInFlightError = StepInFlight
StepInputMismatchError = StepInputMismatch
StepNotAllowedError = StepNotAllowed
StepRejectedError = StepRejected
WorkflowTerminalError = WorkflowTerminal


class ConnectionFailed(ClientError):
    """No answer came. Whether the request was carried out is not known."""


class InvalidDispatch(ClientError, ValueError):
    """A request body that is not what the engine sends to a step endpoint."""


class ReportUndelivered(ClientError):
    """Every attempt to deliver a report failed; the engine will notice by the callback deadline."""


class ReportRefused(ClientError):
    """The engine refused a heartbeat for a reason that a retry cannot cure."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code}: {message}")


class StepFailed(Exception):
    """Raised by a step handler: the work failed for good, and a retry would not help."""


class NotCompleted(Exception):
    """Raised by a step handler: not this time; the engine tries again, not before ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class StepUnwanted(ClientError):
    """The workflow ended while the step was run: its result is not needed."""


class NotAllowed(ClientError):
    """The gate has answered, and the step may not be run; ``gate`` is its answer."""

    def __init__(self, gate: GateAnswer, message: str) -> None:
        self.gate = gate
        super().__init__(message)

    @property
    def workflow_id(self) -> str:
        return self.gate["workflow_id"]

    @property
    def step_id(self) -> str:
        return self.gate["step_id"]

    @property
    def reason(self) -> str | None:
        return self.gate["reason"]

    @property
    def policies(self) -> list[PolicyMatch]:
        """The policies that matched."""
        return self.gate["policies_matched"]

    @property
    def retry_context(self) -> RetryContext:
        return self.gate["retry_context"]


class StepBlocked(NotAllowed):
    """A policy forbids the step, or its approval was rejected or has expired (``approval_status``)."""

    def __init__(self, gate: GateAnswer) -> None:
        super().__init__(gate, f"step {gate['step_id']} is blocked: {gate['reason'] or 'no reason is given'}")

    @property
    def approval_status(self) -> str | None:
        """``rejected`` or ``expired`` if an approval was requested."""
        return self.gate["approval_status"]


class ApprovalRequired(NotAllowed):
    """The step needs an approval: ask again when it is given, or let ``client.step`` wait for it."""

    def __init__(self, gate: GateAnswer) -> None:
        self.approval_id = gate["approval_id"] or ""
        self.expires_at = gate.get("approval_expires_at")
        why = gate["reason"] or "no reason is given"
        super().__init__(gate, f"step {gate['step_id']} waits for approval {self.approval_id}: {why}")


__all__ = [
    "AlreadyFailed",
    "AlreadySucceeded",
    "ApiError",
    "ApprovalExpired",
    "ApprovalExpiredError",
    "ApprovalHold",
    "ApprovalHoldError",
    "ApprovalPending",
    "ApprovalPendingError",
    "ApprovalRequired",
    "BadRequest",
    "CallbackNotReplayable",
    "ClaimLost",
    "ClaimLostError",
    "ClientError",
    "CompletionConflict",
    "CompletionConflictError",
    "Conflict",
    "ConflictingResult",
    "ConnectionFailed",
    "CounterfoilError",
    "Denied",
    "FlowExists",
    "FlowFinal",
    "FlowNotFailed",
    "Forbidden",
    "HookNotFound",
    "IdempotencyKeyInUse",
    "IdempotencyKeyInUseError",
    "IdempotencyKeyMismatch",
    "IdempotencyKeyMismatchError",
    "IdempotencyKeyReused",
    "IdempotencyKeyReusedError",
    "InternalError",
    "Invalid",
    "InvalidDispatch",
    "InvalidInput",
    "InvalidPayload",
    "InvalidPolicy",
    "InvalidResult",
    "InvalidSchedule",
    "InvalidSignature",
    "InvalidStep",
    "InvalidSubscription",
    "MethodNotAllowed",
    "NoApprovalNeeded",
    "NoApprovalNeededError",
    "NotAllowed",
    "NotCompleted",
    "NotFound",
    "NotPending",
    "NotPendingError",
    "NotResumable",
    "NotWaitingForReconciliation",
    "PayloadTooLarge",
    "PlanCycle",
    "Refused",
    "ReportRefused",
    "ReportUndelivered",
    "RequestTimeout",
    "ReviewConflict",
    "SameReviewer",
    "SameReviewerError",
    "SelfApproval",
    "SelfApprovalError",
    "StepBlocked",
    "StepConflict",
    "StepFailed",
    "StepInFlight",
    "StepInFlightError",
    "StepInputMismatch",
    "StepInputMismatchError",
    "StepNotAllowed",
    "StepNotAllowedError",
    "StepRejected",
    "StepRejectedError",
    "StepUnwanted",
    "SubscriptionDisabled",
    "Unacceptable",
    "UnapprovedSteps",
    "Unauthenticated",
    "Unavailable",
    "UndecodableResult",
    "Unknown",
    "UnknownApproval",
    "UnknownCallback",
    "UnknownCheckpoint",
    "UnknownDelivery",
    "UnknownFlow",
    "UnknownPolicy",
    "UnknownReceipt",
    "UnknownRelayRequest",
    "UnknownRoute",
    "UnknownSchedule",
    "UnknownStep",
    "UnknownSubscription",
    "UnknownWork",
    "UnknownWorkflow",
    "UnreachableGoal",
    "UnsafeOnceRequiresControl",
    "UnsupportedMediaType",
    "WorkCancelled",
    "WorkNotActive",
    "WorkNotFailed",
    "WorkflowTerminal",
    "WorkflowTerminalError",
]
