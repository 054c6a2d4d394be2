"""Reads the end of the journal over all flows, in order and complete, although transactions commit out of order.

It reads entries, not yet the events in them (store/journal.py). Their numbers are drawn before the commit, so for a
moment 12 may be visible while 11 is still being written. A reader that continued from 12 would never see 11. But
numbers are drawn without gaps: a missing number belongs to a transaction that is still running, to one that was rolled
back, or to a flow that was pruned. So every entry after a hole is held back until every transaction that was running
when the hole was first seen has ended; if the hole is still there then, it is permanent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.store.protocol import Row

MOST_HOLES = 1_000
COLUMNS = 5
"""Columns of an entry; behind them stand the oldest transaction that runs, and the one that begins next."""


class JournalTail:
    """Keeps holes: the number before each, and the first transaction that began after it was seen."""

    def __init__(self) -> None:
        self._holes: dict[int, int] = {}

    def visible(self, after: int, rows: Sequence[Sequence[Any]]) -> list[Row]:
        """The entries up to the first hole that may still be filled; ``after``: the last one of which any was seen."""
        entries: list[Row] = []
        last = after
        held_back = False
        for row in rows:
            oldest_running, next_to_begin = row[COLUMNS], row[COLUMNS + 1]
            # Also behind the first: where flows were pruned there are many, and each would be waited for by itself.
            if row[0] > last + 1 and oldest_running < self._seen(last, next_to_begin):
                held_back = True
            if not held_back:
                entries.append(tuple(row[:COLUMNS]))
            last = row[0]
        return entries

    def _seen(self, hole: int, next_to_begin: int) -> int:
        if len(self._holes) >= MOST_HOLES and hole not in self._holes:
            self._holes.pop(next(iter(self._holes)))
        return self._holes.setdefault(hole, next_to_begin)
