"""The database under a simulated engine: a SQLite file, or a PostgreSQL database of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from uuid import uuid4

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.time import Clock
from counterfoil.settings.values import is_postgres_url
from counterfoil.store.doctor.rules import Finding
from counterfoil.store.protocol import Store
from counterfoil.store.sqlite.doctor import examine
from counterfoil.store.sqlite.store import SqliteStore

LEASE_MS = 3_600_000
"""No test waits for a lease: it holds longer than any test, and a crash ends it."""


class Database(Protocol):
    """What differs between the stores: how one is opened, and what a dead process leaves behind in it."""

    lease_ms: int | None
    """How long a node holds its lease; None: the store needs none."""

    def make_store(self, clock: Clock, defaults: WorkDefaults) -> Store:
        """The store of one process, not yet opened."""
        ...

    async def bury(self, node_id: str) -> None:
        """Let as much time pass after a crash as it takes until another process may have what this one was sending."""
        ...

    def examine(self, defaults: WorkDefaults) -> list[Finding]:
        """What the doctor finds; the database may be in use."""
        ...


class SqliteDatabase:
    """A file. Its lock went with the process, so there is nothing to wait for."""

    lease_ms: int | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def make_store(self, clock: Clock, defaults: WorkDefaults) -> Store:
        return SqliteStore(self._path, clock, defaults)

    async def bury(self, node_id: str) -> None:
        pass

    def examine(self, defaults: WorkDefaults) -> list[Finding]:
        return examine(self._path, defaults)


class PostgresDatabase:
    """A database on a server, whose clock no test can move.

    So a burial does what time would do: the server notices that the connections are gone and undoes what they had not
    committed, and the lease ends. Connections are known by a name that they share with no other simulator's.
    """

    lease_ms: int | None = LEASE_MS

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = f"simulator-{uuid4().hex}"

    def make_store(self, clock: Clock, defaults: WorkDefaults) -> Store:
        from counterfoil.store.postgres.store import PostgresStore  # noqa: PLC0415

        return PostgresStore(_named(self._url, self._name), clock, defaults)

    async def bury(self, node_id: str) -> None:
        from counterfoil.store.postgres.connection import Access, Connector  # noqa: PLC0415
        from counterfoil.store.postgres.statements import COORDINATION  # noqa: PLC0415

        connection = await Connector(Access(self._url, 0)).connect()
        try:
            await connection.fetch(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = $1", self._name
            )
            await connection.execute(COORDINATION["leave_nodes"], node_id)
        finally:
            await connection.close()

    def examine(self, defaults: WorkDefaults) -> list[Finding]:
        from counterfoil.store.postgres.doctor import examine  # noqa: PLC0415

        return examine(self._url, defaults)


def database_at(place: Path | str) -> Database:
    """A ``postgresql://`` URL is one, everything else is the path of a file."""
    if isinstance(place, str) and is_postgres_url(place):
        return PostgresDatabase(place)
    return SqliteDatabase(Path(place))


def _named(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}application_name={name}"
