"""The embedded dedup store: one SQLite file, for several threads, event loops and processes of one machine.

Each process has one thread that writes. It takes all operations that are waiting and commits them as one transaction,
so concurrent callers share its flush to the disk. ``BEGIN IMMEDIATE`` makes looking up and reserving one atomic step
also between processes. An operation is answered after the commit, never before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from counterfoil.contracts.stores import sqlite_tables as tables
from counterfoil.contracts.stores.batches import StoreOperation
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

T = TypeVar("T")

MOST_OPERATIONS = 512
"""Operations of one transaction."""
BUSY_SECONDS = 5.0


def system_clock() -> int:
    return time.time_ns() // 1_000_000


class SqliteDedupStore(SqlDedupStore):
    """See stores/protocol.py. It is opened by its first operation, and again after a failure."""

    def __init__(self, path: str | Path, *, clock: Clock = system_clock, busy_timeout: float = BUSY_SECONDS) -> None:
        self.path = Path(path)
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._lock = threading.Lock()
        self._writer: _WriterThread | None = None

    def __repr__(self) -> str:
        return f"SqliteDedupStore({str(self.path)!r})"

    async def show(self, tool: str, key: str) -> ShownEffect | None:
        return await self._run(lambda connection: tables.show(connection, (tool, key), self._clock()))

    async def list_effects(
        self,
        tool: str | None = None,
        state: EffectState | None = None,
        cursor: str | None = None,
        limit: int = PAGE,
    ) -> EffectsListed:
        return await self._run(
            lambda connection: tables.list_page(connection, tool, state, cursor, limit, self._clock())
        )

    async def forget(self, limit: int = PAGE) -> int:
        return await self._run(lambda connection: tables.forget_apart(connection, self._clock(), limit))

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Answer what is waiting, and end the thread."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None and writer.is_of_this_process():
            writer.stop()

    async def _submit(self, operation: StoreOperation) -> Any:
        return await self._live_writer().submit(operation)

    async def _run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        answer: T = await self._live_writer().submit(function)
        return answer

    def _live_writer(self) -> _WriterThread:
        writer = self._writer
        if writer is not None and writer.is_of_this_process():
            return writer
        with self._lock:
            if self._writer is None or not self._writer.is_of_this_process():
                self._writer = _WriterThread(self.path, self._clock, self._busy_timeout)
            return self._writer


class _Waiting(NamedTuple):
    """What a caller waits for, and where its answer goes."""

    work: Any
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class _WriterThread:
    """Owns the connection. After a fork it is useless in the child, which makes its own."""

    def __init__(self, path: Path, clock: Clock, busy_timeout: float) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._pid = os.getpid()
        self._waiting: list[_Waiting] = []
        self._wakes = threading.Condition()
        self._stopping = False
        self._connection: sqlite3.Connection | None = None
        self._sweep = tables.ForgettingPace()
        self._thread = threading.Thread(target=self._work, name=f"dedup-store-{path.name}", daemon=True)
        self._thread.start()

    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def submit(self, work: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(work, loop, loop.create_future())
        with self._wakes:
            if self._stopping:
                raise DedupStoreUnavailable(f"{self._path}: the store is closed")
            self._waiting.append(waiting)
            if len(self._waiting) == 1:
                self._wakes.notify()
        return waiting.future

    def stop(self) -> None:
        with self._wakes:
            self._stopping = True
            self._wakes.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while taken := self._take():
            operations = [each for each in taken if not callable(each.work)]
            answers: list[tuple[_Waiting, Any]] = []
            for begin in range(0, len(operations), MOST_OPERATIONS):
                answers += self._commit(operations[begin : begin + MOST_OPERATIONS])
            answers += [(each, self._attempt(each.work)) for each in taken if callable(each.work)]
            _answer(answers)
        self._disconnect()

    def _take(self) -> list[_Waiting]:
        """Everything that waits now; empty: the store was closed."""
        with self._wakes:
            while not self._waiting and not self._stopping:
                self._wakes.wait()
            taken, self._waiting = self._waiting, []
            return taken

    def _commit(self, batch: Sequence[_Waiting]) -> list[tuple[_Waiting, Any]]:
        operations = [each.work for each in batch]
        found = self._attempt(lambda connection: tables.commit(connection, operations, self._clock(), self._sweep))
        if isinstance(found, list):
            return list(zip(batch, found, strict=True))
        if len(batch) > 1 and not isinstance(found, DedupStoreUnavailable):  # one operation that cannot be written
            return [answer for each in batch for answer in self._commit([each])]
        return [(each, found) for each in batch]

    def _attempt(self, function: Callable[[sqlite3.Connection], Any]) -> Any:
        """The answer, or the exception that the caller gets. After a failure the connection is opened again."""
        try:
            return function(self._connected())
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            return DedupStoreUnavailable(f"{self._path}: {error}")
        except Exception as error:  # noqa: BLE001 (a defect must reach its caller, and must not end the thread)
            self._disconnect()
            return error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = tables.connect(self._path, self._busy_timeout)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def _answer(answers: Sequence[tuple[_Waiting, Any]]) -> None:
    """Wake each event loop once for all of its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = defaultdict(list)
    for waiting, answer in answers:
        by_loop[waiting.loop].append((waiting.future, answer))
    for loop, resolved in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop of a caller that is gone is closed
            loop.call_soon_threadsafe(_resolve, resolved)


def _resolve(resolved: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in resolved:
        resolve(future, answer)
