"""The PostgreSQL store: connections that write, that read, one for the lease, and one that hears other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.time import Clock
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.journal import MOST_EVENTS, READS, seen_entry, unpack_read
from counterfoil.store.postgres.connection import (
    FAULTS,
    PATIENCE_SECONDS,
    Access,
    Connection,
    Connector,
    close_connection,
    explain,
    is_answer,
    is_usable,
)
from counterfoil.store.postgres.journal_tail import JournalTail
from counterfoil.store.postgres.listening import Listener
from counterfoil.store.postgres.local_locks import LocalLocks
from counterfoil.store.postgres.migrations import migrate
from counterfoil.store.postgres.statements import COORDINATION, first_of, page_of, with_parameters
from counterfoil.store.postgres.watchdog import Watchdog
from counterfoil.store.postgres.writer import Truce, Writer
from counterfoil.store.protocol import LONG_BYTES, Page, Row, text_size

STATEMENT_SECONDS = 30.0
"""A query that takes longer than this is given up, even if the server answers (see store/postgres/watchdog.py)."""

SIGNING_MS = 120_000
"""How far ahead of its lease a node notes that it signs receipts: for that long, clocks of nodes may differ."""

log = structlog.get_logger(__name__)


class PostgresStore:
    """See store/protocol.py. A lost connection is reopened when it is needed next, as the connector allows."""

    batches = 2
    """The server works on one batch while the node decides on another: with one at a time, each waits for the other."""

    def __init__(
        self,
        dsn: str,
        clock: Clock,
        defaults: WorkDefaults,
        readers: int = 2,
        *,
        listen_dsn: str = "",
        statement_cache: int = 1024,
    ) -> None:
        self.access = Access(dsn, statement_cache)
        self._clock = clock
        self._reader_count = readers
        self._connector = Connector(self.access)
        self._watchdog = Watchdog(self._connector)
        self._readers: asyncio.Queue[Connection | None] = asyncio.Queue()
        self._keeper: asyncio.Queue[Connection | None] = asyncio.Queue()
        """The one connection for leases and notifications: a slow read must not cost the node its lease."""
        cache, truce = OpenFlowCache(alone=False), Truce()
        # A pooler may give another server to each trip of a statement that stands in no transaction.
        shortcuts = statement_cache > 0
        self._writers = [
            Writer(self._connect, self._watchdog, defaults, cache, truce, takes_shortcuts=shortcuts)
            for _ in range(self.batches)
        ]
        # The writer used last comes first: the caches of its server process are warm.
        self._idle_writers: asyncio.LifoQueue[Writer] = asyncio.LifoQueue()
        for writer in self._writers:
            self._idle_writers.put_nowait(writer)
        self._local_locks = LocalLocks()
        self._tail = JournalTail()
        self._columns: dict[str, int] = {}
        """How many columns the queries give that were asked for by pages."""
        self._listener = Listener(Access(listen_dsn or dsn, 0), self._hear)
        self._closed = True
        self._signs_with: str | None = None
        self._signs_until = 0
        self._heard: Callable[[str], None] = lambda message: None

    async def open(self) -> None:
        self._closed, self._readers, self._keeper = False, asyncio.Queue(), asyncio.Queue()
        try:
            for writer in self._writers:
                writer.connection = await self._connector.connect()
            first = self._writers[0].connection
            assert first is not None
            async with asyncio.timeout(STATEMENT_SECONDS):
                await migrate(first, self._clock(), upgrade=False)
                await self._look_at_server(first)
            for _ in range(self._reader_count):
                self._readers.put_nowait(await self._connector.connect())
            self._keeper.put_nowait(await self._connector.connect())
        except FAULTS as error:
            await self.close()
            raise StoreFailure(f"{self.access.shown}: {explain(error)}") from error
        except BaseException:
            await self.close()
            raise
        self._listener.start()
        self._watchdog.start()

    async def close(self) -> None:
        self._closed = True
        connections: list[Connection | None] = []
        for pool in (self._readers, self._keeper):
            connections += [pool.get_nowait() for _ in range(pool.qsize())]
            pool.put_nowait(None)  # for reads that wait for one: each finds the store closed, and passes it on
        await self._listener.stop()
        await self._watchdog.stop()
        await self._connector.close()
        connections += [writer.connection for writer in self._writers]
        for writer in self._writers:
            writer.connection = None
        await asyncio.gather(*(close_connection(each) for each in connections if each is not None))

    async def _connect(self) -> Connection:
        """A connection in the place of one that was lost; raises StoreFailure, soon."""
        self._check_open()
        return await self._connector.connect(PATIENCE_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailure("the store is closed")

    # Writing -----------------------------------------------------------------------------------------------------

    def execute(self, batch: Batch) -> Awaitable[None]:
        return self._execute(batch)

    async def _execute(self, batch: Batch) -> None:
        wanted = frozenset(batch.needs.work)
        await self._local_locks.take(wanted)
        try:
            writer = await self._idle_writers.get()
            try:
                await writer.execute(batch)
            finally:
                self._idle_writers.put_nowait(writer)
        finally:
            self._local_locks.give_back(wanted)

    # Reading -----------------------------------------------------------------------------------------------------

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        if _matches_nothing(parameters):
            return []
        text, values = with_parameters(query, parameters)
        rows = self._visible(query, parameters, await self._fetch(self._readers, text, *values))
        return unpack_read(query, parameters, rows) if query in READS else [tuple(row) for row in rows]

    async def read_page(self, query: str, max_bytes: int, **parameters: Any) -> Page:
        if _matches_nothing(parameters):
            return Page([], full=False)
        text, values = with_parameters(query, parameters)
        columns = self._columns.get(query)
        if columns is None:
            first = await self._fetch(self._readers, first_of(text), *values)
            if not first:
                return Page([], full=False)
            columns = self._columns[query] = len(first[0])
        seen = seen_entry(query, parameters)
        limits = [max_bytes] if seen is None else [max_bytes, seen]
        found = await self._fetch(self._readers, page_of(text, columns, seen=seen is not None), *values, *limits)
        rows = [tuple(row) for row in found]
        size = rows[-1][-1] + (text_size(rows[-1]) if rows[-1][0] != seen else 0) if rows else 0
        shown = self._visible(query, parameters, [row[:-1] for row in rows])
        full = size >= max_bytes or len(shown) < len(rows)
        if query not in READS:
            return Page(shown, full)
        if size < LONG_BYTES:
            return Page(unpack_read(query, parameters, shown), full)
        return Page(await asyncio.to_thread(unpack_read, query, parameters, shown), full)

    def _visible(self, query: str, parameters: dict[str, Any], rows: list[Any]) -> list[Any]:
        return self._tail.visible(parameters["after"] // MOST_EVENTS, rows) if query == "journal_after" else rows

    async def _fetch(self, pool: asyncio.Queue[Connection | None], text: str, *values: Any) -> list[Any]:
        self._check_open()
        connection = await pool.get()
        try:
            fresh = not is_usable(connection)
            if connection is None or fresh:
                connection = await self._connect()
            try:
                return await self._fetch_on(connection, text, values)
            except FAULTS:
                if fresh or not connection.is_closed():
                    raise
                connection = await self._connect()  # it broke while it was idle
                return await self._fetch_on(connection, text, values)
        except FAULTS as error:
            if connection is not None and not is_answer(error):
                connection.terminate()
            raise StoreFailure(explain(error)) from error
        except BaseException:
            if connection is not None:
                connection.terminate()
            raise
        finally:
            if self._closed and connection is not None:
                connection.terminate()
            pool.put_nowait(connection)

    async def _fetch_on(self, connection: Connection, text: str, values: tuple[Any, ...]) -> list[Any]:
        with self._watchdog.watch(connection):
            async with asyncio.timeout(STATEMENT_SECONDS):
                if self.access.statement_cache:
                    return list(await connection.fetch(text, *values))
                async with connection.transaction():  # a pooler must not change the server between parse and execute
                    return list(await connection.fetch(text, *values))

    async def probe(self, node_id: str) -> None:
        if not await self._fetch(self._keeper, COORDINATION["probe_write"], node_id):
            raise StoreFailure("this node has no lease")

    # Other nodes -------------------------------------------------------------------------------------------------

    async def join(self, node_id: str, lease_ms: int) -> None:
        await self._fetch(self._keeper, COORDINATION["join_nodes"], node_id, lease_ms)

    async def renew(self, node_id: str, lease_ms: int) -> int | None:
        await self._go_on_signing(lease_ms)
        rows = await self._fetch(self._keeper, COORDINATION["renew_lease"], node_id, lease_ms)
        return rows[0][0] if rows else None

    async def leave(self, node_id: str) -> None:
        await self._fetch(self._keeper, COORDINATION["leave_nodes"], node_id)

    async def notify(self, message: str) -> None:
        await self._fetch(self._keeper, "SELECT pg_notify($1, $2)", self._listener.channel, message)

    def listen(self, listener: Callable[[str], None]) -> None:
        self._heard = listener

    def _hear(self, message: str) -> None:
        self._heard(message)

    async def receipt_secret(self, proposed: str | None) -> str | None:
        if proposed is not None:
            await self._fetch(
                self._keeper, "INSERT INTO receipt_secret (secret) VALUES ($1) ON CONFLICT DO NOTHING", proposed
            )
        rows = await self._fetch(self._keeper, "SELECT secret FROM receipt_secret")
        return rows[0][0] if rows else None

    async def note_receipt_secret(self, check: str, dropped: Sequence[str], now: int) -> None:
        self._signs_with, self._signs_until = check, now + SIGNING_MS
        await self._fetch(self._keeper, COORDINATION["begin_signing"], check, now, self._signs_until)
        await self._fetch(self._keeper, COORDINATION["end_signing"], list(dropped), now)

    async def _go_on_signing(self, lease_ms: int) -> None:
        """Keep the noted end ahead of the lease: without one nothing is sent, so nothing is signed behind it."""
        now = self._clock()
        if self._signs_with is None or self._signs_until > now + lease_ms + SIGNING_MS // 2:
            return
        until = now + lease_ms + SIGNING_MS
        await self._fetch(self._keeper, COORDINATION["go_on_signing"], self._signs_with, until)
        self._signs_until = until

    async def _look_at_server(self, connection: Connection) -> None:
        """Warn the operator of a server that may lose commits, and of a pooler that may lose statements."""
        async with connection.transaction():  # for the sake of a pooler, as above
            for name in ("fsync", "synchronous_commit"):
                if await connection.fetchval("SELECT current_setting($1)", name) == "off":
                    log.warning("store_not_durable", setting=f"{name} = off", remedy="turn it on: commits may be lost")
            behind_pooler = await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()
        self._watchdog.pooled = behind_pooler
        if behind_pooler and self.access.statement_cache:
            log.warning(
                "store_behind_pooler",
                remedy="if it pools transactions, set store_statement_cache to 0, and store_listen to a direct URL",
            )


def _matches_nothing(parameters: dict[str, Any]) -> bool:
    """No text of PostgreSQL holds the character NUL."""
    return any(isinstance(value, str) and "\0" in value for value in parameters.values())
