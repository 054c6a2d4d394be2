"""The doctor on a SQLite file: reads one snapshot, which may be that of a database in use, and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.doctor.examination import (
    CHUNK,
    Examination,
    FlowRows,
    lost_events,
    owned_tokens,
    shared_keys,
    wrong_version,
)
from counterfoil.store.doctor.rules import Finding
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from counterfoil.store.sqlite.transaction import QUERIES


def examine(path: Path, defaults: WorkDefaults | None = None) -> list[Finding]:
    """Every finding; raises StoreFailure when there is no database to look at."""
    if not path.exists():
        raise StoreFailure(f"{path}: there is no database here")
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreFailure(f"{path}: {error}") from error
    try:
        connection.execute("BEGIN")
        return list(_examine(connection, defaults or WorkDefaults()))
    except sqlite3.DatabaseError as error:
        return [Finding("file", str(path), f"the database cannot be read: {error}")]
    finally:
        connection.close()


def _examine(connection: sqlite3.Connection, defaults: WorkDefaults) -> Iterator[Finding]:
    (version,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    if version != SCHEMA_VERSION:
        yield wrong_version(version, SCHEMA_VERSION)
        return
    for (message,) in connection.execute("PRAGMA quick_check"):
        if message != "ok":
            yield Finding("file", "database", message)
    examination = Examination(defaults)
    examination.add_versions(connection.execute(QUERIES["doctor_versions"]))
    for flow_ids in _flow_chunks(connection):
        yield from examination.check(_rows(connection, flow_ids))
    yield from examination.unreadable
    yield from lost_events(connection.execute(QUERIES["doctor_lost_events"]).fetchall())
    yield from shared_keys(connection.execute(QUERIES["doctor_keys"]).fetchall())
    yield from owned_tokens(connection.execute(QUERIES["doctor_hook_tokens"]).fetchall())


def _flow_chunks(connection: sqlite3.Connection) -> Iterator[list[str]]:
    after = 0
    while rows := connection.execute(QUERIES["doctor_flows"], (after, CHUNK)).fetchall():
        after = rows[-1][0]
        yield [flow_id for _, flow_id in rows]


def _rows(connection: sqlite3.Connection, flow_ids: list[str]) -> FlowRows:
    def ask(query: str, keys: list[str]) -> list[Any]:
        answer = connection.execute(QUERIES[query], (orjson.dumps(keys).decode(),)).fetchone()[0]
        rows: list[Any] = orjson.loads(answer)
        return rows

    return FlowRows(
        flows=ask("load_flows", flow_ids),
        steps=ask("doctor_steps", flow_ids),
        work=ask("load_work", ask("doctor_work", flow_ids)),
        entries=connection.execute(QUERIES["doctor_journal"], (orjson.dumps(flow_ids).decode(),)),
        gates=ask("doctor_gates", flow_ids),
        approvals=ask("doctor_approvals", flow_ids),
        reconciliations=ask("doctor_reconciliations", flow_ids),
        hooks=ask("doctor_hooks", flow_ids),
        pruned=ask("doctor_pruned", flow_ids),
    )
