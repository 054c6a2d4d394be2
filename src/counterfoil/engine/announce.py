"""The log's share of the journal: what did not go as hoped at info level, everything else at debug level."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import structlog

from counterfoil.domain.journal.events import Event, EventType

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
"""The same logger, asked for its level: after every commit, and ``log`` takes long to answer."""


def announce(events: Iterable[Event], kinds: AbstractSet[EventType]) -> None:
    """One line for each event worth one, with its ids and, where something went wrong, what it was.

    ``kinds``: those that there are among them.
    """
    everything = _level.isEnabledFor(logging.DEBUG)
    if not everything and LOUD.isdisjoint(kinds):
        return
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
