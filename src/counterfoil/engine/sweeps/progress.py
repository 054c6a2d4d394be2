"""When each sweep finished its last round: what readiness is told of the sweeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from counterfoil.domain.errors import Unavailable
from counterfoil.engine.wakeups import SweepName

SILENCE_INTERVALS = 10
"""A sweep that has not finished a round for so many intervals, and ten seconds, counts as stopped."""


class SweepProgress:
    """Written by the loop that runs the sweeps; without a loop no sweep is expected to run."""

    def __init__(self) -> None:
        self._finished_at: dict[SweepName, int] = {}
        self._limit_ms = 0

    def expect(self, names: Iterable[SweepName], interval_ms: int, now: int) -> None:
        """These sweeps run at this interval from now on."""
        self._finished_at = dict.fromkeys(names, now)
        self._limit_ms = interval_ms * SILENCE_INTERVALS + 10_000

    def finished(self, name: SweepName, now: int) -> None:
        self._finished_at[name] = now

    def document(self, now: int) -> dict[str, Any]:
        """How long ago each sweep finished a round; raises Unavailable when one has stopped doing so."""
        ages = {name: now - finished_at for name, finished_at in self._finished_at.items()}
        silent = [name for name, age in ages.items() if age > self._limit_ms]
        if silent:
            raise Unavailable(f"sweeps are not running: {', '.join(silent)}", failed="sweeps")
        return {str(name): {"finished_ms_ago": age} for name, age in ages.items()}
