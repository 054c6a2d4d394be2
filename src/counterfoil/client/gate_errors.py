"""What agents, reviewers and writers of policies are refused with, and what a guarded step ends with.

ApiError
├── Conflict
│   ├── WorkflowTerminalError, IdempotencyKeyReusedError
│   ├── StepConflict        IdempotencyKeyMismatchError, IdempotencyKeyInUseError, StepInputMismatchError,
│   │                       StepInFlightError, ClaimLostError, StepNotAllowedError,
│   │                       CompletionConflictError, ApprovalHoldError
│   └── ReviewConflict      NotPendingError, ApprovalExpiredError, SameReviewerError, NoApprovalNeededError
├── NotFound                UnknownWorkflow, UnknownApproval, UnknownPolicy, UnknownSubscription,
│                           UnknownDelivery
└── Denied                  SelfApprovalError

StepUnwanted                the workflow ended while the step was run
NotAllowed                  the gate has answered, and the step may not be run (now): StepBlocked, ApprovalRequired
"""

from __future__ import annotations

from typing import cast

from counterfoil.client.documents import GateAnswer, KeyOwner, PolicyMatch, RetryContext
from counterfoil.client.errors import ClientError, Conflict, Denied, Invalid, NotFound


class UnknownWorkflow(NotFound):
    """No workflow has this id."""


class UnknownApproval(NotFound):
    """No approval has this id."""


class UnknownPolicy(NotFound):
    """No policy has this id."""


class UnknownSubscription(NotFound):
    """No subscription has this id."""


class UnknownDelivery(NotFound):
    """The subscriber has no such delivery: perhaps it was made."""


class InvalidPolicy(Invalid):
    """The policy breaks a rule."""


class InvalidSubscription(Invalid):
    """The subscription breaks a rule."""


class WorkflowTerminalError(Conflict):
    """The workflow has ended. A whole run can still be retried with what it gave: see ``retry_context``."""

    @property
    def retry_context(self) -> RetryContext | None:
        """Of the step that was asked for; None if it was never asked for before the end."""
        return cast("RetryContext | None", self.details.get("retry_context"))

    @property
    def same_input(self) -> bool:
        """Whether what it tells is about the input that was asked for."""
        return bool(self.details.get("same_input"))


class IdempotencyKeyReusedError(Conflict):
    """This key has made another workflow, from another body."""

    @property
    def workflow_id(self) -> str:
        return str(self.details.get("workflow_id", ""))


class StepConflict(Conflict):
    """What was asked or reported does not fit what is known of the step."""

    @property
    def workflow_id(self) -> str:
        return str(self.details.get("workflow_id", ""))

    @property
    def step_id(self) -> str:
        return str(self.details.get("step_id", ""))


class IdempotencyKeyMismatchError(StepConflict):
    """The first call fixed the key of the step, or that it has none. Not to be retried: somebody must look."""

    @property
    def expected_idempotency_key(self) -> str:
        """Empty: the step has none."""
        return str(self.details.get("expected_idempotency_key", ""))

    @property
    def received_idempotency_key(self) -> str:
        """Empty: none was given."""
        return str(self.details.get("received_idempotency_key", ""))


class IdempotencyKeyInUseError(StepConflict):
    """The key is unique across workflows, and another one has used it."""

    @property
    def owner(self) -> KeyOwner:
        return {"workflow_id": self.workflow_id, "step_id": self.step_id}

    @property
    def completed(self) -> bool:
        """Whether the owner has an output, which ``on_duplicate="replay"`` would have given."""
        return bool(self.details.get("completed"))


class StepInputMismatchError(StepConflict):
    """The recorded decision is about another input: ask with ``retry_policy="reevaluate"``, or for another step."""


class StepInFlightError(StepConflict):
    """Another agent has claimed the step."""

    @property
    def lease_expires_at(self) -> str:
        return str(self.details.get("lease_expires_at", ""))


class ClaimLostError(StepConflict):
    """The claim has lapsed, or is another agent's: whoever wants to go on asks the gate again."""


class StepNotAllowedError(StepConflict):
    """The gate did not allow the step, so there is nothing to complete."""

    @property
    def decision(self) -> str:
        return str(self.details.get("decision", ""))

    @property
    def approval_id(self) -> str | None:
        return cast("str | None", self.details.get("approval_id"))


class CompletionConflictError(StepConflict):
    """Another outcome of the step is recorded, and the first one is final."""


class ApprovalHoldError(StepConflict):
    """People were asked about this very step, or have said no: asking the policies again does not get around them."""

    @property
    def approval_id(self) -> str:
        return str(self.details.get("approval_id", ""))

    @property
    def approval_status(self) -> str:
        return str(self.details.get("approval_status", ""))


class _WaitsForPeople(Conflict):
    @property
    def workflow_id(self) -> str:
        return str(self.details.get("workflow_id", ""))

    @property
    def steps(self) -> list[str]:
        return list(self.details.get("steps") or [])


class ApprovalPendingError(_WaitsForPeople):
    """``steps`` of the workflow wait for people."""


class StepRejectedError(_WaitsForPeople):
    """People have refused ``steps`` of the workflow."""


class ReviewConflict(Conflict):
    """A review that does not count."""

    @property
    def approval_id(self) -> str:
        return str(self.details.get("approval_id", ""))


class NotPendingError(ReviewConflict):
    """It has been decided already; ``approval_status`` says how."""

    @property
    def approval_status(self) -> str:
        return str(self.details.get("status", ""))


class ApprovalExpiredError(ReviewConflict):
    """Nobody decided in time."""

    @property
    def expires_at(self) -> str:
        return str(self.details.get("expires_at", ""))


class SameReviewerError(ReviewConflict):
    """This key has agreed already: the others who must agree are other people."""


class NoApprovalNeededError(Conflict):
    """The step does not wait for people."""


class SubscriptionDisabled(Conflict):
    """Nothing is sent to a subscription that is disabled."""


class SelfApprovalError(Denied):
    """Whoever asked for it must not approve it."""


class StepUnwanted(ClientError):
    """The workflow ended while the step was run: nobody wants the result any more."""


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
        """Those that had a say."""
        return self.gate["policies_matched"]

    @property
    def retry_context(self) -> RetryContext:
        return self.gate["retry_context"]


class StepBlocked(NotAllowed):
    """A policy forbids the step, or people refused it, or nobody answered in time (``approval_status``)."""

    def __init__(self, gate: GateAnswer) -> None:
        super().__init__(gate, f"step {gate['step_id']} is blocked: {gate['reason'] or 'no reason is given'}")

    @property
    def approval_status(self) -> str | None:
        """``rejected`` or ``expired`` if people were asked."""
        return self.gate["approval_status"]


class ApprovalRequired(NotAllowed):
    """People must agree first: ask again when they have, or let ``client.step`` wait for them."""

    def __init__(self, gate: GateAnswer) -> None:
        self.approval_id = gate["approval_id"] or ""
        self.expires_at = gate.get("approval_expires_at")
        why = gate["reason"] or "no reason is given"
        super().__init__(gate, f"step {gate['step_id']} waits for approval {self.approval_id}: {why}")
