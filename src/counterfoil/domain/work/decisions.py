"""Decisions about one work item: pure functions of its state, what happened, the step's rules and the time.

Each returns the events to record; none changes anything. First outcome wins: nothing here ever leaves a final state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from counterfoil.domain.errors import AlreadyFailed, AlreadySucceeded, ConflictingResult, WorkCancelled, WorkNotActive
from counterfoil.domain.flows.requests import invalid_outputs
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.jsontext import TOO_DEEP, is_too_deep
from counterfoil.domain.records import Flow, StepVersion, Work
from counterfoil.domain.states import FINAL_WORK, FlowStatus, WorkStatus
from counterfoil.domain.steps.checks import Findings
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.time import optional_rfc3339
from counterfoil.domain.work.results import Heartbeat, StepResult, same_result
from counterfoil.domain.work.retry import backoff_ms, retries_left

SYNC_GRACE_MS = 5_000
"""How long after a sync call's own timeout the sweep takes the item for lost: the call itself always ends first."""


class Verdict(StrEnum):
    """What became of a report that was not refused."""

    ACCEPTED = "accepted"
    STALE = "stale"
    DUPLICATE = "duplicate"


_ACCEPTED, _WORK_SUCCEEDED = Verdict.ACCEPTED, EventType.WORK_SUCCEEDED  # looked up once: see settle.py


@dataclass(slots=True)
class RetryRules:
    """What a decision about another attempt needs beside the step's own rules."""

    draw: float
    retry_after_limit_ms: int


def work_event(work: Work, event_type: EventType, now: int, data: dict[str, Any] | None = None) -> Event:
    """An event of this work item at its present attempt."""
    return Event(event_type, now, work.flow_id, work.step_id, work.work_id, work.attempt, data or {})


def dispatch(work: Work, step: StepVersion, owner: str, now: int) -> Event:
    """The intent to send the next attempt: committed before any byte leaves."""
    rules = step.work
    if step.definition.kind == "async":
        deadline_at: int | None = now + _patience_ms(rules)
        due_at = now + _patience_ms(rules)
    else:
        deadline_at = None
        due_at = now + rules.ack_timeout_ms + SYNC_GRACE_MS
    event = work_event(work, EventType.WORK_DISPATCHED, now)
    event.attempt = work.attempt + 1
    event.data = {
        "owner": owner,
        "ack_deadline_at": now + rules.ack_timeout_ms,
        "deadline_at": deadline_at,
        "due_at": due_at,
    }
    if work.hold is not None:
        event.data["approval_id"] = work.hold
    return event


def _patience_ms(rules: WorkDefaults) -> int:
    """How long silence is borne: the callback deadline, or the heartbeat timeout where that is shorter."""
    return min(rules.deadline_ms, rules.heartbeat_timeout_ms or rules.deadline_ms)


def acknowledge(work: Work, now: int, http_status: int | None, note: str | None) -> Event:
    """The endpoint took the attempt; now the callback deadline alone runs."""
    data: dict[str, Any] = {"http_status": http_status}
    if note:
        data["note"] = note
    return work_event(work, EventType.WORK_ACKNOWLEDGED, now, data)


def refuse_if_closed(work: Work, result: StepResult | None, duplicate_status: int = 400) -> bool:
    """Raise the refusal of a report on work that is final or was never sent; True for a tolerated repeat."""
    if work.attempt and work.status not in FINAL_WORK:
        return False
    details: dict[str, Any] = {"status": work.status, "recorded_at": optional_rfc3339(work.recorded_at)}
    if work.status is WorkStatus.CANCELLED:
        raise WorkCancelled(**details)
    if work.status in FINAL_WORK:
        if result is not None:
            details["same_result"] = same_result(work.result, result)
            if details["same_result"] is False:
                raise ConflictingResult(**details)
            if details["same_result"] and duplicate_status == 200:
                return True
        raise (AlreadySucceeded if work.status is WorkStatus.SUCCEEDED else AlreadyFailed)(**details)
    raise WorkNotActive(**details)


def report(
    work: Work,
    result: StepResult,
    step: StepVersion,
    retry: RetryRules,
    now: int,
    findings: Findings,
    via: str = "webhook",
) -> tuple[Verdict, list[Event]]:
    """Decide a StepResult, whichever way it came; raises the refusal that tells precisely why."""
    if refuse_if_closed(work, result, step.definition.duplicate_status):
        return Verdict.DUPLICATE, []
    if result.success:
        return _ACCEPTED, [_succeeded(work, step, result, now, findings, via)]
    if result.not_completed:
        return _report_not_completed(work, result, step, retry, now, via)
    error = {"code": "STEP_FAILED", "message": result.error or "the step failed without an error message"}
    return Verdict.ACCEPTED, [_failed(work, now, error, result, via)]


def _succeeded(work: Work, step: StepVersion, result: StepResult, now: int, findings: Findings, via: str) -> Event:
    """Success, unless the outputs are not what the step declares."""
    wrong = invalid_outputs(step.definition, result.outputs or {}, findings) if step.definition.attributes else []
    if wrong:
        text = "; ".join(f"{item['attribute']} {item['message']}" for item in wrong)
        invalid = {"code": "INVALID_OUTPUT", "message": text, "attribute": wrong[0]["attribute"], "errors": wrong}
        return _failed(work, now, invalid, result, via)
    data = {"result": result.reported(), "via": via}
    return Event(_WORK_SUCCEEDED, now, work.flow_id, work.step_id, work.work_id, work.attempt, data)


def child_succeeded(work: Work, step: StepVersion, result: StepResult, now: int, findings: Findings) -> Event:
    """The flow that the item is has completed. Its outputs came through no door, and may have gained levels."""
    if is_too_deep(result.outputs):
        invalid = {"code": "INVALID_OUTPUT", "message": f"the output of the sub-flow {TOO_DEEP}"}
        return _failed(work, now, invalid, None, "flow")
    return _succeeded(work, step, result, now, findings, "flow")


def child_failed(work: Work, child: Flow, now: int) -> Event:
    """The flow that the item is has ended otherwise."""
    told = (child.error or {}).get("message")
    ended = "was cancelled" if child.status is FlowStatus.CANCELLED else child.status
    message = f"the sub-flow {ended}" + (f": {told}" if told else "")
    error: dict[str, Any] = {"code": f"CHILD_{child.status.upper()}", "message": message, "flow_id": child.flow_id}
    if child.error is not None:
        error["cause"] = child.error
    return _failed(work, now, error, None, "flow")


def give_back(
    work: Work,
    step: StepVersion,
    retry: RetryRules,
    now: int,
    *,
    code: str,
    message: str,
    delivery: str,
    retry_after_ms: int | None = None,
    result: StepResult | None = None,
    via: str = "engine",
) -> Event:
    """The attempt is over without an outcome: wait for the next one, or fail when none is left."""
    cause = {"code": code, "message": message}
    if step.is_gated:  # whether there is another attempt is for its agent to say
        over: dict[str, Any] = {"error": cause, "delivery": delivery, "next_attempt_at": None, "via": via}
        return work_event(work, EventType.WORK_NOT_COMPLETED, now, over)
    if not retries_left(step.work, work.attempt):
        attempts = "1 attempt" if work.attempt == 1 else f"{work.attempt} attempts"
        error = {"code": "RETRIES_EXHAUSTED", "message": f"gave up after {attempts}: {message}", "cause": cause}
        return _failed(work, now, error, result, via, delivery=delivery)
    delay = backoff_ms(step.work, work.attempt, retry.draw, retry_after_ms, retry.retry_after_limit_ms)
    data = {"error": cause, "delivery": delivery, "next_attempt_at": now + delay, "via": via}
    return work_event(work, EventType.WORK_NOT_COMPLETED, now, data)


def take_back(
    work: Work, step: StepVersion, retry: RetryRules, now: int, *, code: str, message: str, hold: str | None
) -> Event:
    """The attempt was never sent, for want of something on this side: it is made again under the same number.

    ``hold``: the approval by which it was to be sent. It was not used, so it still holds for the attempt.
    """
    delay = backoff_ms(step.work, max(work.attempt, 1), retry.draw, None, retry.retry_after_limit_ms)
    data = {
        "error": {"code": code, "message": message},
        "delivery": "not_delivered",
        "next_attempt_at": now + delay,
        "via": "engine",
        "unsent": True,
        "hold": hold,
    }
    return work_event(work, EventType.WORK_NOT_COMPLETED, now, data)


def fail(work: Work, now: int, code: str, message: str, via: str) -> Event:
    """The endpoint's own answer rules out any outcome but failure."""
    return _failed(work, now, {"code": code, "message": message}, None, via)


def beat(work: Work, heartbeat: Heartbeat, step: StepVersion, now: int, *, journaled: bool = True) -> list[Event]:
    """A sign of life: the callback deadline of active work moves on. Cancelled work is answered, not refused.

    The item always shows the last one. The journal need not have each (``journaled``): it is no place for a torrent.
    """
    if work.status is WorkStatus.CANCELLED:
        return []
    refuse_if_closed(work, None)
    deadline_at = None
    if work.status is WorkStatus.ACTIVE and work.deadline_at is not None:
        deadline_at = max(work.deadline_at, now + _patience_ms(step.work))
    data = {"progress": heartbeat.progress, "message": heartbeat.message, "deadline_at": deadline_at}
    event = work_event(work, EventType.WORK_HEARTBEAT, now, data)
    event.journaled = journaled
    return [event]


def cancel(work: Work, now: int, reason: str) -> Event:
    """The result is no longer wanted."""
    return work_event(work, EventType.WORK_CANCELLED, now, {"reason": reason})


def _report_not_completed(
    work: Work, result: StepResult, step: StepVersion, retry: RetryRules, now: int, via: str
) -> tuple[Verdict, list[Event]]:
    message = result.error or "the worker reported the work as not completed"
    retry_after_ms = None if result.retry_after is None else round(result.retry_after * 1000)
    older = result.attempt is not None and result.attempt < work.attempt
    if older and work.status is WorkStatus.ACTIVE and via == "webhook":  # an answer is of the attempt that it answers
        return Verdict.STALE, []
    if work.status is WorkStatus.ACTIVE:
        event = give_back(
            work,
            step,
            retry,
            now,
            code="NOT_COMPLETED",
            message=message,
            delivery="answered",
            retry_after_ms=retry_after_ms,
            result=result,
            via=via,
        )
        return Verdict.ACCEPTED, [event]
    if (work.error or {}).get("code") == "NOT_COMPLETED" or work.due_at is None:
        return Verdict.DUPLICATE, []
    # The engine gave the attempt back before the worker did (a timeout, say): only the worker's pause is news.
    not_before = now + min(retry_after_ms or 0, retry.retry_after_limit_ms)
    data = {
        "next_attempt_at": max(work.due_at, not_before),
        "error": {"code": "NOT_COMPLETED", "message": message},
        "via": via,
    }
    return Verdict.ACCEPTED, [work_event(work, EventType.WORK_POSTPONED, now, data)]


def _failed(
    work: Work,
    now: int,
    error: dict[str, Any],
    result: StepResult | None,
    via: str,
    delivery: str = "answered",
) -> Event:
    data: dict[str, Any] = {"error": error, "via": via, "delivery": delivery}
    if result is not None:
        data["result"] = result.reported()
    return work_event(work, EventType.WORK_FAILED, now, data)
