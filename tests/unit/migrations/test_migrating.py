"""``counterfoil store migrate``: created, brought up to date or refused, and never under an engine that serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterfoil.cli.commands.store import told
from counterfoil.settings import Settings
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.maintenance.migrating import Migrated, migrate_store, refuse_while_served
from counterfoil.store.postgres.connection import Access, Connector
from counterfoil.store.postgres.migrations import SCHEMA_VERSION as SHARED_SCHEMA_VERSION
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from counterfoil.store.sqlite.store import SqliteStore
from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.store.records import DEFAULTS, NOW


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with the schema and no rows."""
    path = tmp_path / "counterfoil.db"
    await migrate_store(Settings(store=f"sqlite:///{path}"), NOW)
    return path


async def test_a_file_is_created_once_for_its_owner_alone(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "new" / "data")
    assert await migrate_store(settings, NOW) == Migrated(0, SCHEMA_VERSION)
    assert await migrate_store(settings, NOW + 1) == Migrated(SCHEMA_VERSION, SCHEMA_VERSION)
    assert settings.store_path.stat().st_mode & 0o077 == 0
    assert by_hand(settings.store_path, "SELECT version, applied_at FROM schema_version") == [(SCHEMA_VERSION, NOW)]


async def test_a_shared_database_is_created_once(new_database: NewDatabase) -> None:
    settings = Settings(store=new_database(empty=True))
    assert await migrate_store(settings, NOW) == Migrated(0, SHARED_SCHEMA_VERSION)
    assert await migrate_store(settings, NOW + 1) == Migrated(SHARED_SCHEMA_VERSION, SHARED_SCHEMA_VERSION)
    assert by_hand(settings.store, "SELECT version, applied_at FROM schema_version") == [(SHARED_SCHEMA_VERSION, NOW)]


async def test_a_newer_database_is_not_migrated(path: Path, new_database: NewDatabase) -> None:
    dsn = new_database()
    for place, store in ((path, f"sqlite:///{path}"), (dsn, dsn)):
        by_hand(place, "UPDATE schema_version SET version = 99")
        with pytest.raises(StoreFailure, match=r"schema version 99.*newer counterfoil"):
            await migrate_store(Settings(store=store), NOW)


async def test_a_file_that_is_served_is_not_migrated(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW, DEFAULTS)
    await store.open()
    with pytest.raises(StoreFailure, match=r"another counterfoil is serving .*: stop it first"):
        await migrate_store(Settings(store=f"sqlite:///{path}"), NOW)
    await store.close()


async def test_an_older_shared_database_is_not_migrated_under_its_nodes(new_database: NewDatabase) -> None:
    dsn = new_database()
    by_hand(dsn, "INSERT INTO nodes VALUES ('gone', now(), now()), ('there', now(), now() + INTERVAL '1 hour')")
    connection = await Connector(Access(dsn, 0)).connect()
    await refuse_while_served(connection, SHARED_SCHEMA_VERSION)  # nothing would be changed
    with pytest.raises(StoreFailure, match=r"nodes are serving this database \(1\): stop them first"):
        await refuse_while_served(connection, SHARED_SCHEMA_VERSION + 1)
    by_hand(dsn, "UPDATE nodes SET lease_until = now()")
    await refuse_while_served(connection, SHARED_SCHEMA_VERSION + 1)
    await connection.close()


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (Migrated(0, 1), "schema version 1: created"),
        (Migrated(1, 1), "schema version 1: up to date"),
        (Migrated(1, 3), "migrated from schema version 1 to 3"),
    ],
)
def test_what_was_done_is_said(done: Migrated, line: str) -> None:
    assert told(done) == line
