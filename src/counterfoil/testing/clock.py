"""A clock for tests: it runs with real time, and can be moved forward."""

from __future__ import annotations

import time

from counterfoil.domain.time import Clock


class MovableClock:
    """A ``Clock`` (milliseconds since 1970, UTC) that never goes backwards.

    It keeps running with real time, so that waits of some milliseconds still end by themselves; ``advance`` skips
    longer ones. A task that waits on a timer of the event loop is not woken by a jump: the engine's sweeps read this
    clock at their next round.
    """

    def __init__(self, start_ms: int | None = None) -> None:
        self._origin = time.monotonic_ns()
        self._base_ms = time.time_ns() // 1_000_000 if start_ms is None else start_ms

    def __call__(self) -> int:
        return self._base_ms + (time.monotonic_ns() - self._origin) // 1_000_000

    def advance(self, *, milliseconds: int = 0, seconds: int = 0, minutes: int = 0, hours: int = 0) -> int:
        """Jump forward and return the new time."""
        jump = milliseconds + 1_000 * (seconds + 60 * (minutes + 60 * hours))
        if jump < 0:
            raise ValueError("the clock only moves forward")
        self._base_ms += jump
        return self()


def _is_a_clock(clock: MovableClock) -> Clock:
    """For the type checker: a movable clock can be used wherever the engine takes a clock."""
    return clock
