"""One write transaction on PostgreSQL with locks: lock, load, decide, write, commit.

Every batch can be executed so; most are executed without locks (optimistic.py).

The protocol. A batch that changes anything of a flow holds the lock of the flow's row. It takes all its locks in one
order: flows by id, then those that kinds of records declare (store/kinds), in the order of their numbers and by key:
cancel calls, deliveries, schedules and the right to make new ones, the right to count what a step has sent, the right
to give keys away. Searches come last and never wait. What the batch misses while deciding is locked without waiting; if
another node holds it, the batch begins again with everything that it now knows it needs. Writing waits once more: for
the right to change the register of steps, for that to change policies and subscriptions, then for another batch that
makes a flow of the same id, flows in the order of their ids. So batches wait for each other, but never in a cycle.

Rows are read after their locks were taken, by statements of their own: each sees all that was committed before
(read committed). What is durable when: after COMMIT was answered. If the answer is lost, ``Unanswered`` carries the
first entry that the transaction wrote, by which it can be looked up whether it holds.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from counterfoil.domain.journal.events import EventType
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.group_commit.commit import GuardRefused, StoreFailure
from counterfoil.store.kinds.columns import Row
from counterfoil.store.kinds.definitions import CURRENT
from counterfoil.store.kinds.policies import changes_controls
from counterfoil.store.postgres.connection import AGAIN, FAULTS, LOCK_MS, Connection
from counterfoil.store.postgres.locking import BeginAgain, fetch, take_locks
from counterfoil.store.postgres.statements import COORDINATION, QUERIES, combined, with_parameters
from counterfoil.store.unit_of_work.loading import fill, need_more, searches_for_work
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.writing import writes_of

TRANSACTION_SECONDS = 10.0
"""A transaction that takes longer than this, or whose commit does, is given up even if the server answers: the callers
of its commands wait. A lost server is noticed earlier (store/postgres/watchdog.py)."""
IDLE_MS = 3_000
"""How long a transaction may be idle before the server ends it: a node that was stopped in the middle of one must not
keep the others waiting for its locks. Its batch is tried again when the node goes on."""


@dataclass(frozen=True)
class Mark:
    """A journal entry of a commit, with its number if that is known: the commit holds exactly if the journal has it."""

    entry: Row
    seq: int | None = None

    @property
    def flow_id(self) -> str:
        return str(self.entry[0])


class Unanswered(Exception):
    """COMMIT was sent and the connection broke; ``mark`` is None where the transaction wrote no event."""

    def __init__(self, mark: Mark | None) -> None:
        self.mark = mark
        super().__init__("the connection was lost during a commit")


class LeaseLost(StoreFailure):
    """The node's lease had lapsed when it wanted to claim work: nothing was written."""


def begin_statement(guard: int) -> str:
    """``guard``: a lock that is the writer's own, by which it can tell later whether this transaction has ended."""
    return (
        "BEGIN ISOLATION LEVEL READ COMMITTED; "
        f"SET LOCAL lock_timeout = {LOCK_MS}; "
        f"SET LOCAL idle_in_transaction_session_timeout = {IDLE_MS}; "
        # The number of the transaction is drawn before any of the journal: store/postgres/journal_tail.py counts on it.
        f"SELECT pg_advisory_xact_lock({guard}), pg_current_xact_id()"
    )


async def execute(
    connection: Connection, batch: Batch, defaults: WorkDefaults, begin: str, cache: OpenFlowCache
) -> None:
    """The whole transaction of a batch. Raises BeginAgain, Unanswered, or what the connection raises."""
    try:
        async with asyncio.timeout(TRANSACTION_SECONDS):
            await connection.execute(begin)
            await _decide(connection, batch, defaults, cache)
            if not batch.unit.changes.any():
                await connection.execute("ROLLBACK")
                return
            taken = cache.take_out(batch.unit.changes.touched() | batch.unit.changes.pruned_flows)
            mark = await _write(connection, batch)
    except AGAIN as error:
        await _roll_back(connection)
        raise BeginAgain(str(error)) from error
    except (BeginAgain, GuardRefused, LeaseLost):
        await _roll_back(connection)
        raise
    await _commit(connection, mark)
    cache.learn(batch.unit, taken)


async def _decide(connection: Connection, batch: Batch, defaults: WorkDefaults, cache: OpenFlowCache) -> None:
    missed: ReadSet | None = batch.needs
    first = True
    locked = batch.unit.revisions
    while missed is not None:
        locked.update(await take_locks(connection, missed, wait=first))
        for find in missed.finds:
            text, parameters = with_parameters(find.query, dict(find.parameters))
            batch.unit.add_found(find, [tuple(row) for row in await connection.fetch(text, *parameters)])
        missed = cache.recall(batch.unit, missed, locked)
        loaded = await _load(connection, missed)
        if not locked.keys() >= _flows_of(missed, loaded):
            raise BeginAgain("a flow began after its lock was looked for: what is seen of it may change at any moment")
        fill(batch.unit, missed, loaded, defaults)
        missed = batch.decide()
        first = False


async def _load(connection: Connection, needs: ReadSet) -> dict[str, list[Any]]:
    """Everything that the batch asked for, by query."""
    found: list[str] = []
    for query, keys in searches_for_work(needs):
        found += [row[0] for row in await fetch(connection, QUERIES[query], keys)]
    need_more(needs, found)
    return {
        load.query: await fetch(connection, QUERIES[load.query], keys)
        for load, keys in needs.loads()
        if load.query is not None
    }


def _flows_of(needs: ReadSet, loaded: dict[str, list[Any]]) -> set[str]:
    """The flows of which something that changes was loaded."""
    found: set[str] = set()
    for load, _ in needs.loads():
        if load.query is not None and load.flow_column is not None:
            place = load.columns.index(load.flow_column)
            found.update(row[place] for row in loaded[load.query])
    return found


async def _write(connection: Connection, batch: Batch) -> Mark | None:
    """All changes in one statement; its guards must have held for every row."""
    changes = batch.unit.changes
    if EventType.WORK_DISPATCHED in changes.kinds():
        alive = await connection.fetch(COORDINATION["check_leases"], [batch.unit.node_id])
        if not alive:
            raise LeaseLost("this node's lease has expired: it claims nothing until it holds a new one")
    if changes.peek(CURRENT):
        await connection.fetch(COORDINATION["lock_register"])
    if changes_controls(changes):
        _check_controls(batch, await connection.fetchval(COORDINATION["lock_controls"]))
    writes = list(writes_of(changes, batch.unit.revisions))
    text, parameters = combined(writes)
    told = await connection.fetchrow(text, *parameters)
    assert told is not None
    _check_controls(batch, told["controls_seen"])
    for write, changed in zip(writes, told, strict=False):
        if write.exact and changed != len(write.rows):
            raise GuardRefused(f"{len(write.rows) - changed} of {len(write.rows)} rows: {write.query}")
    first = next((write.rows[0] for write in writes if write.query == "append_journal"), None)
    return None if first is None else Mark(first, told[len(writes)])


def _check_controls(batch: Batch, revision: int) -> None:
    """A batch that was decided by other policies than those in force writes nothing."""
    if revision != batch.unit.controls_revision:
        batch.unit.forget_controls()
        raise BeginAgain("policies or subscriptions have changed since they were read")


async def _commit(connection: Connection, mark: Mark | None) -> None:
    try:
        async with asyncio.timeout(TRANSACTION_SECONDS):
            told = await connection.execute("COMMIT")
    except FAULTS as error:
        raise Unanswered(mark) from error
    if told != "COMMIT":
        raise StoreFailure(f"PostgreSQL answered {told} to COMMIT")


async def _roll_back(connection: Connection) -> None:
    async with asyncio.timeout(TRANSACTION_SECONDS):
        await connection.execute("ROLLBACK")
