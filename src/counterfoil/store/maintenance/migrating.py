"""Bringing a database to this program's schema version when an operator says so, while no node serves it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from counterfoil.settings import Settings
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.sqlite import migrations as sqlite_migrations
from counterfoil.store.sqlite.connection import open_writer
from counterfoil.store.sqlite.lock import locked

if TYPE_CHECKING:
    from counterfoil.store.postgres.connection import Connection


class Migrated(NamedTuple):
    """The schema version that a database had (0: none, it was created), and the one that it has now."""

    found: int
    version: int


async def migrate_store(settings: Settings, now: int) -> Migrated:
    """Create, migrate or leave alone; raises StoreFailure for a newer database and for one that is being served."""
    if settings.is_shared:
        return await _migrate_shared(settings.store, now)
    return await _migrate_file(settings.store_path, now)


async def _migrate_file(path: Path, now: int) -> Migrated:
    with _own(path):
        writer = await open_writer(path)
        try:
            found = await writer.run(sqlite_migrations.migrate, now)
        finally:
            await writer.close()
    return Migrated(found, sqlite_migrations.SCHEMA_VERSION)


@contextlib.contextmanager
def _own(path: Path) -> Iterator[None]:
    """A file that no other process serves, made if there is none: readable for its owner only, as engines make it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path, "stop it first"):
        path.touch(mode=0o600)
        yield


async def _migrate_shared(dsn: str, now: int) -> Migrated:
    from counterfoil.store.postgres.connection import FAULTS, Access, Connector, explain  # noqa: PLC0415
    from counterfoil.store.postgres.migrations import SCHEMA_VERSION, migrate  # noqa: PLC0415

    access = Access(dsn, 0)
    connection = await Connector(access).connect()
    try:
        await refuse_while_served(connection, SCHEMA_VERSION)
        return Migrated(await migrate(connection, now), SCHEMA_VERSION)
    except FAULTS as error:
        raise StoreFailure(f"{access.shown}: {explain(error)}") from error
    finally:
        connection.terminate()


async def refuse_while_served(connection: Connection, version: int) -> None:
    """Nodes of an older version do not know the schema that would come: raises StoreFailure while there are any."""
    from counterfoil.store.postgres.migrations import found_version  # noqa: PLC0415

    if not 0 < await found_version(connection) < version:
        return
    serving = await connection.fetchval("SELECT count(*) FROM nodes WHERE lease_until > clock_timestamp()")
    if serving:
        raise StoreFailure(
            f"nodes are serving this database ({serving}): stop them first; a crashed node counts until "
            "its lease expires"
        )
