"""The doctor's rules for effects: unknown outcomes, attempts per approval, shared keys, and reservations of tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from counterfoil.domain.effects.policies import UNKNOWN_HOLDS, UNSAFE_ONCE
from counterfoil.domain.effects.reservations import EffectState
from counterfoil.domain.effects.reserved_effects import FIRST_ENTRIES, LAST_ENTRIES, ReservedEffect, effect_id
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import Reconciliation, StepVersion, Work
from counterfoil.domain.states import WorkStatus

PROVES_NO_EFFECT = frozenset({"not_found"})
"""States of a ``status_url`` by which the attempt before had no effect."""


def unsettled_problems(work: Mapping[str, Work], records: Mapping[str, Reconciliation]) -> Iterator[tuple[str, str]]:
    """Work item and problem: the reconciliation queue has exactly the items that wait for it."""
    for work_id, item in work.items():
        record = records.get(work_id)
        if item.hold in UNKNOWN_HOLDS and (record is None or record.hold != item.hold):
            yield work_id, "its outcome is unknown, but it is not in the reconciliation queue"
    for work_id, record in records.items():
        found = work.get(work_id)
        waits = found is not None and (
            found.status is WorkStatus.CANCELLED
            or (found.status is WorkStatus.NOT_COMPLETED and found.hold == record.hold)
        )
        if record.hold is not None and not waits:
            yield work_id, "is in the reconciliation queue, but does not wait for it"


def granted_attempts(events: Iterable[Event]) -> Counter[str]:
    """By work item, how many attempts a person asked for."""
    return Counter(
        event.work_id or ""
        for event in events
        if event.type is EventType.WORK_RECONCILED and event.data["outcome"] == "not_applied"
    )


def repeated_effects(
    events: Iterable[Event], work: Mapping[str, Work], versions: Mapping[str, StepVersion]
) -> Iterator[tuple[str, str]]:
    """Work item and problem: an ``unsafe_once`` item is sent at most once per approval if that may have an effect."""
    may_have_acted: dict[str, bool] = {}
    for event in events:
        work_id = event.work_id or ""
        item = work.get(work_id)
        version = None if item is None else versions.get(item.version)
        if version is None or version.definition.effect.policy != UNSAFE_ONCE:
            continue
        if event.type is EventType.WORK_DISPATCHED:
            if may_have_acted.get(work_id) and "approval_id" not in event.data:
                yield work_id, f"attempt {event.attempt} was sent without a new approval, though one may have acted"
            may_have_acted[work_id] = True
        elif event.type is EventType.WORK_NOT_COMPLETED:
            may_have_acted[work_id] = "cause" in event.data
        elif _shows_no_effect(event):
            may_have_acted[work_id] = False


def _shows_no_effect(event: Event) -> bool:
    """The worker, or the ``status_url``, has said that nothing was applied."""
    if event.type is EventType.WORK_PROBED:
        return event.data["state"] in PROVES_NO_EFFECT
    return event.type is EventType.WORK_POSTPONED and event.data["error"].get("code") == "NOT_COMPLETED"


def key_findings(rows: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Subject and problem of each row of ``doctor_keys``."""
    for subject, problem in rows:
        yield subject, _KEY_PROBLEMS[problem]


_KEY_PROBLEMS = {
    "owner": "a key is pending, but its owner is not an open work item",
    "waiter": "a work item is noted as waiting for a key, but does not wait",
    "lost": "a work item waits for a key, but nothing will wake it",
}


def reservation_problems(record: ReservedEffect) -> Iterator[str]:
    """What is wrong with the record of a key of a tool."""
    if record.effect_id != effect_id(record.tool, record.effect_key):
        yield "its id is not that of its tool and key: the key may have two reservations"
    if record.fence < 1:
        yield f"its fence is {record.fence}, and the first one is 1"
    pending, free = record.state is EffectState.PENDING, record.state is EffectState.FREE
    if pending != (record.expires_at is not None):
        yield f"is {record.state}, and {'never' if pending else 'still'} lapses"
    if pending == (record.recorded_at is not None):
        yield f"is {record.state}, and has {'a' if pending else 'no'} recorded_at"
    given = {"result"} if record.state is EffectState.SUCCEEDED else {"error"}
    if (set() if pending or free else given) != set(record.outcome or ()):
        yield f"is {record.state}, and its outcome is not of that state"
    lasts = None if pending or record.window_ms is None else (record.recorded_at or 0) + record.window_ms
    if record.forget_at != lasts:
        yield "is not forgotten when its window ends"
    kept = len(record.audit or ())
    if not 0 < kept <= min(record.audited, FIRST_ENTRIES + LAST_ENTRIES):
        yield f"has {kept} audit entries of {record.audited}"
