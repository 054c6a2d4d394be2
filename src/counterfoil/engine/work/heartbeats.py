"""Which heartbeats the journal keeps: some at first, then one in a while, however many a worker sends.

The work item itself always has the last one, so what is left out costs nothing but a line of history. This pace is the
node's own, in memory: after a restart, or on another node, an item may have some more lines.
"""

from __future__ import annotations

INTERVAL_MS = 10_000
BURST = 5
"""Heartbeats of one item that the journal keeps at once; beyond them it keeps one in each interval."""
MOST_ITEMS = 10_000


class HeartbeatPace:
    """Counts the heartbeats of work items against ``BURST`` and ``INTERVAL_MS``."""

    def __init__(self) -> None:
        self._settled_at: dict[str, int] = {}
        """For each item, when it will have its whole burst again."""

    def journals(self, work_id: str, now: int) -> bool:
        """Whether the journal keeps this heartbeat."""
        settled_at = max(self._settled_at.get(work_id, now), now)
        if settled_at > now + (BURST - 1) * INTERVAL_MS:
            return False
        if len(self._settled_at) >= MOST_ITEMS:
            self._forget(now)
        self._settled_at[work_id] = settled_at + INTERVAL_MS
        return True

    def _forget(self, now: int) -> None:
        """Let go of items that have their whole burst again; of all, if that frees none."""
        kept = {work_id: at for work_id, at in self._settled_at.items() if at > now}
        self._settled_at = kept if len(kept) < MOST_ITEMS else {}
