"""An engine's error answer as an exception: each code has its type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from counterfoil.client import errors, gate_errors
from counterfoil.client.errors import ApiError

BY_CODE: dict[str, type[ApiError]] = {
    "NOT_FOUND": errors.NotFound,
    "UNKNOWN_STEP": errors.UnknownStep,
    "UNKNOWN_FLOW": errors.UnknownFlow,
    "UNKNOWN_WORK": errors.UnknownWork,
    "UNKNOWN_SCHEDULE": errors.UnknownSchedule,
    "UNKNOWN_WORKFLOW": gate_errors.UnknownWorkflow,
    "UNKNOWN_APPROVAL": gate_errors.UnknownApproval,
    "UNKNOWN_POLICY": gate_errors.UnknownPolicy,
    "UNKNOWN_SUBSCRIPTION": gate_errors.UnknownSubscription,
    "UNKNOWN_DELIVERY": gate_errors.UnknownDelivery,
    "INVALID_STEP": errors.InvalidStep,
    "INVALID_INPUT": errors.InvalidInput,
    "INVALID_SCHEDULE": errors.InvalidSchedule,
    "INVALID_POLICY": gate_errors.InvalidPolicy,
    "INVALID_SUBSCRIPTION": gate_errors.InvalidSubscription,
    "UNREACHABLE_GOAL": errors.UnreachableGoal,
    "PLAN_CYCLE": errors.PlanCycle,
    "FLOW_EXISTS": errors.FlowExists,
    "FLOW_FINAL": errors.FlowFinal,
    "FLOW_NOT_FAILED": errors.FlowNotFailed,
    "WORK_NOT_FAILED": errors.WorkNotFailed,
    "WORKFLOW_TERMINAL": gate_errors.WorkflowTerminalError,
    "IDEMPOTENCY_KEY_MISMATCH": gate_errors.IdempotencyKeyMismatchError,
    "IDEMPOTENCY_KEY_REUSED": gate_errors.IdempotencyKeyReusedError,
    "IDEMPOTENCY_KEY_IN_USE": gate_errors.IdempotencyKeyInUseError,
    "STEP_INPUT_MISMATCH": gate_errors.StepInputMismatchError,
    "STEP_IN_FLIGHT": gate_errors.StepInFlightError,
    "CLAIM_LOST": gate_errors.ClaimLostError,
    "STEP_NOT_ALLOWED": gate_errors.StepNotAllowedError,
    "COMPLETION_CONFLICT": gate_errors.CompletionConflictError,
    "APPROVAL_HOLD": gate_errors.ApprovalHoldError,
    "APPROVAL_PENDING": gate_errors.ApprovalPendingError,
    "APPROVAL_EXPIRED": gate_errors.ApprovalExpiredError,
    "STEP_REJECTED": gate_errors.StepRejectedError,
    "NOT_PENDING": gate_errors.NotPendingError,
    "NO_APPROVAL_NEEDED": gate_errors.NoApprovalNeededError,
    "SAME_REVIEWER": gate_errors.SameReviewerError,
    "SUBSCRIPTION_DISABLED": gate_errors.SubscriptionDisabled,
    "SELF_APPROVAL": gate_errors.SelfApprovalError,
    "UNAUTHENTICATED": errors.Unauthenticated,
    "FORBIDDEN": errors.Forbidden,
    "UNAVAILABLE": errors.Unavailable,
}


def api_error(status: int, body: Any, *, retry_after: float | None = None) -> ApiError:
    """The error of an answer; one that is not the engine's (a proxy's page) is named by its status."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("code"), str):
        message = f"the answer (HTTP {status}) is not one of a Counterfoil engine; is the address right?"
        return ApiError(status, f"HTTP_{status}", message, retry_after=retry_after)
    code, details = error["code"], error.get("details")
    kind = BY_CODE.get(code, ApiError)
    message = str(error.get("message") or code)
    return kind(status, code, message, details if isinstance(details, dict) else None, retry_after=retry_after)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by a ``Retry-After`` header, given as seconds or as a date."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
