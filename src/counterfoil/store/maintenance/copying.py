"""What a copy of a whole store is made from: the source, locked and unchanged, and the digests that prove the copy.

Which tables and columns there are is read from the source itself, so that whatever the schema is given later is copied
without being named here.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import orjson

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.maintenance.receipt_secrets import FILE_NAME, MIN_SECRET_CHARACTERS
from counterfoil.store.protocol import Row
from counterfoil.store.sqlite.lock import locked
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION

BOOKKEEPING = "schema_version"
"""The one table that is not copied: every database writes its own."""
TOLD_TOGETHER = 1_000


@dataclass(frozen=True)
class Table:
    """A table of the source. Rows are copied and compared in the order of its key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    rows: int

    @property
    def order(self) -> str:
        return ", ".join(self.key)


class Fingerprint(NamedTuple):
    """How many rows there are, and a digest over all of them, in their order."""

    rows: int
    digest: str


class Digest:
    """Sums up rows one by one, without keeping them, and tells now and then how many more they were."""

    def __init__(self, told: Callable[[int], None] = lambda rows: None) -> None:
        self._told = told
        self._rows = 0
        self._hash = hashlib.sha256()

    def add(self, row: Iterable[Any]) -> None:
        self._hash.update(orjson.dumps(tuple(row)))  # brackets end a row, quotes a text: no two tables give the same
        self._rows += 1
        if not self._rows % TOLD_TOGETHER:
            self._told(TOLD_TOGETHER)

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self._rows, self._hash.hexdigest())


class Watch(Protocol):
    """Is told how far a copy has come."""

    def begins(self, stage: str, table: Table) -> None: ...

    def advanced(self, rows: int) -> None: ...


class Source:
    """A SQLite database that no engine serves, read in one snapshot."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.tables = [self._table(name) for name in self._table_names()]

    def rows(self, table: Table) -> Iterator[Row]:
        """All rows in the order of the key, as they are needed."""
        return self._connection.execute(
            f"SELECT {', '.join(table.columns)} FROM {table.name} ORDER BY {table.order}"  # noqa: S608 (our own names)
        )

    def highest(self, table: Table, column: str) -> int:
        """The highest number that was ever given to a row, be the row gone; 0: none."""
        (highest,) = self._connection.execute(
            f"SELECT coalesce(max({column}), 0) FROM {table.name}"  # noqa: S608 (our own names)
        ).fetchone()
        given = self._connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table.name,)).fetchall()
        return max(int(highest), *(int(number) for (number,) in given), 0)

    def _table_names(self) -> list[str]:
        """In the order in which they were made: what refers to another table comes after it."""
        found = self._connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite@_%' ESCAPE '@' "
            "AND name <> ? ORDER BY rowid",
            (BOOKKEEPING,),
        )
        return [name for (name,) in found]

    def _table(self, name: str) -> Table:
        columns = self._connection.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (name,)).fetchall()
        key = sorted((place, column) for column, place in columns if place)
        (rows,) = self._connection.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608 (our own names)
        return Table(name, tuple(column for column, _ in columns), tuple(column for _, column in key), rows)


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """The database for as long as the block lasts: no engine can start on it meanwhile. Raises StoreFailure."""
    if not path.is_file():
        raise StoreFailure(f"{path}: there is no database here")
    with locked(path, "stop it first, or the copy would miss its later writes"):
        try:
            with contextlib.closing(_connect(path)) as connection:
                connection.execute("BEGIN")
                _check_version(connection, path)
                yield Source(connection)
        except sqlite3.Error as error:
            raise StoreFailure(f"{path}: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (BOOKKEEPING,)).fetchone()
    found = known and connection.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    if not found:
        raise StoreFailure(f"{path}: this is not a counterfoil database")
    if found < SCHEMA_VERSION:
        raise StoreFailure(
            f"{path}: the database has schema version {found}, this program copies {SCHEMA_VERSION}: "
            "run counterfoil store migrate on it first"
        )
    if found > SCHEMA_VERSION:
        raise StoreFailure(
            f"{path}: the database has schema version {found}, this program knows up to {SCHEMA_VERSION}: "
            "it was written by a newer counterfoil, copy it with that one"
        )


def kept_secret(directories: Sequence[Path]) -> str | None:
    """The receipt secret that an engine made and keeps in one of these directories; None: in none of them."""
    for directory in directories:
        path = directory / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise StoreFailure(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not text'}") from error
        if len(text) < MIN_SECRET_CHARACTERS:
            raise StoreFailure(f"{path}: not a receipt secret, it needs at least {MIN_SECRET_CHARACTERS} characters")
        return text
    return None
