"""The short way of a batch: decided without locks, and written by one statement that proves it right or writes nothing.

The protocol. Most batches need work items and registered steps, and nothing else. What this node remembers of open
flows (store/memory.py) is not even read; the rest is, without locks, each flow with its revision. Then everybody
decides. The statement that writes the batch raises the revision of every flow that it changes, and only from the one
that was seen; then come steps, work and journal. If any row is not as it was seen, the statement fails as a whole, and
the batch begins again, the long way (transaction.py). So a batch is one to three trips to the server instead of five to
seven, and takes the same locks in the same order as on the long way.

Who was refused by what was read a moment ago was refused rightly. Who was refused by what is only remembered was so if
the same flow is changed by the batch, for then the write proves it; otherwise the batch goes the long way.

What is durable when: after the statement was answered. If the answer is lost, the statement may even be still to come.
Whoever wants to know first raises the revision of one of its flows, which waits for the statement if it is under way
and makes it fail if it is not; then the journal has its entry, or never will (writer.py). Hence a batch that changes no
flow that was there before goes the long way: there would be nothing to raise.
"""

from __future__ import annotations

import asyncio
from typing import Any

from asyncpg import DivisionByZeroError

from counterfoil.domain.events import EventType
from counterfoil.domain.steps import WorkDefaults
from counterfoil.store.batch import Batch
from counterfoil.store.loading import fill
from counterfoil.store.memory import Memory
from counterfoil.store.needs import Needs
from counterfoil.store.postgres.connection import AGAIN, FAULTS, Connection, is_answer
from counterfoil.store.postgres.statements import QUERIES, pack_keys, packed, proving
from counterfoil.store.postgres.transaction import TRANSACTION_SECONDS, BeginAgain, Mark, Unanswered
from counterfoil.store.world import World
from counterfoil.store.writing import Write, writes_of

KINDS = frozenset({"work", "steps", "registers"})
"""Needs that can be read without a lock: the write proves what was read of work, and the register
is never locked to be read."""


async def decide_unlocked(connection: Connection, batch: Batch, memory: Memory, defaults: WorkDefaults) -> bool:
    """Whether the batch is decided, in a way that its write will prove right."""
    needs, world = batch.needs, batch.world
    if not needs.are_only(KINDS) or needs.are_only(()):  # who needs nothing wants to see a transaction
        return False
    left = memory.recall(world, needs)
    remembered = set(world.revisions)
    if await _read(connection, world, left, defaults) and batch.decide() is None and _can_be_proved(world, remembered):
        return True
    memory.take_out(remembered)
    batch.restart()  # somebody missed something, or was told something that no write would prove
    return False


def _can_be_proved(world: World, remembered: set[str]) -> bool:
    changes = world.changes
    if not changes.any():
        return not remembered
    changed = changes.touched()
    return changed >= remembered and not changed.isdisjoint(world.revisions) and not (changes.current or changes.plans)


async def _read(connection: Connection, world: World, needs: Needs, defaults: WorkDefaults) -> bool:
    """Read what is not remembered; False if it shows that what is remembered is out of date."""
    loaded: dict[str, list[Any]] = {}
    async with asyncio.timeout(TRANSACTION_SECONDS):
        if needs.work:
            loaded["load_work"] = await connection.fetch(packed(QUERIES["load_work"]), pack_keys(needs.work))
        if needs.steps:
            loaded["load_current"] = await connection.fetch(packed(QUERIES["load_current"]), pack_keys(needs.steps))
        if needs.registers:
            keys = pack_keys(needs.registers)
            loaded["load_register"] = await connection.fetch(packed(QUERIES["load_register"]), keys)
    revisions = {row["flow_id"]: row["revision"] for row in loaded.get("load_work", ())}
    if any(world.revisions.get(flow_id, revision) != revision for flow_id, revision in revisions.items()):
        return False
    world.revisions.update(revisions)
    fill(world, needs, loaded, defaults)
    return True


async def write_decided(connection: Connection, batch: Batch, memory: Memory) -> None:
    """Write a batch that was decided without locks. Raises BeginAgain, Unanswered, or what the connection raises."""
    world, changes = batch.world, batch.world.changes
    if not changes.any():
        return
    claims = any(event.type is EventType.WORK_DISPATCHED for event in changes.events)
    writes = sorted(
        writes_of(changes, world.revisions), key=lambda write: write.query != "update_flows"
    )  # its lock first
    text, parameters = proving(writes, world.node_id if claims else None)
    taken = memory.take_out(changes.touched())
    try:
        async with asyncio.timeout(TRANSACTION_SECONDS):
            await connection.fetchval(text, *parameters)
    except DivisionByZeroError as unproved:
        raise BeginAgain("a flow is not as it was seen, or the lease has lapsed") from unproved
    except AGAIN as error:
        raise BeginAgain(str(error)) from error
    except FAULTS as error:
        if is_answer(error):
            raise
        raise Unanswered(_mark(world, writes)) from error
    memory.learn(world, taken)


def _mark(world: World, writes: list[Write]) -> Mark:
    """An entry of the journal that is about a flow which was there before."""
    [entries] = [write.rows for write in writes if write.query == "append_journal"]
    return Mark(next(entry for entry in entries if entry[0] in world.revisions))
