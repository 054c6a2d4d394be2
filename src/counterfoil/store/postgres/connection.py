"""PostgreSQL connections: how they are opened, what their faults mean, and how often a lost server is tried."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from counterfoil.store.group_commit.commit import StoreFailure

try:
    import asyncpg
except ImportError as missing:  # pragma: no cover (the tests have it)
    raise StoreFailure("PostgreSQL needs the extra package: pip install 'counterfoil[postgres]'") from missing

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 5.0
PATIENCE_SECONDS = 1.5
"""How long a batch or a reader waits for a new connection, while its callers wait for it."""
KEPT_SECONDS = 5.0
CLOSE_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

LOCK_MS = 5_000
"""How long anything may wait for a lock."""

SESSION = f"""
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET plan_cache_mode = force_generic_plan; SET jit = off; SET lock_timeout = {LOCK_MS}
"""
"""Every query here looks up a few rows of many by a key. A plan that was kept from the time when the tables were small
would still read them completely when they are large. Without kept statements each is planned again, and needs no such
settings."""

FAULTS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""Everything by which a statement can fail that is not a bug in its text."""

AGAIN = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.UniqueViolationError,
)
"""Another node was faster: begin the transaction again and see what it did. (A unique key: it made the same flow.)"""


@dataclass(frozen=True)
class Access:
    """How to reach the database. ``statement_cache``: 0 behind a pooler that hands out connections by transaction."""

    dsn: str
    statement_cache: int = 1024

    @property
    def shown(self) -> str:
        """The address without user and password, for people; without anything where one cannot tell which is which."""
        parts = urlsplit(self.dsn)
        if "@" in parts.path + parts.query + parts.fragment:
            return "postgresql://"
        host = parts.netloc.rpartition("@")[2]
        return f"postgresql://{host}{parts.path}"


class Unreachable(StoreFailure):
    """The server does not answer, or is starting up or shutting down: its other connections are lost as well."""


class Connector:
    """When a server that could not be reached is tried again: soon, then less and less often.

    Until then every request for a connection is refused at once: a lost database must cost no caller a wait, and is not
    overrun when it is back. The same while an attempt takes longer than its caller could wait: the attempt goes on, and
    its connection is kept for the next caller. So callers wait briefly, and a server that is slow to accept connections
    is reached in the end.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._reached_at = 0.0
        self._kind: type[StoreFailure] = StoreFailure
        self._reason = ""
        self._left: set[asyncio.Task[Connection]] = set()
        self._slow: set[asyncio.Task[Connection]] = set()
        self._kept: list[Connection] = []

    async def connect(self, patience: float | None = None) -> Connection:
        """A new connection; raises StoreFailure with the reason. ``patience``: seconds, or as long as it takes."""
        while self._kept:
            connection = self._kept.pop()
            if is_usable(connection):
                return connection
        if self._slow or time.monotonic() < self._not_before:
            raise self._kind(self._reason)
        if patience is None:
            return await self._attempt()
        attempt = asyncio.create_task(self._attempt(), name="connect")
        try:
            done, _ = await asyncio.wait({attempt}, timeout=patience)
        except BaseException:  # the caller was cancelled, which says nothing of the server
            self._leave(attempt)
            raise
        if not done:
            self._note(Unreachable, "no answer in time")
            self._slow.add(attempt)
            self._leave(attempt)
            raise self._kind(self._reason)
        return attempt.result()

    async def close(self) -> None:
        """Cancel attempts under way, and close connections that no caller has taken."""
        left = list(self._left)
        for attempt in left:
            attempt.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        while self._kept:
            self._kept.pop().terminate()

    def _leave(self, attempt: asyncio.Task[Connection]) -> None:
        self._left.add(attempt)
        attempt.add_done_callback(self._keep)

    def _keep(self, attempt: asyncio.Task[Connection]) -> None:
        self._left.discard(attempt)
        self._slow.discard(attempt)
        if not attempt.cancelled() and attempt.exception() is None:
            self._kept.append(attempt.result())
            attempt.get_loop().call_later(KEPT_SECONDS, self._discard, attempt.result())

    def _discard(self, connection: Connection) -> None:
        """Close a kept connection that no caller has taken."""
        if connection in self._kept:
            self._kept.remove(connection)
            connection.terminate()

    def _note(self, kind: type[StoreFailure], reason: str) -> None:
        self._kind = kind
        self._reason = f"{self._access.shown}: {reason}"

    async def _attempt(self) -> Connection:
        began = time.monotonic()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._open()
        except (*FAULTS, ValueError) as error:
            refused = is_answer(error) or isinstance(error, ValueError)
            self._note(StoreFailure if refused else Unreachable, explain(error))
            if self._reached_at < began:  # else it is there again, and this is old news
                self._not_before = time.monotonic() + self._pause
                self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
            raise self._kind(self._reason) from error
        self._reached_at = time.monotonic()
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        return connection

    async def _open(self) -> Connection:
        access = self._access
        connection = await asyncpg.connect(
            access.dsn,
            timeout=CONNECT_SECONDS,
            statement_cache_size=access.statement_cache,
            max_cacheable_statement_size=0,
            max_cached_statement_lifetime=0,
        )
        try:
            if access.statement_cache:
                await connection.execute(SESSION)
        except BaseException:
            connection.terminate()
            raise
        return connection


def explain(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ValueError) and not isinstance(error, asyncpg.InterfaceError):
        # What the driver says of a URL that it cannot read may hold a part of the password.
        return "the URL cannot be read: write / ? # @ : % in a user or password with %, as %2F and so on"
    return " ".join(str(error).split()) or type(error).__name__


def is_usable(connection: Connection | None) -> bool:
    return connection is not None and not connection.is_closed()


async def close_connection(connection: Connection) -> None:
    """Close in an orderly way; at once if the server does not answer."""
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except FAULTS:
        connection.terminate()
    except BaseException:
        connection.terminate()
        raise


def is_answer(error: BaseException) -> bool:
    """Whether the server refused something and lives on, and with it the connection, if there was one."""
    state = getattr(error, "sqlstate", None)
    return state is not None and not str(state).startswith(("08", "57P"))
