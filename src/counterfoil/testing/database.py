"""The database of a simulated engine: a SQLite file or a PostgreSQL database."""

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
"""Longer than any test: a lease ends only when its node is stopped or crashed."""


class Database(Protocol):
    """The differences between the stores: how one is opened, and what a crashed process leaves behind in it."""

    lease_ms: int | None
    """How long a node holds its lease; None: the store needs none."""

    def make_store(self, clock: Clock, defaults: WorkDefaults) -> Store:
        """The store of one process, not yet opened."""
        ...

    async def bury(self, node_id: str) -> None:
        """After a crash, end what keeps other processes from reclaiming the in-flight attempts of this node."""
        ...

    def examine(self, defaults: WorkDefaults) -> list[Finding]:
        """The findings of the doctor; the database may be in use."""
        ...


class SqliteDatabase:
    """A SQLite file. Its lock ended with the process, so there is nothing to wait for."""

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
    """A database on a PostgreSQL server, which has a clock that no test can move.

    So ``bury`` does what would happen in time: the server ends the connections and rolls back what they had not
    committed, and the lease expires. The connections of each simulator have a unique application name.
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
    """The database at a ``postgresql://`` URL; any other place is the path of a file."""
    if isinstance(place, str) and is_postgres_url(place):
        return PostgresDatabase(place)
    return SqliteDatabase(Path(place))


def _named(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}application_name={name}"
