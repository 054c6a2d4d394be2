"""SQLite connections: how they are opened, and how a whole function runs in a connection's own thread."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import aiosqlite

from counterfoil.store.group_commit.commit import StoreFailure

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT_MS = 2_000
CHECKPOINT_PAGES = 4_000
"""Pages in the log before a commit also moves them into the database: larger means fewer, longer pauses."""

sqlite3.register_adapter(NoneType, lambda null: null)
"""None stays None. Without an adapter, the module asks for two protocols at every null that it binds, and takes eleven
times as long as for a number; a third of all values are nulls."""


class SqliteConnection(aiosqlite.Connection):
    """An aiosqlite connection that can run one function with several statements in its thread.

    A batch is one trip to the thread instead of one for each statement: under load a trip costs more than a statement.
    """

    async def run(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return await self._execute(function, self._conn, *args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]
        except (sqlite3.Error, ValueError) as error:
            raise StoreFailure(str(error) or type(error).__name__) from error

    def start(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """The same, begun before it is waited for; raises what the function raises."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, partial(function, self._conn, *args, **kwargs)))
        return future


async def open_writer(path: Path) -> SqliteConnection:
    """The one connection that writes: write-ahead log, every commit flushed before it counts."""
    return await _open(path, "rwc", _prepare_writer)


async def open_reader(path: Path) -> SqliteConnection:
    """A connection that only reads; with the write-ahead log it never blocks the writer."""
    return await _open(path, "ro", _prepare_reader)


async def _open(path: Path, mode: str, prepare: Callable[[sqlite3.Connection], None]) -> SqliteConnection:
    """An opening that is cancelled is finished and undone: its thread must not outlive the loop that it reports to."""
    opening = asyncio.ensure_future(_connect(path, mode, prepare))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with contextlib.suppress(StoreFailure):
            await (await opening).close()
        raise


async def _connect(path: Path, mode: str, prepare: Callable[[sqlite3.Connection], None]) -> SqliteConnection:
    uri = f"file:{quote(str(path))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, cached_statements=1024, timeout=BUSY_TIMEOUT_MS / 1000
        )
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    connection = SqliteConnection(connect, iter_chunk_size=64)
    try:
        await connection
    except sqlite3.Error as error:
        connection._thread.join()  # noqa: SLF001 (its last act is to tell this loop, which may be closed soon)
        raise StoreFailure(f"{path}: {error}") from error
    return connection


def _prepare_writer(connection: sqlite3.Connection) -> None:
    _pragma(connection, "journal_mode = WAL")
    _pragma(connection, "synchronous = FULL")
    _pragma(connection, f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
    _pragma(connection, "temp_store = MEMORY")
    _pragma(connection, "cache_size = -65536")


def _prepare_reader(connection: sqlite3.Connection) -> None:
    _pragma(connection, "query_only = ON")
    _pragma(connection, "temp_store = MEMORY")


def _pragma(connection: sqlite3.Connection, text: str) -> list[Any]:
    # Fetching all closes the cursor: an open one would make a later COMMIT fail.
    return connection.execute(f"PRAGMA {text}").fetchall()
