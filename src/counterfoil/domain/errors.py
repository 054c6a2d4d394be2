"""The errors that the engine can return, as typed exceptions with stable codes. The set is closed.

CounterfoilError
├── Refused                 the state of the work does not allow the report: a worker may treat it as final
│   ├── WorkNotActive
│   ├── AlreadySucceeded
│   ├── AlreadyFailed
│   ├── ConflictingResult
│   │   └── ConflictingEffect
│   └── WorkCancelled
├── Unknown                 there is no such record, or the caller may not know of it
│   ├── UnknownReceipt
│   ├── UnknownStep
│   ├── UnknownFlow
│   ├── UnknownWork
│   ├── UnknownSchedule
│   ├── UnknownWorkflow
│   ├── UnknownApproval
│   ├── UnknownCheckpoint
│   ├── UnknownPolicy
│   ├── UnknownSubscription
│   ├── UnknownDelivery
│   ├── HookNotFound
│   ├── UnknownEffect
│   ├── UnknownCallback
│   ├── UnknownRelayRequest
│   └── UnknownRoute
├── Invalid                 the request is wrong; the error names the place
│   ├── InvalidResult
│   │   └── UndecodableResult
│   ├── InvalidStep
│   ├── UnsafeOnceRequiresControl
│   ├── InvalidInput
│   ├── InvalidSchedule
│   ├── InvalidPolicy
│   ├── InvalidSubscription
│   ├── InvalidPayload
│   ├── UnreachableGoal
│   └── PlanCycle
├── Conflict                the request is valid, but the present state does not allow it
│   ├── FlowExists
│   ├── FlowFinal
│   ├── FlowNotFailed
│   ├── RunKeyConflict
│   ├── RunKeyReused
│   ├── WorkNotFailed
│   ├── NotWaitingForReconciliation
│   ├── WorkflowTerminal
│   ├── NotResumable
│   ├── IdempotencyKeyReused
│   ├── StepConflict
│   │   ├── IdempotencyKeyMismatch
│   │   ├── IdempotencyKeyInUse
│   │   ├── StepInputMismatch
│   │   ├── StepInFlight
│   │   ├── ClaimLost
│   │   ├── StepNotAllowed
│   │   ├── CompletionConflict
│   │   └── ApprovalHold
│   ├── UnapprovedSteps
│   │   ├── ApprovalPending
│   │   └── StepRejected
│   ├── ReviewConflict
│   │   ├── ApprovalExpired
│   │   ├── NotPending
│   │   └── SameReviewer
│   ├── NoApprovalNeeded
│   ├── SubscriptionDisabled
│   ├── CallbackNotReplayable
│   └── EffectConflict
│       ├── EffectInFlight
│       ├── EffectIncomplete
│       ├── EffectKeyReused
│       └── EffectFenced
├── Denied                  the caller is not authenticated, or not allowed to do this
│   ├── Unauthenticated
│   ├── Forbidden
│   ├── SelfApproval
│   └── InvalidSignature
├── Unacceptable            this route does not accept the HTTP message
│   ├── BadRequest
│   ├── MethodNotAllowed
│   ├── UnsupportedMediaType
│   ├── PayloadTooLarge
│   └── RequestTimeout
├── Unavailable             retry later: nothing was recorded
└── InternalError           a fault of the engine, never of the client

The domain raises them; only ``server/problems.py`` knows their HTTP statuses. No message and no detail repeats a value
that a caller sent, including an id that does not exist: the error names its place in the request instead. Ids of
existing records may be named, and so may the names that a definition gives to its own parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar


class ClientError(Exception):
    """Root of everything that a caller of an engine can catch: an error of the engine, or a missing answer."""


class CounterfoilError(ClientError):
    """The engine refused a request; ``code`` is stable, ``message`` is for people, ``details`` for programs.

    The engine raises it, and the client raises the same class for the answer. There, ``status`` is the HTTP status and
    ``retry_after`` the seconds of the header; inside the engine both have no meaning.
    """

    code: str
    default_message: ClassVar[str] = ""
    status: int = 0
    retry_after: float | None = None

    def __init__(self, message: str = "", **details: Any) -> None:
        self.message = message or self.default_message
        self.details = details
        super().__init__(self.message)

    def _text(self, name: str) -> str:
        """A detail that is a text; empty: the answer does not have it."""
        return str(self.details.get(name) or "")

    def body(self) -> dict[str, Any]:
        """The error as every answer shows it."""
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}


class Refused(CounterfoilError):
    """The state of the work does not allow the report; details carry ``status`` and ``recorded_at``."""


class WorkNotActive(Refused):
    code = "WORK_NOT_ACTIVE"
    default_message = "this work has not been dispatched yet, so there is nothing to report"


class AlreadySucceeded(Refused):
    code = "ALREADY_SUCCEEDED"
    default_message = "this result is already recorded: the work succeeded"


class AlreadyFailed(Refused):
    code = "ALREADY_FAILED"
    default_message = "this result is already recorded: the work failed"


class ConflictingResult(Refused):
    code = "CONFLICTING_RESULT"
    default_message = "another result is already recorded, and the first one is final"


class ConflictingEffect(ConflictingResult):
    """The same of an effect that is complete: 409, as every conflict of the effects API is."""

    code = "CONFLICTING_RESULT"
    default_message = "another outcome of this effect is already recorded, and the first one is final"


class WorkCancelled(Refused):
    code = "WORK_CANCELLED"
    default_message = "this work was cancelled; its result is no longer accepted"


class Unknown(CounterfoilError):
    """There is no such record."""


class UnknownReceipt(Unknown):
    code = "UNKNOWN_RECEIPT"
    default_message = "no work of this flow and step has this receipt"


class UnknownStep(Unknown):
    code = "UNKNOWN_STEP"
    default_message = "no step has this id"


class UnknownFlow(Unknown):
    code = "UNKNOWN_FLOW"
    default_message = "no flow has this id"


class UnknownWork(Unknown):
    code = "UNKNOWN_WORK"
    default_message = "no work item has this id"


class UnknownSchedule(Unknown):
    code = "UNKNOWN_SCHEDULE"
    default_message = "no schedule has this id"


class UnknownWorkflow(Unknown):
    code = "UNKNOWN_WORKFLOW"
    default_message = "no workflow has this id"


class UnknownApproval(Unknown):
    code = "UNKNOWN_APPROVAL"
    default_message = "no approval has this id"


class UnknownCheckpoint(Unknown):
    code = "UNKNOWN_CHECKPOINT"
    default_message = "the workflow has no checkpoint with this id"


class UnknownPolicy(Unknown):
    code = "UNKNOWN_POLICY"
    default_message = "no policy has this id"


class UnknownSubscription(Unknown):
    code = "UNKNOWN_SUBSCRIPTION"
    default_message = "no subscription has this id"


class UnknownDelivery(Unknown):
    code = "UNKNOWN_DELIVERY"
    default_message = "no such delivery: already delivered, or never existed"


class HookNotFound(Unknown):
    code = "HOOK_NOT_FOUND"
    default_message = "no hook waits for a payload with this token"


class UnknownEffect(Unknown):
    code = "UNKNOWN_EFFECT"
    default_message = "no effect of this tool and key is recorded, or its window has passed"


class UnknownCallback(Unknown):
    code = "UNKNOWN_CALLBACK"
    default_message = "no callback has this id: it is no longer kept, or never existed"


class UnknownRelayRequest(Unknown):
    code = "UNKNOWN_RELAY_REQUEST"
    default_message = "no request with this id waits for a reply: its time is over, or it was answered already"


class UnknownRoute(Unknown):
    code = "NOT_FOUND"
    default_message = "no such path; GET /openapi.json lists all paths"


class Invalid(CounterfoilError):
    """The request is wrong; ``details.errors`` lists each place and what is wrong there."""


class InvalidResult(Invalid):
    code = "INVALID_RESULT"
    default_message = "the body is not a StepResult"


class UndecodableResult(InvalidResult):
    """An InvalidResult found while the body was still being read: the rest of the connection cannot be parsed."""


class InvalidStep(Invalid):
    code = "INVALID_STEP"
    default_message = "the step definition is not valid"


class UnsafeOnceRequiresControl(Invalid):
    code = "UNSAFE_ONCE_REQUIRES_CONTROL"
    default_message = (
        "an unsafe_once step needs a control: an approval of its own (control.approval), or an enabled policy whose "
        "match.step_id names it and whose action is block or require_approval"
    )


class InvalidInput(Invalid):
    code = "INVALID_INPUT"
    default_message = "the request is not valid"


class InvalidSchedule(Invalid):
    code = "INVALID_SCHEDULE"
    default_message = "the schedule is not valid"


class InvalidPolicy(Invalid):
    code = "INVALID_POLICY"
    default_message = "the policy is not valid"


class InvalidSubscription(Invalid):
    code = "INVALID_SUBSCRIPTION"
    default_message = "the subscription is not valid"


class InvalidPayload(Invalid):
    code = "INVALID_PAYLOAD"
    default_message = "the payload is not what the step accepts; the step goes on waiting"


class UnreachableGoal(Invalid):
    code = "UNREACHABLE_GOAL"
    default_message = "a goal needs inputs that neither init nor any step provides"


class PlanCycle(Invalid):
    code = "PLAN_CYCLE"
    default_message = "steps wait for each other's outputs"


class Conflict(CounterfoilError):
    """The request is well formed, but the present state does not allow it."""


class FlowExists(Conflict):
    code = "FLOW_EXISTS"
    default_message = "a flow with this id already exists"


class FlowFinal(Conflict):
    code = "FLOW_FINAL"
    default_message = "the flow has already ended and cannot be cancelled"


class FlowNotFailed(Conflict):
    code = "FLOW_NOT_FAILED"
    default_message = "only a failed flow can be redriven"


class RunKeyConflict(Conflict):
    """Details: ``flow_id`` and ``status`` of the owner; ``owner_changed`` if it is not as ``if_owner`` says."""

    code = "RUN_KEY_CONFLICT"
    default_message = "another flow owns this run key"

    @property
    def flow_id(self) -> str:
        """The flow that owns the key."""
        return self._text("flow_id")

    @property
    def flow_status(self) -> str:
        """The state of that flow."""
        return self._text("status")


class RunKeyReused(Conflict):
    """Details: ``flow_id`` and ``status`` of the owner."""

    code = "RUN_KEY_REUSED"
    default_message = "this run key belongs to a flow with other goals or another init"

    @property
    def flow_id(self) -> str:
        """The flow that owns the key."""
        return self._text("flow_id")

    @property
    def flow_status(self) -> str:
        """The state of that flow."""
        return self._text("status")


class WorkNotFailed(Conflict):
    code = "WORK_NOT_FAILED"
    default_message = "only failed work can be redriven"


class NotWaitingForReconciliation(Conflict):
    code = "NOT_WAITING_FOR_RECONCILIATION"
    default_message = "this work item does not wait for reconciliation: its outcome is known, or it is being sent"


class WorkflowTerminal(Conflict):
    """Details carry ``retry_context`` for a gate call: a run that is repeated gets the recorded output of its steps."""

    code = "WORKFLOW_TERMINAL"
    default_message = "the workflow has ended"

    @property
    def retry_context(self) -> dict[str, Any] | None:
        """That of the step in the gate call; None: the step was not called before the workflow ended."""
        return self.details.get("retry_context")

    @property
    def same_input(self) -> bool:
        """Whether ``retry_context`` belongs to the input of the request."""
        return bool(self.details.get("same_input"))


class NotResumable(Conflict):
    code = "NOT_RESUMABLE"
    default_message = "the workflow cannot be resumed from this checkpoint"

    @property
    def workflow_id(self) -> str:
        return self._text("workflow_id")


class StepConflict(Conflict):
    """The request does not match what is recorded for the step."""

    @property
    def workflow_id(self) -> str:
        return self._text("workflow_id")

    @property
    def step_id(self) -> str:
        return self._text("step_id")


class IdempotencyKeyMismatch(StepConflict):
    """Do not retry: either the key is wrong, or an earlier run used a key that the caller no longer has."""

    code = "IDEMPOTENCY_KEY_MISMATCH"
    default_message = "idempotency_key does not match the key recorded on the step's first gate call"

    @property
    def expected_idempotency_key(self) -> str:
        """Empty: the step has none."""
        return self._text("expected_idempotency_key")

    @property
    def received_idempotency_key(self) -> str:
        """Empty: the request has none."""
        return self._text("received_idempotency_key")


class IdempotencyKeyReused(Conflict):
    code = "IDEMPOTENCY_KEY_REUSED"
    default_message = "this idempotency_key has already created a workflow from a different body"

    @property
    def workflow_id(self) -> str:
        return self._text("workflow_id")


class IdempotencyKeyInUse(StepConflict):
    code = "IDEMPOTENCY_KEY_IN_USE"
    default_message = "another workflow already uses this idempotency_key, which must be unique across workflows"

    @property
    def owner(self) -> dict[str, str]:
        """The step that used the key first."""
        return {"workflow_id": self.workflow_id, "step_id": self.step_id}

    @property
    def completed(self) -> bool:
        """Whether the owner has an output, which ``"on_duplicate": "replay"`` would return."""
        return bool(self.details.get("completed"))


class StepInputMismatch(StepConflict):
    code = "STEP_INPUT_MISMATCH"
    default_message = (
        "step_input or tool_context differs from that of the recorded decision; "
        'use "retry_policy": "reevaluate", or another step_id'
    )


class StepInFlight(StepConflict):
    code = "STEP_IN_FLIGHT"
    default_message = "another agent has claimed this step, and its lease has not expired"

    @property
    def lease_expires_at(self) -> str:
        return self._text("lease_expires_at")


class ClaimLost(StepConflict):
    code = "CLAIM_LOST"
    default_message = "this holder's claim on the step has expired, or another holder has it"


class StepNotAllowed(StepConflict):
    code = "STEP_NOT_ALLOWED"
    default_message = "the gate did not allow this step, so there is nothing to complete"

    @property
    def decision(self) -> str:
        return self._text("decision")

    @property
    def approval_id(self) -> str | None:
        return self.details.get("approval_id")


class CompletionConflict(StepConflict):
    code = "COMPLETION_CONFLICT"
    default_message = "another outcome of this step is already recorded, and the first one is final"


class ApprovalHold(StepConflict):
    code = "APPROVAL_HOLD"
    default_message = "this step has a pending or rejected approval; re-evaluation cannot bypass it"

    @property
    def approval_id(self) -> str:
        return self._text("approval_id")

    @property
    def approval_status(self) -> str:
        return self._text("approval_status")


class UnapprovedSteps(Conflict):
    """Steps of the workflow have no approval."""

    @property
    def workflow_id(self) -> str:
        return self._text("workflow_id")

    @property
    def steps(self) -> list[str]:
        return list(self.details.get("steps") or [])


class ApprovalPending(UnapprovedSteps):
    code = "APPROVAL_PENDING"
    default_message = "a step of this workflow waits for an approval"


class ReviewConflict(Conflict):
    """The review is not counted."""

    @property
    def approval_id(self) -> str:
        return self._text("approval_id")


class ApprovalExpired(ReviewConflict):
    code = "APPROVAL_EXPIRED"
    default_message = "the approval expired before it was given"

    @property
    def expires_at(self) -> str:
        return self._text("expires_at")


class StepRejected(UnapprovedSteps):
    code = "STEP_REJECTED"
    default_message = "a step of this workflow was rejected"


class NotPending(ReviewConflict):
    code = "NOT_PENDING"
    default_message = "this approval has already been decided"

    @property
    def approval_status(self) -> str:
        """How the approval was decided."""
        return self._text("status")


class NoApprovalNeeded(Conflict):
    code = "NO_APPROVAL_NEEDED"
    default_message = "this step does not wait for an approval"


class SameReviewer(ReviewConflict):
    code = "SAME_REVIEWER"
    default_message = "this API key has already approved; the remaining approvals must come from other reviewers"


class SubscriptionDisabled(Conflict):
    code = "SUBSCRIPTION_DISABLED"
    default_message = "this subscription is disabled; PUT it with enabled: true first"


class CallbackNotReplayable(Conflict):
    code = "CALLBACK_NOT_REPLAYABLE"
    default_message = "this callback cannot be replayed"


class EffectConflict(Conflict):
    """A reservation of the same key prevents it; ``details.retriable``: whether the same call may succeed later."""

    @property
    def retriable(self) -> bool:
        return bool(self.details.get("retriable"))


class EffectInFlight(EffectConflict):
    code = "RETRY_IN_FLIGHT"
    default_message = "another caller holds the reservation of this key: call again after details.expires_at"

    @property
    def expires_at(self) -> str:
        """When the reservation lapses, unless its holder completes it before."""
        return self._text("expires_at")


class EffectIncomplete(EffectConflict):
    code = "UNSAFE_ONCE_INCOMPLETE"
    default_message = (
        "the reservation of an irreversible effect has lapsed, and whether it was applied is unknown: "
        "find out, then settle it"
    )

    @property
    def holder(self) -> str:
        """The caller whose reservation has lapsed."""
        return self._text("holder")


class EffectKeyReused(EffectConflict):
    code = "EFFECT_KEY_REUSED"
    default_message = "this key was used for another call: with other arguments, or with another class"


class EffectFenced(EffectConflict):
    code = "FENCED"
    default_message = "this fence is not that of the current reservation: its result does not count"


class Denied(CounterfoilError):
    """The caller is not authenticated, or not allowed to do this."""


class Unauthenticated(Denied):
    code = "UNAUTHENTICATED"
    default_message = "an API key is required: Authorization: Bearer <secret>, or Basic name:secret"


class Forbidden(Denied):
    code = "FORBIDDEN"
    default_message = "the role of this API key does not allow this request"


class SelfApproval(Denied):
    code = "SELF_APPROVAL"
    default_message = "the requester of an approval may not give it"


class InvalidSignature(Denied):
    code = "INVALID_SIGNATURE"
    default_message = "this step requires completions signed with Standard Webhooks headers"


class Unacceptable(CounterfoilError):
    """This route does not accept the HTTP message."""


class BadRequest(Unacceptable):
    code = "BAD_REQUEST"
    default_message = "the HTTP request is malformed"


class MethodNotAllowed(Unacceptable):
    code = "METHOD_NOT_ALLOWED"
    default_message = "this path does not support this method"


class UnsupportedMediaType(Unacceptable):
    code = "UNSUPPORTED_MEDIA_TYPE"
    default_message = "the body must be JSON: Content-Type: application/json, or a type that ends in +json"


class PayloadTooLarge(Unacceptable):
    code = "PAYLOAD_TOO_LARGE"
    default_message = "the body is larger than this server accepts"


class RequestTimeout(Unacceptable):
    code = "REQUEST_TIMEOUT"
    default_message = "the request did not arrive within the server's time limit"


class Unavailable(CounterfoilError):
    """Nothing was recorded; the same request may be sent again later."""

    code = "UNAVAILABLE"
    default_message = "the engine cannot accept this request now; retry later"


class InternalError(CounterfoilError):
    """A fault of the engine. Its cause is in the log, never in the answer."""

    code = "INTERNAL"
    default_message = "the engine failed to handle this request"


def error_types(root: type[CounterfoilError] = CounterfoilError) -> Iterator[type[CounterfoilError]]:
    """Every concrete error of the tree, for the reference and for the test that each has a status."""
    for child in root.__subclasses__():
        if "code" in vars(child):
            yield child
        yield from error_types(child)
