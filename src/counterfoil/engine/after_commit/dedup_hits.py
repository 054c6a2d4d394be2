"""Counts, after a commit, the work items that reused the result of another one."""

from __future__ import annotations

from counterfoil.domain.journal.events import EventType
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.unit import UnitOfWork


class DedupHits:
    """Looks at the events of a commit only if there is a hit among them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def after_commit(self, unit: UnitOfWork, commit: GroupCommit) -> None:
        if EventType.DEDUP_HIT in unit.changes.kinds():
            self._metrics.dedup_hit(sum(event.type is EventType.DEDUP_HIT for event in unit.changes.events))
