"""The log after a commit: events that need attention are logged at info level, all others at debug level."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import structlog

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.unit import UnitOfWork

LOUD = frozenset(
    {
        EventType.WORK_NOT_COMPLETED,
        EventType.WORK_FAILED,
        EventType.WORK_CANCELLED,
        EventType.FLOW_FAILED,
        EventType.FLOW_CANCELLED,
        EventType.FLOW_COMPENSATING,
        EventType.FLOW_REDRIVEN,
        EventType.STEP_NOT_COMPENSATED,
        EventType.CANCEL_UNDELIVERED,
    }
)

log = structlog.get_logger("counterfoil.journal")
_level = logging.getLogger("counterfoil.journal")
"""The same logger, asked for its level after every commit: ``log`` takes long to answer that."""


def log_events(unit: UnitOfWork, commit: GroupCommit) -> None:  # noqa: ARG001 (the signature of every handler)
    """Log the events of a commit."""
    everything = _level.isEnabledFor(logging.DEBUG)
    if everything or not LOUD.isdisjoint(unit.changes.kinds()):
        _write(unit.changes.events, everything=everything)


def _write(events: Iterable[Event], *, everything: bool) -> None:
    """One line for each event, with its ids and, where something went wrong, its error."""
    for event in events:
        if event.type in LOUD:
            write = log.info
        elif everything:
            write = log.debug
        else:
            continue
        ids = {"step_id": event.step_id, "work_id": event.work_id, "attempt": event.attempt}
        error = event.data.get("error") or {}
        facts = {"code": error.get("code"), "reason": error.get("message"), "delivery": event.data.get("delivery")}
        known = {name: value for name, value in {**ids, **facts}.items() if value is not None}
        write(event.type.value, flow_id=event.flow_id, **known)
