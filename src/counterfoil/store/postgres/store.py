"""The PostgreSQL store: one connection that writes, a few that read, one for the lease, one that hears other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from asyncpg import ReadOnlySQLTransactionError

from counterfoil.domain.steps import WorkDefaults
from counterfoil.domain.time import Clock
from counterfoil.store.batch import Batch
from counterfoil.store.commit import CommitUnknown, GuardRefused, StoreFailure
from counterfoil.store.postgres.connection import (
    FAULTS,
    PATIENCE_SECONDS,
    Access,
    Connection,
    Gate,
    close_connection,
    explain,
    is_answer,
    is_usable,
)
from counterfoil.store.postgres.listening import Listener
from counterfoil.store.postgres.migrations import migrate
from counterfoil.store.postgres.pulse import Pulse
from counterfoil.store.postgres.statements import COORDINATION, with_parameters
from counterfoil.store.postgres.tail import Tail
from counterfoil.store.postgres.transaction import BeginAgain, LeaseLost, Mark, Unanswered, begin_statement, execute
from counterfoil.store.protocol import Row

TRIES = 20
"""How often a batch is begun again because other nodes were in its way, before it is given up as unavailable."""
TRYING_SECONDS = 5.0
"""How long it is begun again, however often: those whose commands are in it wait."""
STATEMENT_SECONDS = 30.0
"""A query that takes longer than this is given up, though the server be there (see store/postgres/pulse.py)."""
USELESS_SECONDS = 0.5
"""How long a server is left alone that let the writer in and then would not do its work (a standby, say)."""
DOUBT_SECONDS = 2.0
"""How long the commands of a commit in doubt wait for the truth, before they are told to ask again."""

log = structlog.get_logger(__name__)


class PostgresStore:
    """See store/protocol.py. Lost connections are opened anew by whoever needs them next, as the gate allows."""

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
        self._defaults = defaults
        self._reader_count = readers
        self._gate = Gate(self.access)
        self._pulse = Pulse(self._gate)
        self._writer: Connection | None = None
        self._readers: asyncio.Queue[Connection | None] = asyncio.Queue()
        self._keeper: asyncio.Queue[Connection | None] = asyncio.Queue()
        """The one connection for leases and words: whoever reads slowly must not cost the node its lease."""
        self._useless = (0.0, "")
        self._guard = secrets.randbits(62)
        self._begin = begin_statement(self._guard)
        self._tail = Tail()
        self._listener = Listener(Access(listen_dsn or dsn, 0), self._hear)
        self._closed = True
        self.heard: Callable[[str], None] = lambda message: None

    async def open(self) -> None:
        self._closed = False
        try:
            self._writer = await self._gate.connect()
            async with asyncio.timeout(STATEMENT_SECONDS):
                await migrate(self._writer, self._clock(), upgrade=False)
                await self._look_at_server(self._writer)
            for _ in range(self._reader_count):
                self._readers.put_nowait(await self._gate.connect())
            self._keeper.put_nowait(await self._gate.connect())
        except FAULTS as error:
            await self.close()
            raise StoreFailure(f"{self.access.shown}: {explain(error)}") from error
        except BaseException:
            await self.close()
            raise
        self._listener.start()
        self._pulse.start()

    async def close(self) -> None:
        self._closed = True
        await self._listener.stop()
        await self._pulse.stop()
        await self._gate.close()
        pools = (self._readers, self._keeper)
        connections = [self._writer, *(pool.get_nowait() for pool in pools for _ in range(pool.qsize()))]
        self._writer = None
        await asyncio.gather(*(close_connection(each) for each in connections if each is not None))

    async def _connect(self) -> Connection:
        """A connection in the place of one that was lost; raises StoreFailure, soon."""
        self._check_open()
        return await self._gate.connect(PATIENCE_SECONDS)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailure("the store is closed")

    # Writing -----------------------------------------------------------------------------------------------------

    def execute(self, batch: Batch) -> Awaitable[None]:
        return asyncio.ensure_future(self._execute(batch))

    async def _execute(self, batch: Batch) -> None:
        reconnected = False
        begun = time.monotonic()
        for number in range(TRIES):
            if number:
                batch.restart()
            connection = self._writer
            if connection is None or connection.is_closed():
                connection = await self._new_writer()
                reconnected = True
            try:
                with self._pulse.watch(connection):
                    await execute(connection, batch, self._defaults, self._begin)
                return
            except BeginAgain:
                if time.monotonic() - begun > TRYING_SECONDS:
                    break
                await asyncio.sleep(0)
            except (GuardRefused, LeaseLost):
                raise
            except Unanswered as unanswered:
                self._drop_writer()
                if await self._resolve_soon(unanswered.mark):
                    return
            except FAULTS as error:
                self._drop_writer()
                if reconnected:
                    self._note_useless(error)
                    raise StoreFailure(explain(error)) from error
            except BaseException:
                self._drop_writer()
                raise
        raise StoreFailure("other nodes were in the way of this batch again and again")

    async def _resolve_soon(self, mark: Mark | None) -> bool:
        """Whether a commit in doubt holds; raises CommitUnknown when that cannot be found out within some seconds."""
        if mark is None:
            raise StoreFailure("the connection was lost during a commit that may be repeated without harm")

        async def resolve() -> bool:
            return await self._holds(mark)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DOUBT_SECONDS):
                while True:
                    try:
                        return await resolve()
                    except StoreFailure:
                        await asyncio.sleep(0.1)
        raise CommitUnknown(resolve)

    async def _holds(self, mark: Mark) -> bool:
        """Read back whether a commit holds, after the transaction is certain to have ended: its guard is free."""
        connection = await self._connect()
        event = mark.event
        try:
            with self._pulse.watch(connection):
                async with asyncio.timeout(STATEMENT_SECONDS):
                    await connection.execute(self._begin)
                    found: int = await connection.fetchval(
                        COORDINATION["find_event"],
                        mark.seq,
                        str(event.type),
                        event.at,
                        event.flow_id,
                        event.work_id,
                        event.attempt,
                    )
                    await connection.execute("ROLLBACK")
        except FAULTS as error:
            connection.terminate()
            raise StoreFailure(explain(error)) from error
        except BaseException:
            connection.terminate()
            raise
        self._drop_writer()
        self._writer = connection
        log.info("commit_resolved", holds=bool(found))
        return bool(found)

    async def _new_writer(self) -> Connection:
        until, reason = self._useless
        if time.monotonic() < until:
            raise StoreFailure(reason)
        self._writer = await self._connect()
        return self._writer

    def _note_useless(self, error: BaseException) -> None:
        """A new connection failed: because of the server, or only because of what was asked of it."""
        if not is_answer(error) or isinstance(error, ReadOnlySQLTransactionError):
            self._useless = (time.monotonic() + USELESS_SECONDS, explain(error))

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    # Reading -----------------------------------------------------------------------------------------------------

    async def read(self, query: str, **parameters: Any) -> list[Row]:
        if any(isinstance(value, str) and "\0" in value for value in parameters.values()):
            return []  # no text here holds it, so nothing matches
        text, values = with_parameters(query, parameters)
        rows = await self._fetch(self._readers, text, *values)
        if query == "journal_after":
            return self._tail.visible(parameters["after"], rows)
        return [tuple(row) for row in rows]

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
                connection = await self._connect()  # it broke while nobody used it: not the reader's fault
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
        with self._pulse.watch(connection):
            async with asyncio.timeout(STATEMENT_SECONDS):
                if self.access.statement_cache:
                    return list(await connection.fetch(text, *values))
                async with connection.transaction():  # a pooler must not change the server between parse and execute
                    return list(await connection.fetch(text, *values))

    # Other nodes -------------------------------------------------------------------------------------------------

    async def join(self, node_id: str, lease_ms: int) -> None:
        await self._fetch(self._keeper, COORDINATION["join_nodes"], node_id, lease_ms)

    async def renew(self, node_id: str, lease_ms: int) -> int | None:
        rows = await self._fetch(self._keeper, COORDINATION["renew_lease"], node_id, lease_ms)
        return rows[0][0] if rows else None

    async def leave(self, node_id: str) -> None:
        await self._fetch(self._keeper, COORDINATION["leave_nodes"], node_id)

    async def notify(self, message: str) -> None:
        await self._fetch(self._keeper, "SELECT pg_notify($1, $2)", self._listener.channel, message)

    def _hear(self, message: str) -> None:
        self.heard(message)

    async def receipt_secret(self, proposed: str) -> str | None:
        await self._fetch(
            self._keeper, "INSERT INTO receipt_secret (secret) VALUES ($1) ON CONFLICT DO NOTHING", proposed
        )
        secret: str = (await self._fetch(self._keeper, "SELECT secret FROM receipt_secret"))[0][0]
        return secret

    async def _look_at_server(self, connection: Connection) -> None:
        """What whoever runs it should know: a server that may lose commits, a pooler that may lose statements."""
        async with connection.transaction():  # for the sake of a pooler, as above
            for name in ("fsync", "synchronous_commit"):
                if await connection.fetchval("SELECT current_setting($1)", name) == "off":
                    log.warning("store_not_durable", setting=f"{name} = off", remedy="turn it on: commits may be lost")
            behind_pooler = await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()
        self._pulse.pooled = behind_pooler
        if behind_pooler and self.access.statement_cache:
            log.warning(
                "store_behind_pooler",
                remedy="if it pools transactions, set store_statement_cache to 0, and store_listen to a URL past it",
            )
