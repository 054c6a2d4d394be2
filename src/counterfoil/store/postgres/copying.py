"""Into an empty PostgreSQL, all or nothing: schema, rows, receipt secret and the proof in one transaction.

Until its COMMIT no other connection sees anything of a copy, and a copy that is killed leaves the database as it was.
Rows stream through in both directions, so the size of the source does not matter for the memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.maintenance.copying import Digest, Fingerprint, Source, Table, Watch
from counterfoil.store.postgres.connection import AGAIN, FAULTS, Access, Connection, Connector, explain
from counterfoil.store.postgres.migrations import migrate
from counterfoil.store.postgres.statements import COORDINATION
from counterfoil.store.protocol import Row

if TYPE_CHECKING:
    from asyncpg.transaction import Transaction

COPIED_TOGETHER = 10_000
"""Rows of one COPY: a server that refuses one of them says so at its end, not at that of the table."""
FETCHED_TOGETHER = 100
"""Rows that are read back at once: few, because one of them may be as large as the largest request."""
LOCK_MS = 10_000
"""How long to wait for locks on the target, such as those of a copy that was killed and that the server still ends."""

NOTHING = "nothing was copied"

OWN_TABLES = ("nodes", "receipt_secret")
"""What only a shared store has."""
DERIVED_TABLES = ("open_flows", "open_work")
"""The same; what they hold follows from the others."""
OWN_COLUMNS = {"flows": {"revision"}}
"""What only a store of several nodes keeps; it begins with its default."""

_PATIENCE = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
_UNTOUCHED = "DELETE FROM register WHERE revision = 0; DELETE FROM controls WHERE revision = 0"
"""The rows that a schema begins with: those of the source come in their place."""
_COLUMNS = """
    SELECT attname, atttypid = 'boolean'::regtype, attidentity <> ''::"char" FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""


async def copy(source: Source, dsn: str, now: int, secret: str | None, watch: Watch) -> dict[str, Fingerprint]:
    """What each table holds, on both sides, after everything was copied; raises StoreFailure."""
    access = Access(dsn, 0)
    connection = await Connector(access).connect()
    try:
        transaction = connection.transaction()
        await transaction.start()
        copied = await _fill(connection, source, now, secret, watch)
    except BaseException as error:
        connection.terminate()  # the server undoes what it has so far
        if isinstance(error, AGAIN):
            raise StoreFailure(f"{access.shown}: in use by another session: {explain(error)}; {NOTHING}") from error
        if isinstance(error, (*FAULTS, StoreFailure)):
            raise StoreFailure(f"{access.shown}: {explain(error)}; {NOTHING}") from error
        raise
    await _commit(connection, transaction, access)
    return copied


async def _fill(
    connection: Connection, source: Source, now: int, secret: str | None, watch: Watch
) -> dict[str, Fingerprint]:
    """The whole transaction up to its COMMIT."""
    await connection.execute(f"{_PATIENCE}; SET LOCAL lock_timeout = {LOCK_MS:d}")
    await migrate(connection, now, upgrade=False)  # its lock also keeps nodes from starting here before the end
    await _take_empty_tables(connection, [*(table.name for table in source.tables), *OWN_TABLES])
    places = [await _place(connection, table) for table in source.tables]
    for place in places:
        watch.begins("copying", place.table)
        await _copy_table(connection, source, place, watch)
    if secret is not None:
        await connection.execute("INSERT INTO receipt_secret (secret) VALUES ($1)", secret)
    await connection.execute(COORDINATION["fill_open_flows"])
    await connection.execute(COORDINATION["fill_open_work"])
    names = ", ".join([*(table.name for table in source.tables), *DERIVED_TABLES])
    await connection.execute(f"ANALYZE {names}")
    copied = {}
    for place in places:
        watch.begins("verifying", place.table)
        copied[place.table.name] = await _proven(connection, source, place, watch)
    for place in places:
        await _number_on(connection, source, place)
    return copied


async def _commit(connection: Connection, transaction: Transaction, access: Access) -> None:
    try:
        await transaction.commit()
    except FAULTS as error:
        raise StoreFailure(
            f"{access.shown}: the connection was lost during the commit ({explain(error)}), so it is not known whether "
            "the copy holds: run it again, a target that has it already is refused"
        ) from error
    finally:
        connection.terminate()


async def _take_empty_tables(connection: Connection, names: list[str]) -> None:
    """Keep other connections from writing to them, and check that none has."""
    for name in names:
        if await connection.fetchval("SELECT to_regclass($1)", name) is None:
            raise StoreFailure(f"it has no table {name}, though it has our schema version: give an empty database")
    await connection.execute(f"LOCK TABLE {', '.join(names)} IN EXCLUSIVE MODE")
    await connection.execute(_UNTOUCHED)
    used = [name for name in names if await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {name})")]  # noqa: S608
    if used:
        raise StoreFailure(f"it is in use already, there are rows in {', '.join(used)}: give an empty database")


# ---------------------------------------------------------------------------------------------------- table by table


@dataclass(frozen=True)
class Place:
    """Where a table goes: which of its columns are truth values here, and which are numbered by the database."""

    table: Table
    booleans: frozenset[str]
    numbered: frozenset[str]

    @property
    def columns(self) -> str:
        """The columns as the source has them: truth values as 0 and 1."""
        return ", ".join(f"{name}::integer" if name in self.booleans else name for name in self.table.columns)

    def converted(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Rows of the source as this database takes them."""
        places = {place for place, name in enumerate(self.table.columns) if name in self.booleans}
        if not places:
            return rows
        return (tuple(bool(value) if place in places else value for place, value in enumerate(row)) for row in rows)


async def _place(connection: Connection, table: Table) -> Place:
    columns = await connection.fetch(_COLUMNS, table.name)
    if {name for name, _, _ in columns} - OWN_COLUMNS.get(table.name, set()) != set(table.columns):
        raise StoreFailure(f"its table {table.name} has other columns than the source: give an empty database")
    return Place(
        table,
        frozenset(name for name, is_boolean, _ in columns if is_boolean),
        frozenset(name for name, _, is_numbered in columns if is_numbered),
    )


async def _copy_table(connection: Connection, source: Source, place: Place, watch: Watch) -> None:
    """All rows, their numbers included: unlike INSERT, COPY takes those of an identity column as they are given."""
    table = place.table
    rows = place.converted(source.rows(table))
    for begin in range(0, table.rows, COPIED_TOGETHER):
        some = itertools.islice(rows, COPIED_TOGETHER)
        try:
            await connection.copy_records_to_table(table.name, records=some, columns=table.columns)
        except (*FAULTS, OverflowError) as error:
            raise StoreFailure(f"table {table.name}: {explain(error)}") from error
        watch.advanced(min(COPIED_TOGETHER, table.rows - begin))


async def _proven(connection: Connection, source: Source, place: Place, watch: Watch) -> Fingerprint:
    """The rows of both databases, each read again from its own; raises StoreFailure if they differ."""
    table = place.table
    there, here = Digest(watch.advanced), Digest(watch.advanced)
    for row in source.rows(table):
        there.add(row)
    text = f"SELECT {place.columns} FROM {table.name} ORDER BY {table.order}"  # noqa: S608 (our own names)
    async for record in connection.cursor(text, prefetch=FETCHED_TOGETHER):
        here.add(record)
    if here.fingerprint != there.fingerprint:
        raise StoreFailure(
            f"table {table.name} differs: the source has {there.fingerprint.rows} rows with the digest "
            f"{there.fingerprint.digest[:16]}, the target {here.fingerprint.rows} with {here.fingerprint.digest[:16]}"
        )
    return here.fingerprint


async def _number_on(connection: Connection, source: Source, place: Place) -> None:
    """New rows get numbers behind all that were ever given."""
    for column in place.numbered:
        following = source.highest(place.table, column) + 1
        await connection.execute(f"ALTER TABLE {place.table.name} ALTER COLUMN {column} RESTART WITH {following:d}")
