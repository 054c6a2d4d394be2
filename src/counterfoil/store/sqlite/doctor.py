"""The doctor on a SQLite file: reads one snapshot, which may be that of a database in use, and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from counterfoil.domain.events import Event, EventType
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.model import StepVersion
from counterfoil.domain.steps import StepDefinition, WorkDefaults
from counterfoil.store.commit import StoreFailure
from counterfoil.store.doctor import Finding, FlowRecords, check_flow
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from counterfoil.store.sqlite.rows import read_flow, read_step, read_work
from counterfoil.store.sqlite.transaction import QUERIES

CHUNK = 500
"""Flows that are looked at together: bounds the memory, whatever the size of the database."""


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
        yield Finding("schema", f"version {version}", f"this program knows version {SCHEMA_VERSION}")
        return
    for (message,) in connection.execute("PRAGMA quick_check"):
        if message != "ok":
            yield Finding("file", "database", message)
    versions = dict(_versions(connection, defaults))
    for flow_ids in _flow_chunks(connection):
        for flow_id, records in _records(connection, flow_ids).items():
            yield from check_flow(flow_id, records, versions)
    lost = connection.execute(QUERIES["doctor_lost_events"]).fetchall()
    for flow_id, count in lost:
        yield Finding("journal", flow_id, f"{count} events tell of a flow that the store does not have")


def _versions(connection: sqlite3.Connection, defaults: WorkDefaults) -> Iterator[tuple[str, StepVersion]]:
    for version, step_id, definition in connection.execute("SELECT version, step_id, definition FROM step_versions"):
        parsed = StepDefinition.model_validate_json(definition)
        yield version, StepVersion.of(step_id, parsed, defaults, version)


def _flow_chunks(connection: sqlite3.Connection) -> Iterator[list[str]]:
    after = 0
    while rows := connection.execute(QUERIES["doctor_flows"], (after, CHUNK)).fetchall():
        after = rows[-1][0]
        yield [flow_id for _, flow_id in rows]


def _records(connection: sqlite3.Connection, flow_ids: list[str]) -> dict[str, FlowRecords]:
    keys = (orjson.dumps(flow_ids).decode(),)

    def ask(query: str, parameters: tuple[Any, ...] = keys) -> list[Any]:
        rows: list[Any] = orjson.loads(connection.execute(QUERIES[query], parameters).fetchone()[0])
        return rows

    flows = {row[0]: FlowRecords(read_flow(row)) for row in ask("load_flows")}
    for row in ask("doctor_steps"):
        step = read_step(row)
        flows[step.flow_id].steps[step.step_id] = step
    work_ids = ask("doctor_work")
    for row in ask("load_work", (orjson.dumps(work_ids).decode(),)):
        work, _, _ = read_work(row)
        flows[work.flow_id].work[work.work_id] = work
    for event_type, at, flow_id, step_id, work_id, attempt, data in connection.execute(QUERIES["doctor_journal"], keys):
        event = Event(EventType(event_type), at, flow_id, step_id, work_id, attempt, parse_json(data))
        flows[flow_id].events.append(event)
    return flows
