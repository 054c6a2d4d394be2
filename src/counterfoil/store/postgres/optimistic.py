"""Optimistic execution of a batch: decided without locks, written by one statement that proves it right or fails.

The protocol. Most batches need work items and the register, and what they miss later are steps of the same flows. Open
flows in this node's cache (store/cache/open_flows.py) are not read; the rest is, without locks, each flow with its
revision, and its steps after that: if one of them is newer than the revision that was seen, so is the flow, and the
write will notice. Then the commands are decided. The statement that writes the batch raises the revision of every flow
that it changes, and only from the one that was seen; then come steps, work and journal. If any row is not as it was
seen, the statement fails as a whole, and the batch is executed again with locks (transaction.py). So a batch is one to
three trips to the server instead of five to seven, and takes the same locks in the same order as a batch with locks.

A command that was refused by what was just read was refused rightly. A command that was refused by what is only cached
was refused rightly if the batch changes the same flow, for then the write proves it; otherwise the batch is executed
with locks.

What is durable when: after the statement was answered. If the answer is lost, the statement may even be still to come.
To resolve that, the writer first raises the revision of one of its flows, which waits for the statement if it is under
way and makes it fail if it is not; then the journal has its entry, or never will (writer.py). Hence a batch that
changes no flow that existed before is executed with locks: there would be nothing to raise.
"""

from __future__ import annotations

from typing import Any

from asyncpg import DivisionByZeroError

from counterfoil.domain.journal.events import EventType
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.kind import Write
from counterfoil.store.kinds.work import JOINED_COLUMNS
from counterfoil.store.postgres.connection import AGAIN, FAULTS, Connection, is_answer
from counterfoil.store.postgres.locking import BeginAgain
from counterfoil.store.postgres.statements import QUERIES, pack_keys, packed, proving
from counterfoil.store.postgres.transaction import TRANSACTION_SECONDS, Mark, Unanswered
from counterfoil.store.unit_of_work.loading import fill
from counterfoil.store.unit_of_work.read_set import ReadSet, flow_of
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.store.unit_of_work.writing import writes_of

FLOW_ID, REVISION = JOINED_COLUMNS.index("flow_id"), len(JOINED_COLUMNS)
"""Columns of ``load_work``; the revision comes behind those of the records."""
LOCKING = frozenset({"move_flows", "update_flows"})
"""What takes the locks of flows, and so comes first."""
MOST_READS = 4
"""A batch that misses more often than this is executed with locks."""


async def decide_unlocked(connection: Connection, batch: Batch, cache: OpenFlowCache, defaults: WorkDefaults) -> bool:
    """Whether the batch is decided, in a way that its write will prove right."""
    unit = batch.unit
    missed: ReadSet | None = batch.needs
    # A command that needs nothing wants to see a transaction.
    if not batch.needs.are_only(KINDS.unlocked) or batch.needs.are_only(()):
        return False
    cached: set[str] = set()
    for _ in range(MOST_READS):
        assert missed is not None
        seen = set(unit.revisions)
        left = cache.recall(unit, missed)
        cached |= unit.revisions.keys() - seen
        if not await _read(connection, unit, left, defaults):
            break
        missed = batch.decide()
        if missed is None:
            if _can_be_proved(unit, cached):
                return True
            break
        steps_of = set(map(flow_of, missed.flow_steps))
        if not missed.are_only(KINDS.unlocked_later) or not unit.revisions.keys() >= steps_of:
            break
    cache.take_out(cached)
    batch.restart()  # a command missed something, or was refused by what no write would prove
    return False


def _can_be_proved(unit: UnitOfWork, cached: set[str]) -> bool:
    changes = unit.changes
    if not changes.any():
        return not cached
    changed = changes.touched()
    return (
        changed >= cached
        and not changed.isdisjoint(unit.revisions)
        and (not (journaled := changes.journaled()) or not journaled.isdisjoint(unit.revisions))  # see _mark
        and changes.is_optimistic
    )


async def _read(connection: Connection, unit: UnitOfWork, needs: ReadSet, defaults: WorkDefaults) -> bool:
    """Read what is not cached; False if it shows that the cache is out of date."""
    if needs.are_only(()):
        return True
    loaded: dict[str, list[Any]] = {}
    for load, keys in needs.loads():
        if load.query is not None:
            text = packed(QUERIES[load.query])
            loaded[load.query] = await connection.fetch(text, pack_keys(keys), timeout=TRANSACTION_SECONDS)
    revisions = {row[FLOW_ID]: row[REVISION] for row in loaded.get("load_work", ())}
    for flow_id in unit.revisions.keys() & revisions.keys():
        if unit.revisions[flow_id] != revisions[flow_id]:
            return False
    unit.revisions.update(revisions)
    fill(unit, needs, loaded, defaults)
    return True


async def write_decided(connection: Connection, batch: Batch, cache: OpenFlowCache) -> None:
    """Write a batch that was decided without locks. Raises BeginAgain, Unanswered, or what the connection raises."""
    unit, changes = batch.unit, batch.unit.changes
    if not changes.any():
        return
    claims = EventType.WORK_DISPATCHED in changes.kinds()
    writes = sorted(writes_of(changes, unit.revisions), key=lambda write: write.query not in LOCKING)
    text, parameters = proving(writes, unit.controls_revision, unit.node_id if claims else None)
    taken = cache.take_out(changes.touched())
    try:
        await connection.fetchval(text, *parameters, timeout=TRANSACTION_SECONDS)
    except DivisionByZeroError as unproved:
        raise BeginAgain("a flow has changed since it was read, or the lease has expired") from unproved
    except AGAIN as error:
        raise BeginAgain(str(error)) from error
    except FAULTS as error:
        if is_answer(error):
            raise
        raise Unanswered(_mark(unit, writes)) from error
    cache.learn(unit, taken)


def _mark(unit: UnitOfWork, writes: list[Write]) -> Mark | None:
    """An entry of the journal that is about a flow which was there before; None: the batch wrote no entry at all."""
    entries = [entry for write in writes if write.query == "append_journal" for entry in write.rows]
    return Mark(next(entry for entry in entries if entry[0] in unit.revisions)) if entries else None
