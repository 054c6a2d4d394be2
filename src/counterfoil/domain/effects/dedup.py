"""Deduplication: work items with one key share one result, and never run at once.

The first item to be sent owns the key. Others wait without a place among the dispatches; when the owner has ended they
take its result, whether a success or a failure. A key is free again when its owner ended without having been sent: the
item that has waited longest owns it then. A redriven item was asked for by a person: it waits for an owner in flight,
but never takes a recorded result.

The protocol. The record of a key has a lock of its own, taken after the locks of flows. The owner's last change writes
the record in its own transaction; the items that wait are in other flows, and each is woken by a command of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from counterfoil.domain.effects.keys import dedup_id
from counterfoil.domain.effects.policies import DEDUP, UNKNOWN_HOLDS, Cause
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import DedupRecord, DedupWaiter, StepVersion, Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import reuse, unknown_error, work_event


def has_key(view: FlowView, work: Work, step: StepVersion, now: int) -> bool:
    """Whether an item may be sent, as far as its key is concerned. If not, it waits, or has ended by now."""
    record = _live(view.find_dedup(dedup_id(work.step_id, work.idempotency_key)), now)
    if record is not None and record.work_id != work.work_id and (record.state == "pending" or record.waiting):
        _wait(view, work, record, now)
        return False
    return _obtain(view, work, step, record, now)


def wake(view: FlowView, waiter: DedupWaiter, now: int) -> bool:
    """Let an item go on that waits for a key; False: the key has another owner in flight by now."""
    record = _live(view.find_dedup(waiter.dedup_id), now)
    work = view.find_work(waiter.work_id)
    if record is not None and record.state == "pending":
        view.put_dedup(replace(record, wake_at=None))
        return False
    if work is None or work.hold != DEDUP:
        _no_longer_waits(view, waiter.work_id, record)
        return True
    record = _no_longer_waits(view, waiter.work_id, record)
    if _obtain(view, work, view.version(work.version), record, now):
        view.record(work_event(view.work(work.work_id), EventType.DEDUP_READY, now, {}))
    return True


def item_ended(view: FlowView, work: Work, step: StepVersion, event: Event) -> None:
    """An item ends: it waits for its key no longer, or, if it owns the key, others can have its result."""
    record = view.find_dedup(dedup_id(work.step_id, work.idempotency_key))
    if work.hold == DEDUP:
        _no_longer_waits(view, work.work_id, record)
    elif record is not None and record.work_id == work.work_id and record.state == "pending":
        _release(view, work, step, record, event)


def _release(view: FlowView, work: Work, step: StepVersion, record: DedupRecord, event: Event) -> None:
    """Keep the owner's result for the window, or free the key if nothing can have happened."""
    now, window = event.at, step.definition.effect.window_ms
    outcome: dict[str, Any] | None = None
    if event.type is EventType.WORK_CANCELLED:
        unknown = step.definition.effect.holds_unknown and _may_have_had_an_effect(work)
        state = "unknown" if unknown else "free"
        outcome = {"cause": _cause(view, work)} if unknown else None
    elif work.attempt == 0 and event.data.get("via") != "reconciliation":
        state = "free"  # blocked or rejected: it was never sent
    else:
        state = "success" if event.type is EventType.WORK_SUCCEEDED else "failed"
        outcome = {"result": event.data.get("result"), "error": event.data.get("error")}
    earlier = (record.outcome or {}).get("earlier")
    if state == "free" and earlier is not None:
        view.put_dedup(replace(record, **earlier, wake_at=now if record.waiting else None))
        return
    if state == "free" and not record.waiting:
        view.forget_dedup(record.dedup_id)
        return
    view.put_dedup(
        replace(
            record,
            state=state,
            work_id=None if state == "free" else record.work_id,
            outcome=outcome,
            recorded_at=now,
            expires_at=None if state == "free" or window is None else now + window,
            wake_at=now if record.waiting else None,
        )
    )


def _obtain(view: FlowView, work: Work, step: StepVersion, record: DedupRecord | None, now: int) -> bool:
    """Own a key that no item in flight owns, or take what is recorded under it."""
    if record is not None and record.work_id == work.work_id:
        return True
    if record is None or record.state == "free" or work.redrive_of is not None:
        _own(view, work, record)
        return True
    _take(view, work, step, record, now)
    return False


def _live(record: DedupRecord | None, now: int) -> DedupRecord | None:
    """A record within its window; one that has passed it counts as absent, though no sweep has removed it yet."""
    if record is None or record.expires_at is None or record.expires_at > now:
        return record
    return replace(record, state="free", work_id=None, flow_id=None, outcome=None)


_RESULT = ("state", "work_id", "flow_id", "outcome", "recorded_at", "expires_at")


def _own(view: FlowView, work: Work, record: DedupRecord | None) -> None:
    """Make an item the owner of a key. A result that a redriven item passes over is kept until that item is sent."""
    key = dedup_id(work.step_id, work.idempotency_key)
    owned = record or DedupRecord(key, work.step_id, work.idempotency_key, "pending", None, None)
    redriven = work.redrive_of is not None and owned.outcome is not None
    view.put_dedup(
        replace(
            owned,
            state="pending",
            work_id=work.work_id,
            flow_id=work.flow_id,
            outcome={"earlier": {name: getattr(owned, name) for name in _RESULT}} if redriven else None,
            recorded_at=None,
            expires_at=None,
            wake_at=None,
        )
    )


def _wait(view: FlowView, work: Work, record: DedupRecord, now: int) -> None:
    if work.hold == DEDUP:
        return
    view.record(work_event(work, EventType.DEDUP_WAIT, now, {"dedup_of": record.work_id}))
    view.put_dedup(replace(record, waiting=record.waiting + 1))
    view.wait_for_key(DedupWaiter(work.work_id, work.flow_id, record.dedup_id, now))


def _no_longer_waits(view: FlowView, work_id: str, record: DedupRecord | None) -> DedupRecord | None:
    """One item less waits for a key; returns the record of the key as it is then."""
    view.stop_waiting_for_key(work_id)
    if record is None:
        return None
    waiting = max(record.waiting - 1, 0)
    if not waiting and record.state == "free":
        view.forget_dedup(record.dedup_id)
        return None
    record = replace(record, waiting=waiting, wake_at=record.wake_at if waiting else None)
    view.put_dedup(record)
    return record


def _take(view: FlowView, work: Work, step: StepVersion, record: DedupRecord, now: int) -> None:
    """Reuse what is recorded under the key."""
    outcome: dict[str, Any] = record.outcome or {}
    if record.state == "unknown":
        hold = step.definition.effect.policy
        _own(view, work, record)
        message = "an equal work item was cancelled after it was sent: whether it had an effect is unknown"
        data = {
            "dedup_of": record.work_id,
            "hold": hold,
            "cause": outcome["cause"],
            "error": unknown_error(work, hold, outcome["cause"], message),
        }
        view.record(work_event(work, EventType.DEDUP_UNKNOWN, now, data))
        return
    view.record(work_event(work, EventType.DEDUP_HIT, now, {"dedup_of": record.work_id, "flow_id": record.flow_id}))
    view.record(reuse(work, step, outcome, record.work_id, now, view.findings))


def _may_have_had_an_effect(work: Work) -> bool:
    """Whether an attempt of an item that is cancelled, and whose policy holds unknown outcomes, may have had an effect.

    An item that is neither in flight nor held had no such attempt: each was proven to have had no effect.
    """
    return work.status is WorkStatus.ACTIVE or work.hold in UNKNOWN_HOLDS


def _cause(view: FlowView, work: Work) -> str:
    if work.hold in UNKNOWN_HOLDS:
        record = view.find_reconciliation(work.work_id)
        if record is not None:
            return record.cause
    return Cause.CONNECTION_LOST.value
