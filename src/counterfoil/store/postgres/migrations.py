"""The version of a database: created new, migrated when asked, refused when newer.

Nodes that start together on an empty database create it once: they wait for each other. An older schema is not
migrated by the first node to start, because nodes of the older version may still be running: an operator does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.postgres.statements import PACKAGE


def _script(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text()


SCHEMA_VERSION = 8
MIGRATIONS: Mapping[int, str] = {
    number: _script(f"migrations/migration_{number}.sql") for number in range(1, SCHEMA_VERSION)
}
"""Scripts by the version that they start from: entry 1 makes version 2 of version 1. ``schema.sql`` is the sum."""

_LOCK = 7_017_202_601
"""One migration of a database at a time, whichever node began it."""
_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_at BIGINT NOT NULL)"


async def migrate(
    connection: Connection,
    now: int,
    target: int = SCHEMA_VERSION,
    migrations: Mapping[int, str] = MIGRATIONS,
    schema: str | None = None,
    *,
    upgrade: bool = True,
) -> int:
    """Bring a database to the target version, all or nothing; returns the version it had (0: it was empty)."""
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        found = await found_version(connection)
        if found == target:
            return found
        if found > target:
            raise StoreFailure(
                f"the database has schema version {found}, this program knows up to {target}: "
                "it was written by a newer counterfoil, start that one"
            )
        if found and not upgrade:
            raise StoreFailure(
                f"the database has schema version {found}, this program needs {target}: "
                "stop the older nodes, then run counterfoil store migrate"
            )
        await connection.execute(_VERSIONS)
        if found == 0:
            await connection.execute(schema if schema is not None else fresh_schema())
            await _note(connection, target, now)
        for version in range(found or target, target):
            await connection.execute(migrations[version])
            await _note(connection, version + 1, now)
    return found


async def found_version(connection: Connection) -> int:
    """The schema version of a database; 0: nothing of ours is there."""
    if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
        return 0
    found: int = await connection.fetchval("SELECT coalesce(max(version), 0) FROM schema_version")
    return found


async def _note(connection: Connection, version: int, now: int) -> None:
    await connection.execute("INSERT INTO schema_version (version, applied_at) VALUES ($1, $2)", version, now)


def fresh_schema() -> str:
    return _script("schema.sql")
