"""The shape of every sweep: a search for what is due, and a command for each row that it finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from counterfoil.engine.wakeups import SweepName
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit

Search = Callable[[int, int], AsyncIterator[ForEach[Any]]]
"""Given the time and how many items one round may treat: searches, each with the command for a row that it finds.

It goes on behind a search when its commands were committed. One that may not run now gives none.
"""


async def count(answers: list[Any]) -> int:
    """For commands whose answer says whether they did anything."""
    return sum(answers)


@dataclass(frozen=True)
class Sweep:
    """Safe to run at any time, twice at once and on every node: each item is decided again in its transaction."""

    name: SweepName
    search: Search
    next_due: Callable[[], Awaitable[int | None]]
    """When the next item is due; None: nothing is waiting. Asked after each round."""
    follow_up: Callable[[list[Any]], Awaitable[int]] = count
    """Acts upon the answers of the commands, and returns how many items were treated."""
    pauses: bool = False
    """Whether ``next_due`` counts even after a round that treated something: the sweep leaves time to others."""

    async def run_once(self, commit: GroupCommit, now: int, limit: int) -> int:
        """Treat at most so many items that are due; returns how many were treated."""
        treated = 0
        async for commands in self.search(now, limit):
            treated += await self.follow_up(await commit.submit(commands))
        return treated
