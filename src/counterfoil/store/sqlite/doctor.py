"""The doctor on a SQLite file: reads one snapshot, which may be that of a database in use, and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
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

T = TypeVar("T")
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
    unreadable: list[Finding] = []
    versions = dict(_versions(connection, defaults, unreadable))
    for flow_ids in _flow_chunks(connection):
        for flow_id, records in _records(connection, flow_ids, unreadable).items():
            yield from check_flow(flow_id, records, versions)
    yield from unreadable
    lost = connection.execute(QUERIES["doctor_lost_events"]).fetchall()
    for flow_id, count in lost:
        yield Finding("journal", flow_id, f"{count} events tell of a flow that the store does not have")


def _read(subject: str, unreadable: list[Finding], reader: Callable[[], T]) -> T | None:
    """What a row says, or None and a finding when that is not what this program writes."""
    try:
        return reader()
    except (ValueError, KeyError) as error:
        unreadable.append(Finding("file", subject, f"cannot be read: {type(error).__name__} {error}"))
        return None


def _versions(
    connection: sqlite3.Connection, defaults: WorkDefaults, unreadable: list[Finding]
) -> Iterator[tuple[str, StepVersion]]:
    for version, step_id, text in connection.execute("SELECT version, step_id, definition FROM step_versions"):
        definition = _read(step_id, unreadable, partial(StepDefinition.model_validate_json, text))
        if definition is not None:
            yield version, StepVersion.of(step_id, definition, defaults, version)


def _flow_chunks(connection: sqlite3.Connection) -> Iterator[list[str]]:
    after = 0
    while rows := connection.execute(QUERIES["doctor_flows"], (after, CHUNK)).fetchall():
        after = rows[-1][0]
        yield [flow_id for _, flow_id in rows]


def _records(connection: sqlite3.Connection, flow_ids: list[str], unreadable: list[Finding]) -> dict[str, FlowRecords]:
    keys = (orjson.dumps(flow_ids).decode(),)

    def ask(query: str, parameters: tuple[Any, ...] = keys) -> list[Any]:
        rows: list[Any] = orjson.loads(connection.execute(QUERIES[query], parameters).fetchone()[0])
        return rows

    flows: dict[str, FlowRecords] = {}
    for row in ask("load_flows"):
        flow = _read(row[0], unreadable, partial(read_flow, row))
        if flow is not None:
            flows[flow.flow_id] = FlowRecords(flow)
    for row in ask("doctor_steps"):
        step = _read(f"{row[0]}/{row[1]}", unreadable, partial(read_step, row))
        if step is not None and step.flow_id in flows:
            flows[step.flow_id].steps[step.step_id] = step
    for row in ask("load_work", (orjson.dumps(ask("doctor_work")).decode(),)):
        found = _read(row[0], unreadable, partial(read_work, row))
        if found is not None and found[0].flow_id in flows:
            flows[found[0].flow_id].work[found[0].work_id] = found[0]
    for event_row in connection.execute(QUERIES["doctor_journal"], keys):
        event = _read(event_row[4] or event_row[2], unreadable, partial(_event, event_row))
        if event is not None and event.flow_id in flows:
            flows[event.flow_id].events.append(event)
    return flows


def _event(row: tuple[Any, ...]) -> Event:
    event_type, at, flow_id, step_id, work_id, attempt, data = row
    return Event(EventType(event_type), at, flow_id, step_id, work_id, attempt, parse_json(data))
