"""The dedup store on PostgreSQL, for processes of many machines. The database's clock decides about TTLs and windows.

Operations of one event loop that wait at the same time are committed as one transaction. Each row is locked before it
is decided; a key without a row gets an empty one first, so that two callers can never both find it absent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import asyncpg

from counterfoil.contracts.stores.batches import StoreOperation
from counterfoil.contracts.stores.per_loop import PerLoop
from counterfoil.contracts.stores.postgres_tables import PostgresTables
from counterfoil.contracts.stores.protocol import (
    PAGE,
    DedupStoreUnavailable,
    EffectsListed,
    ShownEffect,
)
from counterfoil.contracts.stores.sql_store import SqlDedupStore, resolve
from counterfoil.domain.effects.reservations import (
    EffectState,
)
from counterfoil.domain.time import Clock

if TYPE_CHECKING:
    AnyConnection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")

TIMEOUT_SECONDS = 5.0
MOST_OPERATIONS = 512
SCHEMA = "counterfoil_contracts"

_UNANSWERED = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError)


class PostgresDedupStore(SqlDedupStore):
    """See stores/protocol.py. Its tables are created when they are missing, in a schema of their own."""

    def __init__(
        self, dsn: str, *, schema: str = SCHEMA, timeout: float = TIMEOUT_SECONDS, clock: Clock | None = None
    ) -> None:
        tables = PostgresTables(schema, clock)
        self.schema = schema
        self._writers: PerLoop[_PostgresWriter] = PerLoop(lambda: _PostgresWriter(dsn, tables, timeout))

    def __repr__(self) -> str:
        return f"PostgresDedupStore(schema={self.schema!r})"

    async def show(self, tool: str, key: str) -> ShownEffect | None:
        shown: ShownEffect | None = await self._writers.get().submit(_Reading("show", ((tool, key),)))
        return shown

    async def list_effects(
        self,
        tool: str | None = None,
        state: EffectState | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> EffectsListed:
        listed: EffectsListed = await self._writers.get().submit(_Reading("list_page", (tool, state, cursor, limit)))
        return listed

    async def forget(self, limit: int = PAGE) -> int:
        count: int = await self._writers.get().submit(_Reading("forget", (limit,)))
        return count

    async def aclose(self) -> None:
        await self._writers.aclose()

    async def _submit(self, operation: StoreOperation) -> Any:
        return await self._writers.get().submit(operation)


class _Reading(NamedTuple):
    """A method of the tables that is no operation of a batch."""

    method: str
    arguments: tuple[Any, ...]


class _PostgresWriter:
    """One connection of one event loop, and the operations that wait for it."""

    def __init__(self, dsn: str, tables: PostgresTables, timeout: float) -> None:
        self._dsn = dsn
        self._tables = tables
        self._timeout = timeout
        self._connection: AnyConnection | None = None
        self._waiting: list[tuple[StoreOperation | _Reading, asyncio.Future[Any]]] = []
        self._working: asyncio.Task[None] | None = None

    def submit(self, work: StoreOperation | _Reading) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return future

    async def aclose(self) -> None:
        if self._working is not None:
            await self._working
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_UNANSWERED):
                await connection.close(timeout=self._timeout)

    def abandon(self) -> None:
        """The loop is closed, and its transports with it."""
        self._connection = None

    async def _work(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting[:MOST_OPERATIONS], self._waiting[MOST_OPERATIONS:]
            await self._commit([each for each in taken if not isinstance(each[0], _Reading)])
            for work, future in taken:
                if isinstance(work, _Reading):
                    resolve(future, await self._attempt(_calling(self._tables, work)))

    async def _commit(self, batch: Sequence[tuple[Any, asyncio.Future[Any]]]) -> None:
        if not batch:
            return
        operations = [work for work, _ in batch]
        found = await self._attempt(lambda connection: self._tables.commit(connection, operations))
        if isinstance(found, list):
            for (_, future), answer in zip(batch, found, strict=True):
                resolve(future, answer)
        elif len(batch) > 1 and not isinstance(found, DedupStoreUnavailable):  # one of them cannot be written
            for each in batch:
                await self._commit([each])
        else:
            for _, future in batch:
                resolve(future, found)

    async def _attempt(self, function: Callable[[AnyConnection], Awaitable[Any]]) -> Any:
        """The answer, or the exception that the caller gets. After a failure the connection is opened again."""
        try:
            async with asyncio.timeout(self._timeout * 2):
                return await function(await self._connected())
        except asyncpg.DataError as error:  # a value that the database cannot hold
            return error
        except _UNANSWERED as error:
            self._disconnect()
            return DedupStoreUnavailable(f"PostgreSQL: {type(error).__name__}: {error}")
        except asyncio.CancelledError:
            self._disconnect()
            raise
        except Exception as error:  # noqa: BLE001 (a defect must reach its caller)
            self._disconnect()
            return error

    async def _connected(self) -> AnyConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._dsn, timeout=self._timeout, command_timeout=self._timeout)
            await self._tables.create(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


def _calling(tables: PostgresTables, reading: _Reading) -> Callable[[AnyConnection], Awaitable[Any]]:
    return lambda connection: getattr(tables, reading.method)(connection, *reading.arguments)
