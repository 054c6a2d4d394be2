"""The locks of a batch, taken in the order that the kinds of records declare (store/kinds/kind.py, ``Lock``).

Flows come first, by id: a batch that changes anything of a flow holds the lock of the flow's row. A batch waits for the
locks of what it needs from the beginning. What it misses later is locked without waiting: if another node holds it, the
batch begins again with everything that it now knows it needs.
"""

from __future__ import annotations

from typing import Any

from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.kind import Load, Lock
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.postgres.statements import COORDINATION, QUERIES, pack_keys, packed
from counterfoil.store.unit_of_work.read_set import ReadSet


class BeginAgain(Exception):
    """The batch conflicts with another node: nothing was written, and it may be tried again at once."""


async def take_locks(connection: Connection, needs: ReadSet, *, wait: bool) -> dict[str, int]:
    """Take the locks; returns the flows that there are, with their revisions."""
    flows, locked = needs.changing_flows(), dict[str, int]()
    if flows or needs.work:
        rows = await fetch(connection, _row_lock("lock_flows", wait=wait), flows, needs.work)
        locked = {row[0]: row[1] for row in rows}
    wanted = dict(needs.loads())
    for lock, loads in KINDS.locks:
        keys = set[str]().union(*(wanted[load] for load in loads if load in wanted))
        if not keys:
            continue
        if lock.attempt is None:
            await _lock_rows(connection, lock, loads[0], keys, wait=wait)
        else:
            rows = await fetch(connection, COORDINATION[lock.query if wait else lock.attempt], keys)
            if not wait and not rows[0][0]:
                raise BeginAgain(lock.busy)
    return locked


async def _lock_rows(connection: Connection, lock: Lock, load: Load, keys: set[str], *, wait: bool) -> None:
    """The locks of the rows that there are, and the right to make the others."""
    there = await fetch(connection, _row_lock(lock.query, wait=wait), keys)
    if lock.create is None or lock.try_create is None or len(there) == len(keys):
        return
    free = await connection.fetchval(COORDINATION[lock.create if wait else lock.try_create])
    if not wait and not free:
        raise BeginAgain(lock.busy)
    if load.query is not None and len(await fetch(connection, QUERIES[load.query], keys)) != len(there):
        raise BeginAgain("a row was made after its lock was looked for")


def _row_lock(query: str, *, wait: bool) -> str:
    text = COORDINATION[query]
    return text if wait else f"{text} NOWAIT"


async def fetch(connection: Connection, text: str, *keys: set[str]) -> list[Any]:
    """The rows of a query that takes sets of keys."""
    return list(await connection.fetch(packed(text), *(pack_keys(each) for each in keys)))
