"""Tells a lost server from a slow one, and closes the connections on which no answer will come.

To a waiting batch or reader, a slow statement and a lost server look the same. So when one has waited for a second, the
watchdog asks the server over a new connection. If that gets no answer either, all connections with a waiting statement
are closed, and their users handle that as any broken connection. If the server does not know one of those connections,
or has itself been waiting on it all the while, that one alone is lost (a failover leaves such behind) and is closed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.connection import (
    FAULTS,
    PATIENCE_SECONDS,
    Connection,
    Connector,
    Unreachable,
    close_connection,
    explain,
    is_answer,
)

TICK_SECONDS = 0.25
SILENCE_SECONDS = 1.0
"""How long a transaction or a query may take before the server is asked whether it is still there."""
IDLE_SECONDS = 1.5
"""How long each side may wait for the other before something must have been lost between them."""

_ASK = """
    SELECT pid, CASE WHEN state LIKE 'idle%' THEN state_change END FROM pg_stat_activity WHERE pid = ANY($1::integer[])
"""

log = structlog.get_logger(__name__)


class _Watch:
    """A block that waits for answers on a connection. Every batch enters one, so it is no generator."""

    __slots__ = ("_connection", "_waiting")

    def __init__(self, waiting: dict[Connection, float], connection: Connection) -> None:
        self._waiting = waiting
        self._connection = connection

    def __enter__(self) -> None:
        self._waiting[self._connection] = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._waiting.pop(self._connection, None)


class Watchdog:
    """Runs beside the store from ``start`` to ``stop``."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.pooled = False
        """Between this node and the server is a pooler, so the server cannot tell which connection is this node's: then
        the watchdog only checks that it answers."""
        self._waiting: dict[Connection, float] = {}
        self._idle: dict[Connection, tuple[Any, float]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="watchdog")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def watch(self, connection: Connection) -> _Watch:
        """Watch a connection as long as the block runs, which waits for its answers and does nothing else."""
        return _Watch(self._waiting, connection)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            silent_since = time.monotonic() - SILENCE_SECONDS
            suspects = {one: since for one, since in self._waiting.items() if since <= silent_since}
            if not suspects:
                self._idle.clear()
                continue
            try:
                lost = await self._find_lost(list(suspects))
            except Exception:
                log.exception("watchdog_failed")
                continue
            for connection, reason in lost.items():
                if self._waiting.get(connection) == suspects[connection]:  # still the same wait
                    log.warning("connection_lost", reason=reason)
                    connection.terminate()

    async def _find_lost(self, suspects: list[Connection]) -> dict[Connection, str]:
        """Those of the connections on which no answer will ever come, each with the reason."""
        by_pid = {} if self.pooled else {one.get_server_pid(): one for one in suspects if not one.is_closed()}
        try:
            known = await self._ask(list(by_pid))
        except Unreachable as failure:
            return dict.fromkeys(suspects, f"database unreachable: {failure}")
        except StoreFailure:
            return {}  # the server answers, though it refuses another connection
        now = time.monotonic()
        lost = {one: "the server no longer has this session" for pid, one in by_pid.items() if pid not in known}
        idle: dict[Connection, tuple[Any, float]] = {}
        for pid, idle_since in known.items():
            if idle_since is not None:
                connection = by_pid[pid]
                before, seen_at = self._idle.get(connection, (None, now))
                idle[connection] = idle_since, seen_at if before == idle_since else now
                if now - idle[connection][1] >= IDLE_SECONDS:
                    lost[connection] = "no response, and the server reports the session as idle"
        self._idle = idle
        return lost

    async def _ask(self, pids: list[int]) -> dict[int, Any]:
        """Which of the server's processes exist, and since when each has been waiting for this node, if it is."""
        connection = await self._connector.connect(PATIENCE_SECONDS)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if self.pooled:
                    await connection.execute("SELECT 1")
                    return {}
                return {row[0]: row[1] for row in await connection.fetch(_ASK, pids)}
        except FAULTS as error:
            connection.terminate()
            raise (StoreFailure if is_answer(error) else Unreachable)(explain(error)) from error
        finally:
            await close_connection(connection)
