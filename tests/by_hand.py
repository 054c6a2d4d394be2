"""A hand in the database beside the engine that uses it: to look, to break something, to make writing fail."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Place = Path | str
"""Where a database is: the path of a SQLite file, or the URL of a PostgreSQL database."""


def by_hand(place: Place, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements, each for itself; the rows of the last one."""
    if isinstance(place, Path):
        return _on_sqlite(place, statements)
    with ThreadPoolExecutor(1) as apart:  # whether or not this thread has an event loop
        return apart.submit(asyncio.run, _on_postgresql(place, statements)).result()


def break_it(place: Place, *changes: str | Callable[[Place], None]) -> None:
    """Change what the database holds: by statements, each of which must find something to change, or by functions."""
    for statement in changes:
        if callable(statement):
            statement(place)
            continue
        assert by_hand(place, f"{statement} RETURNING 1"), f"nothing was broken by {statement}"


@contextlib.contextmanager
def full_disk(place: Place) -> Iterator[None]:
    """Nothing that tells of a change can be written, so no change can."""
    yield from _trigger(
        place,
        "INSERT ON journal",
        sqlite="SELECT RAISE(ABORT, 'disk full');",
        postgresql="RAISE EXCEPTION USING ERRCODE = 'disk_full';",
    )


@contextlib.contextmanager
def stubborn_work(place: Place, *only: str) -> Iterator[None]:
    """Work items (all, or only these) stay as they are, whatever changes them, without an error: as by a bug."""
    rows = f"OLD.work_id IN ({', '.join(map(repr, only))})" if only else ""
    yield from _trigger(place, "UPDATE ON work", rows, sqlite="SELECT RAISE(IGNORE);", postgresql="RETURN NULL;")


@contextlib.asynccontextmanager
async def locked(place: Place) -> AsyncIterator[None]:
    """Another program blocks all writes; reading goes on."""
    if isinstance(place, Path):
        with contextlib.closing(sqlite3.connect(place, isolation_level=None, timeout=10)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
        return
    import asyncpg

    connection = await asyncpg.connect(place)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE flows, work, journal IN EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


def _trigger(place: Place, when: str, rows: str = "", *, sqlite: str, postgresql: str) -> Iterator[None]:
    table = when.rpartition(" ")[2]
    condition = f"WHEN ({rows})" if rows else ""
    if isinstance(place, Path):
        by_hand(place, f"CREATE TRIGGER by_hand BEFORE {when} {condition} BEGIN {sqlite} END")
        yield
        by_hand(place, "DROP TRIGGER by_hand")
        return
    by_hand(
        place,
        f"CREATE FUNCTION by_hand() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {postgresql} END $$",
        f"CREATE TRIGGER by_hand BEFORE {when} FOR EACH ROW {condition} EXECUTE FUNCTION by_hand()",
    )
    yield
    by_hand(place, f"DROP TRIGGER by_hand ON {table}", "DROP FUNCTION by_hand")


def _on_sqlite(path: Path, statements: tuple[str, ...]) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        return rows


async def _on_postgresql(url: str, statements: tuple[str, ...]) -> list[tuple[Any, ...]]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        rows: list[tuple[Any, ...]] = []
        for statement in statements:
            rows = [tuple(row) for row in await connection.fetch(statement)]
        return rows
    finally:
        await connection.close()
