"""Room to send: which lanes wait for it, and which steps have some again."""

from __future__ import annotations

from collections.abc import Iterable

from counterfoil.domain.records import Work, step_of
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.engine.work.capacity import Slots


class SendingRoom:
    """Wakes the requeue sweep when a step that was at a limit, or a lane that waits, may be sent again."""

    def __init__(self, slots: Slots, wakeups: Wakeups) -> None:
        self._slots = slots
        self._wakeups = wakeups

    def wait_for(self, work: Work) -> None:
        """This item is due and was not claimed: its lane waits."""
        self._slots.waiting.add(work.lane)
        self._slots.wake_for(work.lane, work.version)

    def make(self, steps: Iterable[str], defined: Iterable[str] | None = None) -> None:
        """Attempts of these steps have ended: a step that had as many out as it may have can send again.

        ``defined``: the steps that have another definition, and so another rate; None: perhaps all of them.
        """
        slots, freed = self._slots, frozenset(steps)
        full = slots.forget_full(freed)
        rested = slots.forget_rests(freed if defined is None else defined)
        # A due item may have been passed over without a look at the limit, because another node had it locked.
        if full or rested or (freed and any(step_of(lane) in freed for lane in slots.waiting)):
            self._wakeups.now(SweepName.REQUEUE)

    def look_again(self) -> None:
        """Assume that every step at a limit has room: other nodes may have made some that this one was not told of."""
        self.make(self._slots.limited_steps())
