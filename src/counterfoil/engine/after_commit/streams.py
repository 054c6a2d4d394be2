"""Streams after a commit: those of flows with new events in the journal are woken."""

from __future__ import annotations

from counterfoil.engine.queries.feed import Feed
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.unit import UnitOfWork


class Streams:
    """Wakes streams; each reads the journal for itself. A commit without a new event, as of a heartbeat, wakes none."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def after_commit(self, unit: UnitOfWork, commit: GroupCommit) -> None:
        if self._feed.has_readers:
            self._feed.ring(unit.changes.journaled())
