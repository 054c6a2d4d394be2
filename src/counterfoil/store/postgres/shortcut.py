"""The short way of a batch: decided from memory, and written by one statement that proves it right or writes nothing.

The protocol. A batch that needs nothing but what this node remembers of open flows (store/memory.py) is decided without
a look at the database. The statement that writes it raises the revision of every flow that was looked at, and only from
the one that is remembered; then come steps, work and journal. If any row is not as it was remembered, the statement
fails as a whole, and the batch begins again, the long way (transaction.py). So a batch is one trip to the server, and
takes the same locks in the same order as on the long way.

What is durable when: after the statement was answered. If the answer is lost, the statement may even be still to come.
Whoever wants to know first raises the revision of one of its flows, which waits for the statement if it is under way
and makes it fail if it is not; then the journal has its entry, or never will (writer.py).
"""

from __future__ import annotations

import asyncio

from asyncpg import DivisionByZeroError

from counterfoil.domain.events import EventType
from counterfoil.store.batch import Batch
from counterfoil.store.memory import Memory
from counterfoil.store.postgres.connection import AGAIN, FAULTS, Connection, is_answer
from counterfoil.store.postgres.statements import proving
from counterfoil.store.postgres.transaction import TRANSACTION_SECONDS, BeginAgain, Mark, Unanswered, first_entry
from counterfoil.store.writing import writes_of


def decide_from_memory(batch: Batch, memory: Memory) -> bool:
    """Whether the batch is decided, and every flow that it looked at is one that it changes."""
    if not memory.knows(batch.needs):
        return False
    memory.recall(batch.world, batch.needs)
    world = batch.world
    if batch.decide() is None and world.changes.touched() >= world.revisions.keys():
        return True
    batch.restart()  # somebody missed something, or was told something that no write would prove
    return False


async def write_decided(connection: Connection, batch: Batch, memory: Memory) -> None:
    """Write a batch that was decided from memory. Raises BeginAgain, Unanswered, or what the connection raises."""
    world, changes = batch.world, batch.world.changes
    claims = any(event.type is EventType.WORK_DISPATCHED for event in changes.events)
    writes = list(writes_of(changes, world.revisions))
    text, parameters = proving(writes, world.node_id if claims else None)
    taken = memory.take_out(changes.touched())
    try:
        async with asyncio.timeout(TRANSACTION_SECONDS):
            await connection.fetchval(text, *parameters)
    except DivisionByZeroError as unproved:
        raise BeginAgain("a flow is not as it was remembered, or the lease has lapsed") from unproved
    except AGAIN as error:
        raise BeginAgain(str(error)) from error
    except FAULTS as error:
        entry = first_entry(writes)
        if is_answer(error) or entry is None:
            raise
        raise Unanswered(Mark(entry)) from error
    memory.learn(world, taken)
