"""Decisions about one work item: pure functions of its state, what happened, the step's rules and the time.

Each returns the events to record; none changes anything. The first outcome is final: no decision leaves a final state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from counterfoil.domain.effects.policies import UNKNOWN_HOLDS, UNSAFE_ONCE, Cause
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

UNKNOWN_CODES = frozenset(
    {"UNKNOWN_OUTCOME", "DEADLINE_EXCEEDED", "INTERRUPTED", "OUTCOME_UNKNOWN", "UNSAFE_ONCE_INCOMPLETE"}
)
"""Errors of an item whose last attempt may have had an effect."""
REPORTED_VIA = frozenset({"webhook", "operator"})
"""A report through one of these may be of any attempt."""
SYNC_GRACE_MS = 5_000
"""How long after the timeout of a sync call the sweep ends the attempt: the call itself always ends earlier."""


class Verdict(StrEnum):
    """The answer to a report that was not refused."""

    ACCEPTED = "accepted"
    STALE = "stale"
    DUPLICATE = "duplicate"
    IGNORED = "ignored"


_ACCEPTED, _WORK_SUCCEEDED = Verdict.ACCEPTED, EventType.WORK_SUCCEEDED  # looked up only once: see settle.py


@dataclass(slots=True)
class RetryRules:
    """What a decision about another attempt needs besides the step's own rules."""

    draw: float
    retry_after_limit_ms: int
    granted: int = 0
    """Attempts that a person asked for: they do not count against the retries of the step."""


def work_event(work: Work, event_type: EventType, now: int, data: dict[str, Any] | None = None) -> Event:
    """An event of this work item in its current attempt."""
    return Event(event_type, now, work.flow_id, work.step_id, work.work_id, work.attempt, data or {})


def dispatch(work: Work, step: StepVersion, owner: str, now: int) -> Event:
    """The intent to send the next attempt: committed before any byte is sent."""
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
    """How long the engine waits for a report: the callback deadline, or the heartbeat timeout if that is shorter."""
    return min(rules.deadline_ms, rules.heartbeat_timeout_ms or rules.deadline_ms)


def prior_delivery(work: Work) -> str:
    """What is known of the delivery of the last attempt of an item; empty: there was none."""
    if work.attempt == 0:
        return ""
    error = work.error or {}
    if error.get("code") in ("NOT_DELIVERED", "NOT_SENT", "NOT_APPLIED"):
        return "not_delivered"
    answered = work.acknowledged_at is not None or error.get("details", {}).get("cause") == Cause.SERVER_ERROR
    return "unknown" if error.get("code") in UNKNOWN_CODES and not answered else "delivered"


def is_taken(work: Work, step: StepVersion) -> bool:
    """Whether a worker has said, by a heartbeat, that it has the attempt whose acknowledgement is not recorded yet."""
    return step.definition.kind == "async" and work.owner is None and work.acknowledged_at is not None


def acknowledge(work: Work, now: int, http_status: int | None, note: str | None) -> Event:
    """The endpoint accepted the attempt: from now on only the callback deadline applies."""
    data: dict[str, Any] = {"http_status": http_status}
    if note:
        data["note"] = note
    return work_event(work, EventType.WORK_ACKNOWLEDGED, now, data)


def refuse_if_closed(work: Work, result: StepResult | None, duplicate_status: int = 400) -> bool:
    """Refuse a report on work that is final or was never sent; returns True for a repeated report that is tolerated.

    An item that waits to be settled may take over the unknown outcome of an equal one, without an attempt of its own.
    """
    if (work.attempt or work.hold in UNKNOWN_HOLDS) and work.status not in FINAL_WORK:
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
    """Decide about a StepResult, from a webhook or a response; raises the refusal that gives the exact reason."""
    if refuse_if_closed(work, result, step.definition.repeat_status):
        return Verdict.DUPLICATE, []
    if result.success:
        return _ACCEPTED, [_succeeded(work, step, result, now, findings, via)]
    if result.not_completed:
        return _report_not_completed(work, result, step, retry, now, via)
    error = {"code": "STEP_FAILED", "message": result.error or "the step failed without an error message"}
    return Verdict.ACCEPTED, [_failed(work, now, error, result, via)]


def _succeeded(work: Work, step: StepVersion, result: StepResult, now: int, findings: Findings, via: str) -> Event:
    """Success, unless the outputs do not match the step's declaration."""
    wrong = invalid_outputs(step.definition, result.outputs or {}, findings) if step.definition.attributes else []
    if wrong:
        text = "; ".join(f"{item['attribute']} {item['message']}" for item in wrong)
        invalid = {"code": "INVALID_OUTPUT", "message": text, "attribute": wrong[0]["attribute"], "errors": wrong}
        return _failed(work, now, invalid, result, via)
    data = {"result": result.reported(), "via": via}
    return Event(_WORK_SUCCEEDED, now, work.flow_id, work.step_id, work.work_id, work.attempt, data)


def reuse(
    work: Work, step: StepVersion, outcome: dict[str, Any], owner: str | None, now: int, findings: Findings
) -> Event:
    """The recorded outcome of another item with the same key counts for this one as well."""
    result = outcome["result"]
    if outcome["error"] is None and result is not None:
        reported = StepResult(success=True, outputs=result.get("outputs"))
        event = _succeeded(work, step, reported, now, findings, "dedup")
    else:
        event = _failed(work, now, outcome["error"], None, "dedup")
        if result is not None:
            event.data["result"] = result
    event.data["dedup_of"] = owner
    return event


def child_succeeded(work: Work, step: StepVersion, result: StepResult, now: int, findings: Findings) -> Event:
    """The sub-flow of the item has completed. Its outputs have passed no input check, and may be nested deeper."""
    if is_too_deep(result.outputs):
        invalid = {"code": "INVALID_OUTPUT", "message": f"the output of the sub-flow {TOO_DEEP}"}
        return _failed(work, now, invalid, None, "flow")
    return _succeeded(work, step, result, now, findings, "flow")


def child_failed(work: Work, child: Flow, now: int) -> Event:
    """The sub-flow of the item has ended without success."""
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
    cause: Cause | None = None,
    retry_after_ms: int | None = None,
    result: StepResult | None = None,
    via: str = "engine",
) -> Event:
    """The attempt is over without an outcome: wait for the next one, be held, or fail when no attempt is left.

    ``cause``: why it may have had an effect; None: it surely had none, and every effect policy repeats it.
    """
    reason = {"code": code, "message": message}
    over: dict[str, Any] = {"error": reason, "delivery": delivery, "next_attempt_at": None, "via": via}
    if step.is_gated:  # its agent decides whether there is another attempt
        return work_event(work, EventType.WORK_NOT_COMPLETED, now, over)
    if cause is not None:
        over["cause"] = cause.value
        if step.definition.effect.holds_unknown:
            return _hold(work, step, now, over)
        if step.definition.status_url is not None and cause is Cause.DEADLINE_PASSED:
            over["probe_at"] = now  # whether it is repeated is decided when status_url has been asked
            return work_event(work, EventType.WORK_NOT_COMPLETED, now, over)
    if not retries_left(step.work, work.attempt - retry.granted):
        return _failed(work, now, _exhausted(work, reason), result, via, delivery=delivery)
    delay = backoff_ms(step.work, work.attempt, retry.draw, retry_after_ms, retry.retry_after_limit_ms)
    over["next_attempt_at"] = now + delay
    return work_event(work, EventType.WORK_NOT_COMPLETED, now, over)


def _hold(work: Work, step: StepVersion, now: int, over: dict[str, Any]) -> Event:
    """The outcome is unknown, and the effect policy forbids to repeat the attempt: the item waits to be settled."""
    policy = step.definition.effect.policy
    message = f"the outcome of attempt {work.attempt} is unknown: {over['error']['message']}"
    over["error"] = unknown_error(work, policy, over["cause"], message)
    over["hold"] = policy
    over["probe_at"] = None if step.definition.status_url is None else now
    return work_event(work, EventType.WORK_NOT_COMPLETED, now, over)


def unknown_error(work: Work, hold: str, cause: str, message: str) -> dict[str, Any]:
    """The error of an item that is held because its outcome is unknown."""
    code = "UNSAFE_ONCE_INCOMPLETE" if hold == UNSAFE_ONCE else "OUTCOME_UNKNOWN"
    details = {"cause": cause, "attempt": work.attempt, "idempotency_key": work.idempotency_key}
    return {"code": code, "message": message, "details": details}


def _exhausted(work: Work, reason: dict[str, Any]) -> dict[str, Any]:
    attempts = "1 attempt" if work.attempt == 1 else f"{work.attempt} attempts"
    message = f"gave up after {attempts}: {reason['message']}"
    return {"code": "RETRIES_EXHAUSTED", "message": message, "cause": reason}


def repeat(
    work: Work,
    step: StepVersion,
    retry: RetryRules,
    now: int,
    error: dict[str, Any],
    *,
    retry_after_ms: int | None = None,
    result: StepResult | None = None,
    via: str,
) -> Event:
    """An item that is not completed can be repeated after all: the next attempt is planned, or it fails without one."""
    if not retries_left(step.work, work.attempt - retry.granted):
        delivery = None if result is None else "answered"
        return _failed(work, now, _exhausted(work, error), result, via, delivery)
    delay = backoff_ms(step.work, max(work.attempt, 1), retry.draw, retry_after_ms, retry.retry_after_limit_ms)
    data = {"next_attempt_at": now + delay, "error": error, "via": via}
    return work_event(work, EventType.WORK_POSTPONED, now, data)


def resume(work: Work, step: StepVersion, now: int, via: str) -> Event:
    """A worker has the attempt after all: the item is active again, with a new deadline."""
    return work_event(work, EventType.WORK_RESUMED, now, {"via": via, **clocks_of(step, now)})


def clocks_of(step: StepVersion, now: int) -> dict[str, Any]:
    """The deadlines of an attempt that is known to run now."""
    if step.definition.kind == "async":
        due_at = now + _patience_ms(step.work)
        return {"deadline_at": due_at, "due_at": due_at}
    return {"deadline_at": None, "due_at": now + step.work.ack_timeout_ms + SYNC_GRACE_MS}


def take_back(
    work: Work, step: StepVersion, retry: RetryRules, now: int, *, code: str, message: str, hold: str | None
) -> Event:
    """The attempt was not sent, because this machine lacked a resource: it is made again under the same number.

    ``hold``: the approval of this attempt. It was not used, so it stays valid.
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
    """Fail the item for good: the response rules out any other outcome."""
    return _failed(work, now, {"code": code, "message": message}, None, via)


def fail_with(work: Work, now: int, error: dict[str, Any], outputs: dict[str, Any], via: str) -> Event:
    """The same with an error that has details, and with what the item had given until then."""
    result = StepResult(success=False, outputs=outputs, error=error["message"]) if outputs else None
    return _failed(work, now, error, result, via)


def hook_succeeded(
    work: Work,
    step: StepVersion,
    outputs: dict[str, Any],
    now: int,
    findings: Findings | None,
    *,
    timed_out: bool = False,
) -> Event:
    """A hook has what it waited for, or ends without. ``findings`` None: the outputs are not to be checked."""
    result = StepResult(success=True, outputs=outputs)
    if findings is not None:
        return _succeeded(work, step, result, now, findings, "hook")
    data: dict[str, Any] = {"result": result.reported(), "via": "hook"}
    if timed_out:
        data["timed_out"] = True
    return work_event(work, EventType.WORK_SUCCEEDED, now, data)


def beat(work: Work, heartbeat: Heartbeat, step: StepVersion, now: int, *, journaled: bool = True) -> list[Event]:
    """A heartbeat: the callback deadline of active work moves on. For cancelled work it is answered, not refused.

    It proves that the attempt was delivered: its acknowledgement need not be waited for, and an item that is not
    completed because its outcome was unknown is active again.

    The item always shows the last heartbeat. The journal may leave some out (``journaled``), so that frequent ones do
    not flood it.
    """
    if work.status is WorkStatus.CANCELLED:
        return []
    refuse_if_closed(work, None)
    events = []
    if _is_unknown(work) and step.definition.kind == "async":
        events.append(resume(work, step, now, "heartbeat"))
        journaled = True
    deadline_at = None
    if work.status is WorkStatus.ACTIVE and work.deadline_at is not None:
        deadline_at = max(work.deadline_at, now + _patience_ms(step.work))
    data = {"progress": heartbeat.progress, "message": heartbeat.message, "deadline_at": deadline_at}
    if work.status is WorkStatus.ACTIVE and work.acknowledged_at is None and step.definition.kind == "async":
        data["taken"] = True
        journaled = True
    event = work_event(work, EventType.WORK_HEARTBEAT, now, data)
    event.journaled = journaled
    return [*events, event]


def _is_unknown(work: Work) -> bool:
    """Whether the last attempt of an item may have had an effect, and the item waits to be settled or repeated."""
    return work.status is WorkStatus.NOT_COMPLETED and (work.error or {}).get("code") in UNKNOWN_CODES


def cancel(work: Work, now: int, reason: str) -> Event:
    """Cancel the item: its result is no longer needed."""
    return work_event(work, EventType.WORK_CANCELLED, now, {"reason": reason})


def _report_not_completed(
    work: Work, result: StepResult, step: StepVersion, retry: RetryRules, now: int, via: str
) -> tuple[Verdict, list[Event]]:
    message = result.error or "the worker reported the work as not completed"
    retry_after_ms = None if result.retry_after is None else round(result.retry_after * 1000)
    older = result.attempt is not None and result.attempt < work.attempt
    if older and work.status is WorkStatus.ACTIVE and via in REPORTED_VIA:  # a response belongs to its own attempt
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
    if work.hold in UNKNOWN_HOLDS or (work.due_at is None and _is_unknown(work)):
        error = {"code": "NOT_COMPLETED", "message": message}
        event = repeat(work, step, retry, now, error, retry_after_ms=retry_after_ms, result=result, via=via)
        return Verdict.ACCEPTED, [event]
    if (work.error or {}).get("code") == "NOT_COMPLETED" or work.due_at is None:
        return Verdict.DUPLICATE, []
    # The engine ended the attempt before the worker did (a timeout, for example): only the worker's retry_after is new.
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
    delivery: str | None = "answered",
) -> Event:
    """``delivery`` None: nothing new is known of it."""
    data: dict[str, Any] = {"error": error, "via": via}
    if delivery is not None:
        data["delivery"] = delivery
    if result is not None:
        data["result"] = result.reported()
    return work_event(work, EventType.WORK_FAILED, now, data)
