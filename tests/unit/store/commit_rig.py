"""Group commit on a real store, in the test's hand, and commands that do what a test wants of them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterfoil.domain.errors import UnknownStep
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.observability.metrics import Metrics
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.group_commit.batch import Batch, Command
from counterfoil.store.group_commit.commit import AfterCommit, Checker, GroupCommit
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.store.records import NOW, step_version

CLOCK = StillClock(NOW)
Handlers = list[Callable[[UnitOfWork], None]]


@dataclass
class Put:
    """Registers a step, and whatever else is asked of it."""

    step_id: str
    then: Callable[[UnitOfWork], Any] = lambda unit: None

    def needs(self, needs: ReadSet) -> None:
        pass

    def decide(self, unit: UnitOfWork, now: int) -> str:
        unit.put_current(self.step_id, step_version(self.step_id))
        unit.record(Event(EventType.CANCEL_DELIVERED, now, self.step_id, data={}))
        self.then(unit)
        return self.step_id


def refuse(_: UnitOfWork) -> None:
    raise UnknownStep("no")


def crash(_: UnitOfWork) -> None:
    raise ZeroDivisionError("a bug")


class Watched:
    """The real store, with a note of what is asked of it."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.batches: list[int] = []

    def execute(self, batch: Batch) -> Awaitable[None]:
        self.batches.append(len(batch))
        return self._store.execute(batch)


@dataclass
class Rig:
    store: SqliteStore
    watched: Watched
    commit: GroupCommit
    handlers: Handlers = field(default_factory=list)
    """What is called after each commit."""

    async def answers(self, *commands: Command[Any]) -> list[Any]:
        """What becomes of commands that come at once: answers and errors."""
        return await asyncio.gather(*map(self.commit.submit, commands), return_exceptions=True)

    async def steps(self) -> list[str]:
        return [row[0] for row in await self.store.read("list_steps")]

    async def told(self) -> list[str]:
        return [row[3] for row in await self.store.read("journal_after", after=0, limit=999)]

    def by_hand(self, statement: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.store.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def written(self) -> int:
        """How many events the journal has, as another process sees it."""
        count: int = self.by_hand("SELECT coalesce(sum(json_array_length(events)), 0) FROM journal")[0][0]
        return count


def group_commit(
    backend: Watched,
    backlog: int = 1000,
    batch: int = 100,
    batches: int = 1,
    handlers: Handlers | None = None,
    checker: Checker | None = None,
    also: Sequence[AfterCommit] = (),
) -> GroupCommit:
    """``handlers`` are looked up at each commit: a test may add one meanwhile."""

    def call_all(unit: UnitOfWork, _: GroupCommit) -> None:
        for handle in handlers or ():
            handle(unit)

    return GroupCommit(
        backend,
        CLOCK,
        Metrics(),
        DefinitionCache(),
        backlog_limit=backlog,
        batch_limit=batch,
        batches=batches,
        after_commit=[call_all, *also],
        checker=checker,
    )


def kinds(answers: list[Any]) -> list[Any]:
    return [type(answer) if isinstance(answer, Exception) else answer for answer in answers]
