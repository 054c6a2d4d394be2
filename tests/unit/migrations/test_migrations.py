"""Schema versions: new databases, older ones and newer ones, and a migration that fails midway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.migrations import migrate as migrate_postgresql
from tests.databases import NewDatabase
from tests.store.schemas import Database, PostgresDatabase, SqliteDatabase, versions

FIRST = "CREATE TABLE things (name TEXT PRIMARY KEY);"
SECOND = FIRST.replace(")", ", size INTEGER)", 1)
THIRD = SECOND + "\nCREATE INDEX things_by_size ON things (size);"
STEPS = {
    1: "ALTER TABLE things ADD COLUMN size INTEGER;",
    2: "CREATE INDEX things_by_size ON things (size);",
}
BROKEN = {**STEPS, 2: "CREATE TABLE half (a INTEGER); CREATE TABLE things (a INTEGER);"}

NewEmpty = Callable[[], Awaitable[Database]]


@pytest.fixture
async def new_empty(store_name: str, tmp_path: Path, new_database: NewDatabase) -> AsyncIterator[NewEmpty]:
    """Makes databases with nothing in them."""
    made: list[Database] = []

    async def make() -> Database:
        if store_name == "postgresql":
            made.append(await PostgresDatabase.at(new_database(empty=True)))
        else:
            made.append(SqliteDatabase(tmp_path / f"{len(made)}.db"))
        return made[-1]

    yield make
    for database in made:
        await database.close()


@pytest.fixture
async def database(new_empty: NewEmpty) -> Database:
    return await new_empty()


async def tables(database: Database) -> set[str]:
    return {str(names[1]) for names in await database.catalogue()}


async def test_a_new_database_is_made_at_once(database: Database) -> None:
    assert await database.migrate(5) == 0
    assert await versions(database) == [(database.present, 5)]
    assert {"flows", "flow_steps", "work", "journal", "step_versions", "cancel_calls"} <= await tables(database)


async def test_a_present_database_is_left_alone(database: Database) -> None:
    await database.migrate(5)
    before = await database.catalogue()
    assert await database.migrate(6) == database.present
    assert await versions(database) == [(database.present, 5)]
    assert await database.catalogue() == before


@pytest.mark.parametrize("older", [1, 2])
async def test_an_older_database_becomes_like_a_new_one(new_empty: NewEmpty, older: int) -> None:
    database, fresh = await new_empty(), await new_empty()
    await database.migrate(5, older, STEPS, FIRST if older == 1 else SECOND)
    await database.fetch("INSERT INTO things (name) VALUES ('kept')")
    assert await database.migrate(6, 3, STEPS, THIRD) == older
    assert await versions(database) == [(older, 5), *((version, 6) for version in range(older + 1, 4))]
    assert await database.fetch("SELECT name, size FROM things") == [("kept", None)]
    await fresh.migrate(5, 3, STEPS, THIRD)
    assert await database.catalogue() == await fresh.catalogue()


async def test_a_newer_database_is_refused_and_left_as_it_is(database: Database) -> None:
    await database.migrate(5, 3, STEPS, THIRD)
    before = await database.catalogue()
    with pytest.raises(StoreFailure, match=r"schema version 3, this program knows up to 2.*newer counterfoil"):
        await database.migrate(6, 2, STEPS, SECOND)
    assert await database.catalogue() == before
    assert await versions(database) == [(3, 5)]


async def test_a_migration_that_fails_leaves_the_last_good_version(database: Database, store_name: str) -> None:
    await database.migrate(5, 1, STEPS, FIRST)
    with pytest.raises(Exception, match="already exists"):
        await database.migrate(6, 3, BROKEN, THIRD)
    if store_name == "sqlite":
        good = 2
        assert await versions(database) == [(1, 5), (2, 6)], "each step is a transaction of its own"
    else:
        good = 1
        assert await versions(database) == [(1, 5)], "all steps are one transaction"
    assert "half" not in await tables(database), "what failed left nothing"
    assert await database.migrate(7, 3, STEPS, THIRD) == good


async def test_a_schema_that_is_no_sql_leaves_nothing(database: Database) -> None:
    with pytest.raises(Exception, match="NONSENSE"):
        await database.migrate(5, 1, STEPS, "CREATE TABLE things (a INTEGER); NONSENSE;")
    assert "things" not in await tables(database)
    await database.migrate(6, 1, STEPS, FIRST)
    assert await versions(database) == [(1, 6)]


@pytest.mark.parametrize("kind", [SqliteDatabase, PostgresDatabase])
def test_there_is_a_way_from_every_older_version(kind: type[Database]) -> None:
    assert sorted(kind.migrations) == list(range(1, kind.present))


@pytest.mark.sqlite_only
async def test_a_failure_leaves_no_transaction_open(database: Database) -> None:
    assert isinstance(database, SqliteDatabase)
    await database.migrate(5, 1, STEPS, FIRST)
    with contextlib.suppress(Exception):
        await database.migrate(6, 3, BROKEN, THIRD)
    assert not database.connection.in_transaction


@pytest.mark.postgresql_only
async def test_an_older_database_is_left_alone_without_permission_to_migrate(database: Database) -> None:
    assert isinstance(database, PostgresDatabase)
    await database.migrate(5, 1, STEPS, FIRST)
    before = await database.catalogue()
    with pytest.raises(StoreFailure, match=r"schema version 1, this program needs 3: .*counterfoil store migrate"):
        await migrate_postgresql(database.connection, 6, 3, STEPS, THIRD, upgrade=False)
    assert await database.catalogue() == before
    assert await migrate_postgresql(database.connection, 6, 1, STEPS, FIRST, upgrade=False) == 1


@pytest.mark.postgresql_only
async def test_an_empty_database_is_made_also_without_permission_to_migrate(database: Database) -> None:
    assert isinstance(database, PostgresDatabase)
    assert await migrate_postgresql(database.connection, 5, upgrade=False) == 0
    assert await versions(database) == [(database.present, 5)]
