"""Receives notifications of other nodes: one connection that LISTENs, reopened when lost. Nothing depends on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import structlog

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.connection import FAULTS, Access, Connection, Connector, explain

CHANNEL = "counterfoil"
CHECK_SECONDS = 5.0
"""How often a silent connection is asked whether it still lives."""
PAUSE_SECONDS = 0.5
"""Between two connections: a server that takes them only to drop them again is not stormed."""

log = structlog.get_logger(__name__)


class Listener:
    """Runs beside the store from ``start`` to ``stop``. It needs a session of its own: not a pooler's transaction."""

    channel = CHANNEL

    def __init__(self, access: Access, heard: Callable[[str], None]) -> None:
        self._connector = Connector(access)
        self._heard = heard
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="listener")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(StoreFailure):
                connection = await self._connector.connect()
                try:
                    reason = await self._listen(connection)
                except FAULTS as error:
                    reason = explain(error)
                except Exception:
                    log.exception("listener_failed")
                    reason = "a bug"
                finally:
                    connection.terminate()
                log.info("listener_lost", reason=reason, fallback="polling")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _listen(self, connection: Connection) -> str:
        """Hear until the connection is lost; the reason, unless it is raised."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        async with asyncio.timeout(CHECK_SECONDS):
            await connection.add_listener(CHANNEL, self._take)
        while not connection.is_closed():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await lost.wait()
            if not lost.is_set():
                await connection.fetchval("SELECT 1", timeout=CHECK_SECONDS)
        return "the connection was closed"

    def _take(self, connection: Any, pid: int, channel: str, payload: Any) -> None:
        self._heard(str(payload))
