"""The SQLite store: one writer, a few readers, one owner of the file at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.time import Clock
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.journal import READS, seen_entry, unpack_read
from counterfoil.store.protocol import Page, Row, text_size
from counterfoil.store.sqlite.connection import SqliteConnection, open_reader, open_writer
from counterfoil.store.sqlite.lock import take_lock
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION, migrate
from counterfoil.store.sqlite.receipt_checks import note_receipt_secret
from counterfoil.store.sqlite.transaction import QUERIES, execute, write_probe

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_BROKEN = ("malformed", "not a database", "disk I/O error", "unable to open", "closed", "readonly", "no such table")
"""Failures after which the connection itself is not trusted any more and is reopened."""


class SqliteStore:
    """See store/protocol.py.

    A file beside the database is locked while a process serves it: two writers of one file would each take the
    other's dispatches for those of a dead process.
    """

    batches = 1

    def __init__(self, path: Path, clock: Clock, defaults: WorkDefaults, readers: int = 2) -> None:
        self.path = path
        self._clock = clock
        self._defaults = defaults
        self._reader_count = readers
        self._writer: SqliteConnection | None = None
        self._readers: asyncio.Queue[SqliteConnection | None] = asyncio.Queue()
        self._closed = True
        self._lock: int | None = None
        self._cache = OpenFlowCache(alone=True)
        self._heard: Callable[[str], None] = lambda message: None

    async def open(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self.path, "stop it, or give this one another data directory")
        self._closed, self._readers = False, asyncio.Queue()
        self.path.touch(mode=0o600)  # payloads are for the owner only
        try:
            writer = await self._open_writer()
            found = await writer.run(migrate, self._clock())
            for _ in range(self._reader_count):  # now: later there may be no descriptor for them
                self._readers.put_nowait(await open_reader(self.path))
        except BaseException:
            await self.close()
            raise
        if found not in (0, SCHEMA_VERSION):
            log.info("store_migrated", was=found, now=SCHEMA_VERSION)

    async def close(self) -> None:
        self._closed = True
        connections = [self._readers.get_nowait() for _ in range(self._readers.qsize())]
        self._readers.put_nowait(None)  # for reads that wait for one: each finds the store closed, and passes it on
        connections.append(self._writer)
        self._writer = None
        for connection in connections:
            if connection is not None:
                await connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailure("the store is closed")

    def execute(self, batch: Batch) -> Awaitable[None]:
        if self._writer is None:
            return self._execute_anew(batch)
        return self._guard(self._writer.start(execute, batch, self._defaults, self._cache))

    async def _execute_anew(self, batch: Batch) -> None:
        writer = await self._open_writer()
        await self._guard(writer.start(execute, batch, self._defaults, self._cache))

    async def _guard(self, running: Awaitable[None]) -> None:
        try:
            await running
        except sqlite3.Error as error:
            failure = StoreFailure(str(error) or type(error).__name__)
            await self._drop_if_broken(failure)
            raise failure from error

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        return await self._run(_fetch, query, parameters)

    async def read_page(self, query: str, max_bytes: int, **parameters: Any) -> Page:
        return await self._run(_fetch_page, query, parameters, max_bytes)

    async def _run(
        self, fetch: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function with one of the readers, in its thread."""
        self._check_open()
        readers = self._readers
        connection = await readers.get()
        try:
            self._check_open()
            if connection is None:
                connection = await open_reader(self.path)
            return await connection.run(fetch, *args, **kwargs)
        except StoreFailure as failure:
            if connection is not None and _is_broken(failure):
                await connection.close()
                connection = None
            raise
        finally:
            readers.put_nowait(None if self._closed else connection)
            if self._closed and connection is not None:
                await connection.close()

    async def probe(self, node_id: str) -> None:
        self._check_open()
        if self._writer is None:
            raise StoreFailure("the database is being reopened")
        await self._guard(self._writer.start(write_probe))

    # One process at a time: its lease is the lock on the file, and there is no other node.

    async def join(self, node_id: str, lease_ms: int) -> None:
        pass

    async def renew(self, node_id: str, lease_ms: int) -> int | None:
        return 0

    async def leave(self, node_id: str) -> None:
        pass

    async def notify(self, message: str) -> None:
        self._heard(message)

    def listen(self, listener: Callable[[str], None]) -> None:
        self._heard = listener

    async def receipt_secret(self, proposed: str | None) -> str | None:
        return None

    async def note_receipt_secret(self, check: str, dropped: Sequence[str], now: int) -> None:
        writer = self._writer or await self._open_writer()
        await writer.run(note_receipt_secret, check, dropped, now)

    async def _open_writer(self) -> SqliteConnection:
        self._check_open()
        self._writer = await open_writer(self.path)
        self._cache = OpenFlowCache(alone=True)  # the file may have been replaced
        return self._writer

    async def _drop_if_broken(self, failure: StoreFailure) -> None:
        if self._writer is not None and _is_broken(failure):
            connection, self._writer = self._writer, None
            await connection.close()


def _fetch(connection: sqlite3.Connection, query: str, parameters: dict[str, Any]) -> list[Row]:
    rows = connection.execute(QUERIES[query], parameters).fetchall()
    return unpack_read(query, parameters, rows) if query in READS else rows


def _fetch_page(connection: sqlite3.Connection, query: str, parameters: dict[str, Any], max_bytes: int) -> Page:
    rows, size, seen = [], 0, seen_entry(query, parameters)
    with contextlib.closing(connection.execute(QUERIES[query], parameters)) as found:
        for row in found:
            rows.append(row)
            size += text_size(row) if row[0] != seen else 0
            if size >= max_bytes:
                break
    return Page(unpack_read(query, parameters, rows) if query in READS else rows, size >= max_bytes)


def _is_broken(failure: StoreFailure) -> bool:
    return any(sign in str(failure) for sign in _BROKEN)
