"""The schema of a store: whichever way a database came to it, it is the same; and a store opens no other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from counterfoil.domain.records import CancelCall
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.testing.simulator import StillClock
from tests.databases import NewDatabase
from tests.store.backends import MakeStore, load, write
from tests.store.records import DEFAULTS, NOW, flow_record, new_records, step_run, work_item
from tests.store.schemas import Database, PostgresDatabase, SqliteDatabase, versions

Open = Callable[[Store | None], Awaitable[Database]]

NEXT_STEP = """
    ALTER TABLE cancel_calls ADD COLUMN note TEXT;
    CREATE INDEX cancel_calls_noted ON cancel_calls (flow_id) WHERE note IS NOT NULL;
    CREATE TABLE notes (note TEXT NOT NULL PRIMARY KEY, flow_id TEXT CHECK (flow_id <> ''));
"""
"""What might lead to the version that comes after the present one."""


def next_schema(present: str) -> str:
    """The schema of that version, as one would write it down."""
    widened, count = re.subn(r"(CREATE TABLE cancel_calls \([^;]*NOT NULL)\n\)", r"\1,\n    note    TEXT\n)", present)
    assert count == 1
    return widened + "".join(line for line in NEXT_STEP.splitlines(keepends=True) if "CREATE" in line)


@pytest.fixture
async def open_database(backend: str, tmp_path: Path, new_database: NewDatabase) -> AsyncIterator[Open]:
    """Opens the database under a store, or one with nothing in it."""
    opened: list[Database] = []

    async def open_it(store: Store | None) -> Database:
        if isinstance(store, SqliteStore):
            opened.append(SqliteDatabase(store.path))
        elif isinstance(store, PostgresStore):
            opened.append(await PostgresDatabase.at(store.access.dsn))
        elif backend == "sqlite":
            opened.append(SqliteDatabase(tmp_path / "empty.db"))
        else:
            opened.append(await PostgresDatabase.at(new_database(empty=True)))
        return opened[-1]

    yield open_it
    for database in opened:
        await database.close()


async def test_a_store_makes_the_schema_that_is_written_down(store: Store, open_database: Open) -> None:
    made, fresh = await open_database(store), await open_database(None)
    await fresh.migrate(NOW)
    assert await made.catalogue() == await fresh.catalogue()


async def test_a_database_that_was_migrated_is_like_one_that_was_made_new(store: Store, open_database: Open) -> None:
    """Nothing of it differs, and nothing that was in it is lost."""
    await write(store, new_records(flow_record(), step_run(), work_item()))
    call = CancelCall("work", "flow", "step", "work", "http://worker.test/cancel", {}, 0, NOW)
    await write(store, Changes(calls={"work": call}))
    await store.close()
    migrated, fresh = await open_database(store), await open_database(None)
    schema = next_schema(migrated.fresh_schema())
    following, steps = migrated.present + 1, {**migrated.migrations, migrated.present: NEXT_STEP}
    assert await migrated.migrate(NOW + 1, following, steps, schema) == migrated.present
    assert await fresh.migrate(NOW + 1, following, steps, schema) == 0
    assert await migrated.catalogue() == await fresh.catalogue()
    assert (await versions(migrated))[-1] == (following, NOW + 1)
    assert await migrated.fetch("SELECT call_id, note FROM cancel_calls") == [("work", None)]
    assert await migrated.fetch("SELECT work_id FROM work") == [("work",)]


async def test_what_differs_is_seen(open_database: Open, store: Store) -> None:
    """The comparison would be worth nothing if it saw nothing."""
    one = await open_database(store)
    before = await one.catalogue()
    for statement in NEXT_STEP.strip().splitlines():
        await one.fetch(statement)
        after = await one.catalogue()
        assert after != before, statement
        before = after


async def test_a_database_of_a_newer_program_is_refused_and_left_as_it_is(
    store: Store, make_store: MakeStore, tmp_path: Path, clock: StillClock, open_database: Open
) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    await store.close()
    database = await open_database(store)
    newer = database.present + 1
    await database.fetch(f"INSERT INTO schema_version (version, applied_at) VALUES ({newer}, 7)")
    for _ in range(2):
        again = make_store(tmp_path, clock)
        with pytest.raises(StoreFailure, match=f"schema version {newer}.*written by a newer counterfoil"):
            await again.open()
        await again.close()
    assert (await versions(database))[-1] == (newer, 7)
    await database.fetch(f"DELETE FROM schema_version WHERE version = {newer}")
    again = make_store(tmp_path, clock)
    await again.open()
    assert (await load(again, ReadSet(work={"work"}))).work("work") == work_item()
    await again.close()


@pytest.mark.postgresql_only
async def test_nodes_that_start_together_make_the_database_once(new_database: NewDatabase, clock: StillClock) -> None:
    dsn = new_database(empty=True)
    stores = [PostgresStore(dsn, clock, DEFAULTS, readers=1) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    for number, store in enumerate(stores):
        await write(store, new_records(flow_record(flow_id=f"flow-{number}")))
    database = await PostgresDatabase.at(dsn)
    assert await versions(database) == [(database.present, NOW)]
    assert await database.fetch("SELECT count(*) FROM flows") == [(8,)]
    await database.close()
    for store in stores:
        await store.close()
