"""The version of a database: created new, migrated when older, refused when newer."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from importlib.resources import files

from counterfoil.store.group_commit.commit import StoreFailure


def _script(name: str) -> str:
    return files("counterfoil.store.sqlite").joinpath(name).read_text()


SCHEMA_VERSION = 8
MIGRATIONS: Mapping[int, str] = {
    number: _script(f"migrations/migration_{number}.sql") for number in range(1, SCHEMA_VERSION)
}
"""Scripts by the version that they start from: entry 1 makes version 2 of version 1. ``schema.sql`` is the sum."""


def migrate(
    connection: sqlite3.Connection,
    now: int,
    target: int = SCHEMA_VERSION,
    migrations: Mapping[int, str] = MIGRATIONS,
    schema: str | None = None,
) -> int:
    """Bring a database to the target version, each step in its own transaction; returns the version it had."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL) STRICT"
    )
    found: int = connection.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchall()[0][0]
    if found > target:
        raise StoreFailure(
            f"the database has schema version {found}, this program knows up to {target}: "
            "it was written by a newer counterfoil, start that one"
        )
    if found == 0:
        _apply(connection, schema if schema is not None else fresh_schema(), target, now)
    for version in range(found or target, target):
        _apply(connection, migrations[version], version + 1, now)
    return found


def fresh_schema() -> str:
    return _script("schema.sql")


def _apply(connection: sqlite3.Connection, script: str, version: int, now: int) -> None:
    note = f"INSERT INTO schema_version (version, applied_at) VALUES ({version:d}, {now:d});"  # noqa: S608 (numbers)
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\n{note}\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
