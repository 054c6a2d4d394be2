"""Which store the settings mean. PostgreSQL's driver is loaded only where it is used."""

from __future__ import annotations

from counterfoil.domain.time import Clock
from counterfoil.settings import Settings
from counterfoil.store.doctor.rules import Finding
from counterfoil.store.protocol import Store
from counterfoil.store.sqlite.doctor import examine as examine_sqlite
from counterfoil.store.sqlite.store import SqliteStore


def make_store(settings: Settings, clock: Clock) -> Store:
    """The store, not yet opened; raises StoreFailure when the driver is not installed."""
    if not settings.is_shared:
        return SqliteStore(settings.store_path, clock, settings.work, settings.readers)
    from counterfoil.store.postgres.store import PostgresStore  # noqa: PLC0415

    return PostgresStore(
        settings.store,
        clock,
        settings.work,
        settings.readers,
        listen_dsn=settings.store_listen,
        statement_cache=settings.store_statement_cache,
    )


def examine(settings: Settings) -> list[Finding]:
    """Every finding of the doctor; raises StoreFailure when there is no database to look at."""
    if not settings.is_shared:
        return examine_sqlite(settings.store_path, settings.work)
    from counterfoil.store.postgres.doctor import examine as examine_postgres  # noqa: PLC0415

    return examine_postgres(settings.store, settings.work)
