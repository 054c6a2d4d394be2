"""Wake-ups: a due time that is known in advance wakes its sweep then, instead of at the next tick."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class SweepName(StrEnum):
    REQUEUE = "requeue"
    DEADLINES = "deadlines"
    FLOW_CLOCKS = "flow_clocks"
    ORPHANS = "orphans"
    CANCEL_CALLS = "cancel_calls"
    LEASE = "lease"
    SCHEDULES = "schedules"
    APPROVALS = "approvals"
    DELIVERIES = "deliveries"
    RETENTION = "retention"


class Wakeups:
    """Where the engine says when it wants which sweep; the scheduler listens.

    Nothing is lost without a listener: every sweep also runs by itself from time to time.
    """

    def __init__(self) -> None:
        self.listener: Callable[[SweepName, int | None], None] = lambda sweep, at: None

    def at(self, sweep: SweepName, due_at: int) -> None:
        self.listener(sweep, due_at)

    def now(self, sweep: SweepName) -> None:
        self.listener(sweep, None)
