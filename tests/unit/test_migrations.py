"""Schema versions: new databases, older ones and newer ones, and a migration that fails midway."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import pytest

from counterfoil.store.commit import StoreFailure
from counterfoil.store.sqlite.migrations import MIGRATIONS, SCHEMA_VERSION, fresh_schema, migrate

FIRST = "CREATE TABLE things (name TEXT PRIMARY KEY) STRICT;"
SECOND = FIRST.replace(")", ", size INTEGER)", 1)
THIRD = SECOND + "\nCREATE INDEX things_by_size ON things (size);"
STEPS = {
    1: "ALTER TABLE things ADD COLUMN size INTEGER;",
    2: "CREATE INDEX things_by_size ON things (size);",
}


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        yield connection


def columns(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """Every table with its columns, and every index, as SQLite sees them."""
    names = connection.execute("SELECT name, type FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
    pragma = {"table": "table_info", "index": "index_info"}
    return {name: connection.execute(f"PRAGMA {pragma[kind]}({name})").fetchall() for name, kind in names}


def versions(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    return connection.execute("SELECT version, applied_at FROM schema_version ORDER BY version").fetchall()


def test_a_new_database_is_made_at_once(connection: sqlite3.Connection) -> None:
    assert migrate(connection, 5) == 0
    assert versions(connection) == [(SCHEMA_VERSION, 5)]
    assert {"flows", "flow_steps", "work", "journal", "step_versions", "cancel_calls"} <= set(columns(connection))


def test_a_present_database_is_left_alone(connection: sqlite3.Connection) -> None:
    migrate(connection, 5)
    assert migrate(connection, 6) == SCHEMA_VERSION
    assert versions(connection) == [(SCHEMA_VERSION, 5)]


@pytest.mark.parametrize("older", [1, 2])
def test_an_older_database_becomes_like_a_new_one(connection: sqlite3.Connection, older: int) -> None:
    migrate(connection, 5, target=older, migrations=STEPS, schema=FIRST if older == 1 else SECOND)
    connection.execute("INSERT INTO things (name) VALUES ('kept')")
    assert migrate(connection, 6, target=3, migrations=STEPS, schema=THIRD) == older
    assert versions(connection) == [(older, 5), *((version, 6) for version in range(older + 1, 4))]
    assert connection.execute("SELECT name, size FROM things").fetchall() == [("kept", None)]
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        migrate(fresh, 5, target=3, migrations=STEPS, schema=THIRD)
        assert columns(connection) == columns(fresh)


def test_a_newer_database_is_refused_and_left_as_it_is(connection: sqlite3.Connection) -> None:
    migrate(connection, 5, target=3, migrations=STEPS, schema=THIRD)
    before = columns(connection)
    with pytest.raises(StoreFailure, match=r"schema version 3, this program knows up to 2.*newer counterfoil"):
        migrate(connection, 6, target=2, migrations=STEPS, schema=SECOND)
    assert columns(connection) == before
    assert versions(connection) == [(3, 5)]


def test_a_migration_that_fails_leaves_the_last_good_version(connection: sqlite3.Connection) -> None:
    migrate(connection, 5, target=1, migrations=STEPS, schema=FIRST)
    broken = {**STEPS, 2: "CREATE TABLE half (a INTEGER); CREATE TABLE things (a INTEGER);"}
    with pytest.raises(sqlite3.Error, match="already exists"):
        migrate(connection, 6, target=3, migrations=broken, schema=THIRD)
    assert not connection.in_transaction
    assert versions(connection) == [(1, 5), (2, 6)], "each step is a transaction of its own"
    assert "half" not in columns(connection), "and what failed left nothing"
    assert migrate(connection, 7, target=3, migrations=STEPS, schema=THIRD) == 2


def test_a_schema_that_is_no_sql_leaves_nothing(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.Error):
        migrate(connection, 5, target=1, schema="CREATE TABLE things (a INTEGER); NONSENSE;")
    assert "things" not in columns(connection)
    assert versions(connection) == []


def test_there_is_a_way_from_every_older_version() -> None:
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))


def test_the_schema_can_be_applied_to_an_empty_database(connection: sqlite3.Connection) -> None:
    connection.executescript(fresh_schema())
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
