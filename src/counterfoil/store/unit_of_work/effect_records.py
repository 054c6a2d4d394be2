"""The records of unknown outcomes and of shared keys, as a batch sees and changes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from counterfoil.domain.effects.reconciling import closed, opened
from counterfoil.domain.journal.events import Event
from counterfoil.domain.records import DedupRecord, DedupWaiter, Reconciliation
from counterfoil.store.kinds.effects import DEDUP, RECONCILIATIONS, WAITERS
from counterfoil.store.kinds.kind import Kind
from counterfoil.store.unit_of_work.records import Records

Key = TypeVar("Key")
R = TypeVar("R")


class EffectRecords(ABC):
    """The part of a unit of work that is about effects."""

    @abstractmethod
    def records(self, kind: Kind[Key, R]) -> Records[Key, R]:
        """The records of a kind."""

    def find_reconciliation(self, work_id: str) -> Reconciliation | None:
        return self.records(RECONCILIATIONS).get(work_id)

    def put_reconciliation(self, record: Reconciliation) -> None:
        self.records(RECONCILIATIONS).put(record.work_id, record)

    def open_reconciliation(self, event: Event) -> None:
        records = self.records(RECONCILIATIONS)
        work_id = event.work_id or ""
        # The first attempt has no earlier record, and need not look for one.
        earlier = None if (event.attempt or 0) < 2 and records.peek(work_id) is None else records.get(work_id)
        records.put(work_id, opened(event, earlier))

    def close_reconciliation(self, event: Event) -> None:
        record = self.find_reconciliation(event.work_id or "")
        if record is not None:
            self.put_reconciliation(closed(record, event))

    def find_dedup(self, dedup_id: str) -> DedupRecord | None:
        return self.records(DEDUP).get(dedup_id)

    def put_dedup(self, record: DedupRecord) -> None:
        self.records(DEDUP).put(record.dedup_id, record)

    def forget_dedup(self, dedup_id: str) -> None:
        self.records(DEDUP).put(dedup_id, None)

    def wait_for_key(self, waiter: DedupWaiter) -> None:
        self.records(WAITERS).put(waiter.work_id, waiter)

    def stop_waiting_for_key(self, work_id: str) -> None:
        self.records(WAITERS).put(work_id, None)
