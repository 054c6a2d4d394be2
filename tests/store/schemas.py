"""Databases without a store around them: to bring them from one schema version to another, and to compare them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from counterfoil.store.postgres import migrations as of_postgresql
from counterfoil.store.postgres.connection import Connection
from counterfoil.store.sqlite import migrations as of_sqlite

Migrations = Mapping[int, str]


class Database(Protocol):
    """One of either kind, in the test's hand."""

    present: int
    """The schema version of the program."""
    migrations: Migrations

    def fresh_schema(self) -> str: ...

    async def migrate(
        self, now: int, target: int | None = None, migrations: Migrations | None = None, schema: str | None = None
    ) -> int:
        """Bring it to the target version, or to the present one; the version that it had."""
        ...

    async def fetch(self, statement: str) -> list[tuple[Any, ...]]: ...

    async def catalogue(self) -> set[tuple[Any, ...]]:
        """All that there is in it, as the database itself describes it; equal sets are equal schemas."""
        ...

    async def close(self) -> None: ...


class SqliteDatabase:
    present = of_sqlite.SCHEMA_VERSION
    migrations = of_sqlite.MIGRATIONS

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)

    def fresh_schema(self) -> str:
        return of_sqlite.fresh_schema()

    async def migrate(
        self, now: int, target: int | None = None, migrations: Migrations | None = None, schema: str | None = None
    ) -> int:
        steps = self.migrations if migrations is None else migrations
        return of_sqlite.migrate(self.connection, now, target or self.present, steps, schema)

    async def fetch(self, statement: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement).fetchall()

    async def catalogue(self) -> set[tuple[Any, ...]]:
        """The text of everything: without its comments and spaces, which say nothing of what it is."""
        rows = await self.fetch("SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {(*names, re.sub(r"--.*|\s", "", text)) for *names, text in rows}

    async def close(self) -> None:
        self.connection.close()


CATALOGUE = (
    """
    SELECT 'column', c.relname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname,
        format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attidentity::text, a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid)
    FROM pg_attribute AS a
    JOIN pg_class AS c ON c.oid = a.attrelid AND c.relkind = 'r'
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    """,
    """
    SELECT 'constraint', c.conname, c.conrelid::regclass::text, pg_get_constraintdef(c.oid) FROM pg_constraint AS c
    WHERE c.connamespace = 'public'::regnamespace
    """,
    "SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    """
    SELECT 'relation', relname, relkind::text, reloptions::text FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
    """,
)
"""Everything that a schema of ours consists of. Columns have places: a new one is the last, also in a fresh schema."""


class PostgresDatabase:
    present = of_postgresql.SCHEMA_VERSION
    migrations = of_postgresql.MIGRATIONS

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    async def at(cls, dsn: str) -> PostgresDatabase:
        return cls(await asyncpg.connect(dsn))

    def fresh_schema(self) -> str:
        return of_postgresql.fresh_schema()

    async def migrate(
        self, now: int, target: int | None = None, migrations: Migrations | None = None, schema: str | None = None
    ) -> int:
        steps = self.migrations if migrations is None else migrations
        return await of_postgresql.migrate(self.connection, now, target or self.present, steps, schema)

    async def fetch(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(statement)]

    async def catalogue(self) -> set[tuple[Any, ...]]:
        return {tuple(row) for query in CATALOGUE for row in await self.connection.fetch(query)}

    async def close(self) -> None:
        await self.connection.close()


async def versions(database: Database) -> list[tuple[int, int]]:
    """Which versions it has had, and since when."""
    rows = await database.fetch("SELECT version, applied_at FROM schema_version ORDER BY version")
    return [(version, applied_at) for version, applied_at in rows]
