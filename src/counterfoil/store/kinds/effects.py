"""Unknown outcomes that are to be settled, keys whose results work items share, and reservations of tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterfoil.domain.effects.reservations import COMPLETE
from counterfoil.domain.effects.reserved_effects import ReservedEffect
from counterfoil.domain.records import DedupRecord, DedupWaiter, Reconciliation
from counterfoil.store.kinds.columns import Columns, Row
from counterfoil.store.kinds.kind import (
    ChangesOf,
    Kind,
    Load,
    Lock,
    Phase,
    Write,
    filling,
    filling_pairs,
    of_flow,
    plain_kind,
)

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

RESERVATION_COLUMNS = Columns(ReservedEffect)
LISTED_RESERVATION = RESERVATION_COLUMNS.without("audit")
"""What lists show."""
read_reservation = RESERVATION_COLUMNS.read
read_listed_reservation = RESERVATION_COLUMNS.reader(LISTED_RESERVATION)

_PUT = RESERVATION_COLUMNS.writer()
_HIT = RESERVATION_COLUMNS.writer("effect_id", "hits", "audited", "audit")


def _writes_reservations(of: ChangesOf[str, ReservedEffect]) -> Iterator[Write]:
    """Of a record that was complete before the batch, only the hits change: its outcome is not written again."""
    put: list[Row] = []
    hit: list[Row] = []
    gone: list[Row] = []
    for key, record in sorted(of.records.items()):
        if record is None:
            gone.append((key,))
        elif record.state in COMPLETE and record.recorded_at != of.changes.at:
            hit.append(_HIT.row(record))
        else:
            put.append(_PUT.row(record))
    yield Write("put_reservations", put)
    yield Write("hit_reservations", hit)
    yield Write("delete_reservations", gone, exact=False)


RESERVATIONS: Kind[str, ReservedEffect] = Kind(
    name="reservations",
    key=lambda record: record.effect_id,
    loads=(
        Load(
            name="reservations",
            query="load_reservations",
            columns=RESERVATION_COLUMNS.names,
            fill=filling(lambda: RESERVATIONS, read_reservation),
            lock=Lock(
                12, "lock_reservations", "try_lock_reservations", "another node changes the reservation of the same key"
            ),
        ),
    ),
    writes=_writes_reservations,
    written=Phase.OTHERS + 15,
    writers={"put_reservations": _PUT, "hit_reservations": _HIT},
)
"""Keys of tools, with their reservations and outcomes. They belong to no flow, and are forgotten after their window."""


def _raised(of: ChangesOf[str, int]) -> Iterator[Write]:
    yield Write("put_fences", [(bucket, fence) for bucket, fence in sorted(of.records.items()) if fence is not None])


FENCES: Kind[str, int] = Kind(
    name="fences",
    loads=(
        Load(
            name="fences",
            query="load_fences",
            columns=("bucket", "fence"),
            fill=filling_pairs(lambda: FENCES, tuple),
        ),
    ),
    absent=0,
    writes=_raised,
    written=Phase.OTHERS + 16,
)
"""Fence floors by bucket. A command that needs one needs the reservation as well: what that key has added to its floor
was committed under its lock, and what other keys add meanwhile does not concern it."""
