"""The shape of a sweep: look for what is due, do so much of it, tell when the next is due."""

from __future__ import annotations

from typing import Protocol

from counterfoil.engine.wakeups import SweepName


class Sweep(Protocol):
    """Safe to run at any time, twice at once and on every node: each item is decided anew in its transaction."""

    name: SweepName

    async def run_once(self, now: int, limit: int) -> int:
        """Treat at most so many items that are due; how many were treated."""
        ...

    async def next_due(self) -> int | None:
        """When the next item is due; None: nothing is waiting."""
        ...
