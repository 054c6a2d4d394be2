"""The stores that the suite is run on: one entry each, so that another backend joins by being named here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from counterfoil.domain.time import Clock
from counterfoil.store.group_commit.batch import Batch, Command
from counterfoil.store.kinds.flows import FLOWS
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Row, Store
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.by_hand import Place
from tests.databases import NewDatabase
from tests.store.records import DEFAULTS, NOW

MakeStore = Callable[[Path, Clock], Store]
"""Makes a store that is not yet opened; the same directory means the same database."""

NewConnection = Callable[[], Awaitable[Connection]]
"""Opens a connection of the test's own to the database of its store: PostgreSQL only."""


def sqlite_stores(new_database: NewDatabase) -> MakeStore:
    return lambda directory, clock: SqliteStore(directory / "counterfoil.db", clock, DEFAULTS)


def postgresql_stores(new_database: NewDatabase) -> MakeStore:
    databases: dict[Path, str] = {}

    def make(directory: Path, clock: Clock) -> Store:
        if directory not in databases:
            databases[directory] = new_database()
        return PostgresStore(databases[directory], clock, DEFAULTS)

    return make


BACKENDS: dict[str, Callable[[NewDatabase], MakeStore]] = {"sqlite": sqlite_stores, "postgresql": postgresql_stores}
"""How a test comes to the stores of a backend."""

QUERY_PACKAGES: dict[str, str] = {"sqlite": "counterfoil.store.sqlite", "postgresql": "counterfoil.store.postgres"}
"""Where a backend keeps its named queries."""


def place_of(store: Store) -> Place:
    """Where its database is, to look into it by hand."""
    assert isinstance(store, SqliteStore | PostgresStore)
    return store.path if isinstance(store, SqliteStore) else store.access.dsn


class Raw:
    """A command that asks for what a test wants to see, and changes what it wants changed, without any decision."""

    def __init__(self, needs: ReadSet, changes: Changes | None = None) -> None:
        self._needs = needs
        self._changes = changes

    def needs(self, needs: ReadSet) -> None:
        needs.include(self._needs)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        if self._changes is not None:
            unit.changes = self._changes


async def write(store: Store, changes: Changes) -> None:
    """Commit changes as they are."""
    await store.execute(batch_of(Raw(ReadSet(flows=changes.peek(FLOWS).keys() - changes.peek(FLOWS).new), changes)))


async def load(store: Store, needs: ReadSet) -> UnitOfWork:
    """What a batch with these needs sees."""
    batch = batch_of(Raw(needs))
    await store.execute(batch)
    return batch.unit


async def find(store: Store, query: str, **parameters: Any) -> list[Row]:
    """What a search inside a transaction finds."""
    search = Find.of(query, **parameters)
    return (await load(store, ReadSet(finds={search}))).found(search)


def batch_of(
    *commands: Command[Any], answers: list[Any] | None = None, prepare: Callable[[UnitOfWork], None] = lambda unit: None
) -> Batch:
    """Commands that share a transaction; their answers go where the test wants them."""
    told = [] if answers is None else answers

    def make_unit() -> UnitOfWork:
        unit = UnitOfWork({})
        prepare(unit)
        return unit

    return Batch([(command, told.append) for command in commands], make_unit, lambda: NOW)


async def are_waiting(eye: Connection, count: int) -> bool:
    """Whether so many connections to the same database wait for a lock; the server has other databases as well."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return int(await eye.fetchval(waiting)) == count
