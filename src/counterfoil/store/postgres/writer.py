"""One connection that writes, and what becomes of a batch when it breaks.

A batch is begun again when it conflicts with another node, and once more when the connection was lost while it was
idle. If it breaks during the commit, whether the commit holds is read back before any command is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from asyncpg import ReadOnlySQLTransactionError

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.group_commit.commit import CommitUnknown, GuardRefused, StoreFailure
from counterfoil.store.postgres.connection import FAULTS, Connection, explain, is_answer
from counterfoil.store.postgres.locking import BeginAgain
from counterfoil.store.postgres.optimistic import decide_unlocked, write_decided
from counterfoil.store.postgres.statements import COORDINATION
from counterfoil.store.postgres.transaction import LeaseLost, Mark, Unanswered, begin_statement, execute
from counterfoil.store.postgres.watchdog import Watchdog

TRIES = 20
"""How often a batch is begun again because of conflicts with other nodes, before it is given up as unavailable."""
TRYING_SECONDS = 5.0
"""How long it is begun again, however often: the callers of its commands wait."""
READ_BACK_SECONDS = 30.0
USELESS_SECONDS = 0.5
"""How long a server is left alone that accepted a connection and then refused to write (a standby, say)."""
DOUBT_SECONDS = 2.0
"""How long the commands of a commit in doubt wait for its outcome, before their callers are told to ask again."""

log = structlog.get_logger(__name__)


@dataclass
class Truce:
    """Until when the writers of a node leave a server alone that accepted a connection and then refused to write."""

    until: float = 0.0
    reason: str = ""


class Writer:
    """Executes one batch at a time. ``connect`` opens a connection in the place of a lost one; raises StoreFailure."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        watchdog: Watchdog,
        defaults: WorkDefaults,
        cache: OpenFlowCache,
        truce: Truce,
        *,
        takes_shortcuts: bool,
    ) -> None:
        self._connect = connect
        self._cache = cache
        self._watchdog = watchdog
        self._defaults = defaults
        self._truce = truce
        self._takes_shortcuts = takes_shortcuts
        self._begin = begin_statement(secrets.randbits(62))
        self.connection: Connection | None = None

    async def execute(self, batch: Batch) -> None:
        """See store/group_commit/commit.py, Backend."""
        reconnected = False
        begun = time.monotonic()
        for number in range(TRIES):
            if number:
                batch.restart()
            connection = self.connection
            if connection is None or connection.is_closed():
                connection = await self._reconnect()
                reconnected = True
            try:
                with self._watchdog.watch(connection):
                    await self._execute_on(connection, batch)
                self._truce.until = 0.0
                return
            except BeginAgain:
                if time.monotonic() - begun > TRYING_SECONDS:
                    break
                await asyncio.sleep(0)
            except (GuardRefused, LeaseLost):
                raise
            except Unanswered as unanswered:
                self._drop()
                if await self._resolve_soon(unanswered.mark):
                    return
            except FAULTS as error:
                self._drop()
                if reconnected:
                    self._note_useless(error)
                    raise StoreFailure(explain(error)) from error
            except BaseException:
                self._drop()
                raise
        raise StoreFailure("gave up after repeated conflicts with other nodes")

    async def _execute_on(self, connection: Connection, batch: Batch) -> None:
        """Optimistically if that is possible, else with locks."""
        short = self._takes_shortcuts and not batch.restarted
        if short and await decide_unlocked(connection, batch, self._cache, self._defaults):
            await write_decided(connection, batch, self._cache)
        else:
            await execute(connection, batch, self._defaults, self._begin, self._cache)

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
        """Read back whether a commit holds, after its transaction is certain to have ended.

        A transaction with locks has ended when its guard is free. An optimistic statement may not even have begun; once
        the revision of a flow that it changes has been raised, it has ended or never will write anything.
        """
        connection = await self._connect()
        try:
            with self._watchdog.watch(connection):
                async with asyncio.timeout(READ_BACK_SECONDS):
                    await connection.execute(self._begin)
                    if mark.seq is None:
                        await connection.execute(COORDINATION["raise_revision"], mark.flow_id)
                    found: int = await connection.fetchval(COORDINATION["find_entry"], *mark.entry, mark.seq)
                    await connection.execute("COMMIT" if mark.seq is None else "ROLLBACK")
        except FAULTS as error:
            connection.terminate()
            raise StoreFailure(explain(error)) from error
        except BaseException:
            connection.terminate()
            raise
        log.info("commit_resolved", holds=bool(found))
        if self.connection is None:
            self.connection = connection
        else:  # the writer may have a new connection by the time an old doubt is settled
            connection.terminate()
        return bool(found)

    async def _reconnect(self) -> Connection:
        if time.monotonic() < self._truce.until:
            raise StoreFailure(self._truce.reason)
        self._cache.clear()  # behind the next connection may be another server, with another past
        self.connection = await self._connect()
        return self.connection

    def _note_useless(self, error: BaseException) -> None:
        """A new connection failed: because of the server, or only because of what was asked of it."""
        if not is_answer(error) or isinstance(error, ReadOnlySQLTransactionError):
            self._truce.until = time.monotonic() + USELESS_SECONDS
            self._truce.reason = explain(error)

    def _drop(self) -> None:
        self._cache.clear()  # as in _reconnect
        if self.connection is not None:
            self.connection.terminate()
            self.connection = None
