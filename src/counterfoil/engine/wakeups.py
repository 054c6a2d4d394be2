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
    PROBES = "probes"
    DEDUP = "dedup"
    FORGETTING = "forgetting"
    HOOKS = "hooks"
    CALLBACKS = "callbacks"
    RETENTION = "retention"


Listener = Callable[[SweepName, int | None], None]
"""Called with a sweep and when it is due; None: now."""


def _drop(sweep: SweepName, due_at: int | None) -> None:
    pass


class Wakeups:
    """Passes due times on to the loop that runs the sweeps, as long as it listens.

    A wake-up without a listener is dropped, and nothing is lost by it: every sweep also runs at its interval.
    """

    def __init__(self) -> None:
        self._listener: Listener = _drop

    def listen(self, listener: Listener) -> None:
        """Pass wake-ups on to this listener from now on, instead of any other."""
        self._listener = listener

    def stop_listening(self) -> None:
        self._listener = _drop

    def at(self, sweep: SweepName, due_at: int) -> None:
        self._listener(sweep, due_at)

    def now(self, sweep: SweepName) -> None:
        self._listener(sweep, None)
