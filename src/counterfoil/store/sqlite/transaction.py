"""One write transaction: load what a batch needs, let it decide, write what it changed, in one trip to the thread.

The writer's thread holds Python's lock only while it decides and binds parameters; reading, writing and flushing go on
beside the event loop. What is durable when: ``execute`` returns after SQLite has flushed the write-ahead log
(synchronous FULL). A guard that did not match (a row was not in the state that the decision saw) rolls back the whole
batch: with one writer it can only be a bug or another program writing to the file, and neither may be papered over.
Group commit then finds the command that it was (store/group_commit/commit.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import Any

import orjson

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.group_commit.commit import GuardRefused
from counterfoil.store.kinds.kind import Write
from counterfoil.store.queries import load_queries
from counterfoil.store.unit_of_work.loading import fill, need_more, searches_for_work
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.writing import writes_of

QUERIES = load_queries("counterfoil.store.sqlite")
MOST_ROWS = 64
"""Rows of one bulk statement: large enough to be cheap, and with few lengths that SQLite prepares once and keeps."""

Statement = tuple[str, list[Any], int | None]
"""SQL, its parameters, and how many rows it must have changed (None: any number)."""


def execute(connection: sqlite3.Connection, batch: Batch, defaults: WorkDefaults, cache: OpenFlowCache) -> None:
    """The whole transaction of a batch, in the writer's thread. What the cache holds is not loaded."""
    _rollback(connection)  # a batch that failed midway may have left one open
    connection.execute("BEGIN IMMEDIATE")
    try:
        missed: ReadSet | None = batch.needs
        while missed is not None:
            for find in missed.finds:
                rows = connection.execute(QUERIES[find.query], dict(find.parameters)).fetchall()
                batch.unit.add_found(find, rows)
            missed = cache.recall(batch.unit, missed)
            fill(batch.unit, missed, _read(connection, missed), defaults)
            missed = batch.decide()
        changes = batch.unit.changes
        if changes.any():
            taken = cache.take_out(changes.touched() | changes.pruned_flows)
            _write(connection, (statement for write in writes_of(changes) for statement in _bulk(write)))
            cache.learn(batch.unit, taken)
        else:
            connection.execute("ROLLBACK")
    except BaseException:
        _rollback(connection)
        raise


def write_probe(connection: sqlite3.Connection) -> None:
    """Commit a change of one page: the number in the file's header that SQLite leaves to applications.

    An update of a row with what it holds already would write nothing at all.
    """
    _rollback(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        [(number,)] = connection.execute("PRAGMA user_version").fetchall()
        connection.execute(f"PRAGMA user_version = {(number + 1) % 0x7FFFFFFF}")
        connection.execute("COMMIT")
    except BaseException:
        _rollback(connection)
        raise


def _read(connection: sqlite3.Connection, needs: ReadSet) -> dict[str, list[Any]]:
    """Everything that the batch asked for, by query."""

    def load(query: str, keys: Iterable[str]) -> list[Any]:
        parameters = (orjson.dumps(list(keys)).decode(),)
        found: list[Any] = orjson.loads(connection.execute(QUERIES[query], parameters).fetchall()[0][0])
        return found

    need_more(needs, [key for query, keys in searches_for_work(needs) for key in load(query, keys)])
    return {each.query: load(each.query, keys) for each, keys in needs.loads() if each.query is not None}


def _write(connection: sqlite3.Connection, statements: Iterable[Statement]) -> None:
    """All statements, then the commit that makes them durable."""
    for sql, parameters, expected in statements:
        changed = connection.execute(sql, parameters).rowcount
        if expected is not None and changed != expected:
            raise GuardRefused(f"{expected - changed} of {expected} rows: {sql[:40]}")
    connection.execute("COMMIT")


def _rollback(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _bulk(write: Write) -> Iterable[Statement]:
    """Statements of 1, 2, 4 ... 64 rows, the last one filled up: few texts, and SQLite's prepared ones are used again.

    A row whose first value is null changes nothing (its key matches none), and costs less than one more statement. Its
    other values are what is bound most quickly.
    """
    width = len(write.rows[0])
    for start in range(0, len(write.rows), MOST_ROWS):
        chunk = write.rows[start : start + MOST_ROWS]
        size = 1 << (len(chunk) - 1).bit_length()
        parameters = list(chain.from_iterable(chunk))
        parameters += [None, *[0] * (width - 1)] * (size - len(chunk))
        yield _sql(write.query, size, width), parameters, len(chunk) if write.exact else None


_TEXTS: dict[tuple[str, int], str] = {}


def _sql(query: str, size: int, width: int) -> str:
    text = _TEXTS.get((query, size))
    if text is None:
        row = f"({', '.join('?' * width)})"
        text = _TEXTS[(query, size)] = QUERIES[query].replace(":rows", ", ".join([row] * size))
    return text
