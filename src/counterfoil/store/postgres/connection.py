"""PostgreSQL connections: how they are opened, what their faults mean, and how often a lost server is tried."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from counterfoil.store.commit import StoreFailure

try:
    import asyncpg
except ImportError as missing:  # pragma: no cover (the tests have it)
    raise StoreFailure("PostgreSQL needs the extra package: pip install 'counterfoil[postgres]'") from missing

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

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
        """The address without user and password, for people."""
        parts = urlsplit(self.dsn)
        host = parts.netloc.rpartition("@")[2]
        return f"postgresql://{host}{parts.path}"


class Gate:
    """When a server that could not be reached is tried again: soon, then less and less often.

    Until then everybody is refused at once: a lost database must cost nobody a wait, nor be stormed when it is back.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        self._reason = ""

    async def connect(self) -> Connection:
        """A new connection; raises StoreFailure with the reason."""
        if time.monotonic() < self._not_before:
            raise StoreFailure(self._reason)
        access = self._access
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await asyncpg.connect(
                    access.dsn,
                    timeout=CONNECT_SECONDS,
                    statement_cache_size=access.statement_cache,
                    max_cacheable_statement_size=0,
                    max_cached_statement_lifetime=0,
                )
        except (*FAULTS, ValueError) as error:
            self._reason = f"{access.shown}: {explain(error)}"
            self._not_before = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
            raise StoreFailure(self._reason) from error
        self._pause = FIRST_PAUSE_SECONDS
        self._not_before = 0.0
        return connection


def explain(error: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__


def is_usable(connection: Connection | None) -> bool:
    return connection is not None and not connection.is_closed()
