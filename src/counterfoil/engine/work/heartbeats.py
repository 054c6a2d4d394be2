"""Which heartbeats the journal keeps: a few at first, then one in each interval, however many a worker sends.

The work item itself always has the last heartbeat; only history is left out. The count is in the memory of this node:
after a restart, or on another node, the journal may keep a few more.
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
        """For each item, when it has its whole burst again."""

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
        """Forget items that have their whole burst again; all items, if there are none."""
        kept = {work_id: at for work_id, at in self._settled_at.items() if at > now}
        self._settled_at = kept if len(kept) < MOST_ITEMS else {}
