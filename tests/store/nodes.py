"""As much of a node as its store sees, and what nodes do to work: commands of the engine, without the engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson

from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.time import Clock
from counterfoil.domain.work.receipts import Receipts
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.context import EngineContext
from counterfoil.engine.work.capacity import BatchCapacity, Slots
from counterfoil.engine.work.complete import Complete
from counterfoil.observability.metrics import Metrics
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.group_commit.batch import Command
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.backends import find, write
from tests.store.records import (
    DEFAULTS,
    NOW,
    RETRY,
    flow_inputs,
    flow_record,
    new_records,
    step_run,
    step_version,
    work_item,
)

LEASE_MS = 60_000
CONTEXT = EngineContext(Receipts([b"secret"]), defaults=DEFAULTS)


class Node:
    """An id with a lease, places to send from, and a writer of its own."""

    def __init__(self, node_id: str, store: Store, clock: Clock, *, batch_limit: int = 512) -> None:
        self.node_id = node_id
        self.store = store
        self.committed: list[UnitOfWork] = []
        """The units of work of its commits, in their order."""
        self.commit = GroupCommit(
            store,
            clock,
            Metrics(),
            DefinitionCache(),
            backlog_limit=100_000,
            batch_limit=batch_limit,
            prepare=lambda unit: self.prepare(unit),  # noqa: PLW0108 (a test may put another in its place)
            after_commit=[lambda unit, _: self.committed.append(unit)],
        )

    def prepare(self, unit: UnitOfWork) -> None:
        unit.node_id = self.node_id
        unit.capacity = BatchCapacity(Slots(1_000, 1_000))

    async def start(self, lease_ms: int = LEASE_MS) -> None:
        await self.store.join(self.node_id, lease_ms)
        self.commit.start()

    async def stop(self) -> None:
        await self.commit.close()
        await self.store.leave(self.node_id)

    async def outcome(self, command: Command[Any]) -> str:
        """What became of a command, in a word."""
        try:
            answer = await self.commit.submit(command)
        except CounterfoilError as refusal:
            return refusal.code
        return str(getattr(answer, "verdict", answer))

    async def outcomes(self, *commands: Command[Any]) -> Counter[str]:
        """How many of these, asked at once, came to what."""
        return Counter(await asyncio.gather(*map(self.outcome, commands)))


Pair = tuple[Node, Node]


async def register(store: Store, step_id: str = "step", **fields: Any) -> str:
    """Make a step known; its version."""
    version = step_version(step_id, **fields)
    await write(store, Changes(current={step_id: version.version}, versions={version.version: version}, at=NOW))
    return version.version


async def add_item(store: Store, name: str, status: WorkStatus = WorkStatus.ACTIVE, **fields: Any) -> None:
    """A flow of one step of one item, all of the same name; the step is ``step`` as ``register`` knows it."""
    known = {"version": step_version().version, **fields}
    own = {key: known[key] for key in ("step_id", "version") if key in known}
    work = work_item(status, work_id=name, flow_id=name, **known)
    await write(store, new_records(flow_record(flow_id=name), step_run(flow_id=name, **own), work, flow_inputs(name)))


async def add_items(store: Store, count: int, status: WorkStatus = WorkStatus.ACTIVE, **fields: Any) -> list[str]:
    """So many of them; their names."""
    names = [f"work-{number:03}" for number in range(count)]
    for name in names:
        await add_item(store, name, status, **fields)
    return names


def success(work_id: str, number: int = 0) -> Complete:
    return Complete(work_id, StepResult(success=True, outputs={"number": number}), RETRY)


def claimable(*lanes: str, now: int = NOW, share: int = 1_000, limit: int = 1_000) -> Find:
    """The search for what may be sent."""
    lanes = lanes or (step_version().lane,)
    return Find.of("find_claimable", lanes=orjson.dumps(lanes).decode(), now=now, share=share, limit=limit)


async def orphans(store: Store, owner: str, limit: int = 99) -> set[tuple[str, str]]:
    """What is found that dead nodes were sending: the work, and whose it was."""
    return {(work_id, dead) for work_id, dead in await find(store, "find_orphaned", owner=owner, limit=limit)}
