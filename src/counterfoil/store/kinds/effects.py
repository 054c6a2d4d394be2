"""Unknown outcomes that are to be settled, and the keys whose results work items share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.records import DedupRecord, DedupWaiter, Reconciliation
from counterfoil.store.kinds.columns import Columns
from counterfoil.store.kinds.kind import Lock, Phase, of_flow, plain_kind

RECONCILIATION_COLUMNS = Columns(Reconciliation)


def read_reconciliation(row: Sequence[Any]) -> Reconciliation:
    return RECONCILIATION_COLUMNS.read(row)


RECONCILIATIONS = plain_kind(
    "reconciliations",
    RECONCILIATION_COLUMNS,
    "work_id",
    written=Phase.OTHERS + 5,
    prune=(of_flow("reconciliations", order=34),),
    flow_column="flow_id",
)
"""A command that needs one needs its work item as well: the lock of its flow covers it."""

DEDUP = plain_kind(
    "dedup",
    Columns(DedupRecord),
    "dedup_id",
    lock=Lock(6, "lock_dedup", "try_lock_dedup", "another node changes the owner of the same key"),
    written=Phase.OTHERS + 6,
)
"""A record outlives the flow of its owner: it is forgotten after its window."""

WAITERS = plain_kind(
    "waiters",
    Columns(DedupWaiter),
    "work_id",
    written=Phase.OTHERS + 7,
    prune=(of_flow("waiters", order=34),),
    flow_column="flow_id",
)
"""Work items that wait for a key, one row each: the owner's flow and theirs are different ones."""
