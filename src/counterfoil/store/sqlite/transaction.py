"""One write transaction: load what a batch needs, let it decide, write what it changed, in one trip to the thread.

The writer's thread holds Python's lock only while it decides and binds parameters; reading, writing and flushing go on
beside the event loop. What is durable when: ``execute`` returns after SQLite has flushed the write-ahead log
(synchronous FULL). A guard that did not match (a row was not in the state that the decision saw) rolls back the whole
batch: with one writer it can only be a bug or another program writing to the file, and neither may be papered over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import orjson

from counterfoil.domain.model import StepVersion
from counterfoil.domain.steps import StepDefinition, WorkDefaults
from counterfoil.store.batch import Batch
from counterfoil.store.changes import Changes
from counterfoil.store.commit import GuardRefused
from counterfoil.store.queries import load_queries
from counterfoil.store.sqlite import rows
from counterfoil.store.world import Needs, World

QUERIES = load_queries("counterfoil.store.sqlite")
MOST_ROWS = 64
"""Rows of one bulk statement: large enough to be cheap, and with few lengths that SQLite prepares once and keeps."""

Statement = tuple[str, list[Any], int | None]
"""SQL, its parameters, and how many rows it must have changed (None: any number)."""


def execute(connection: sqlite3.Connection, batch: Batch, defaults: WorkDefaults) -> None:
    """The whole transaction of a batch, in the writer's thread."""
    _rollback(connection)  # a batch that failed midway may have left one open
    connection.execute("BEGIN IMMEDIATE")
    try:
        missed: Needs | None = batch.needs
        while missed is not None:
            _fill(batch.world, missed, _read(connection, missed), defaults)
            missed = batch.decide()
        if batch.world.changes.any():
            _write(connection, bulk_statements(batch.world.changes))
        else:
            connection.execute("ROLLBACK")
    except BaseException:
        _rollback(connection)
        raise


def _read(connection: sqlite3.Connection, needs: Needs) -> dict[str, str]:
    """Everything that the batch asked for, as JSON text by query."""
    found: dict[str, str] = {}

    def load(query: str, keys: Iterable[str]) -> None:
        if keys:
            parameters = (orjson.dumps(list(keys)).decode(),)
            found[query] = connection.execute(QUERIES[query], parameters).fetchall()[0][0]

    load("load_open_work", needs.open_flows)
    if needs.open_flows:
        needs.work.update(orjson.loads(found["load_open_work"]))
        needs.flows |= needs.open_flows
    load("load_open_steps", needs.open_flows)
    load("load_work", needs.work)
    load("load_flows", needs.flows)
    load("load_inputs", needs.inputs)
    load("load_current", needs.steps)
    load("load_versions", needs.versions)
    load("load_calls", needs.calls)
    load("count_active", needs.active_counts)
    return found


def _fill(world: World, needs: Needs, found: dict[str, str], defaults: WorkDefaults) -> None:
    """Put what was read into the world, and note what does not exist as such."""

    def rows_of(query: str) -> list[Any]:
        return orjson.loads(found[query]) if query in found else []

    for row in rows_of("load_work"):
        work, step, flow = rows.read_work(row)
        world.add_work(work.work_id, work)
        world.add_step_run(step)
        world.add_flow(flow.flow_id, flow)
    for row in rows_of("load_open_steps"):
        world.add_step_run(rows.read_step(row))
    for row in rows_of("load_flows"):
        flow = rows.read_flow(row)
        world.add_flow(flow.flow_id, flow)
    for row in rows_of("load_inputs"):
        world.add_inputs(rows.read_inputs(row))
    for step_id, version in rows_of("load_current"):
        world.add_current(step_id, version)
    for version, step_id, definition in rows_of("load_versions"):
        parsed = StepDefinition.model_validate_json(definition)
        world.add_version(version, StepVersion.of(step_id, parsed, defaults, version))
    for row in rows_of("load_calls"):
        call = rows.read_call(row)
        world.add_call(call.call_id, call)
    for step_id, count in rows_of("count_active"):
        world.add_active_count(step_id, count)
    _note_missing(world, needs)
    world.know_open(needs.open_flows)


def _note_missing(world: World, needs: Needs) -> None:
    """What was asked for and not found does not exist: deciding it again would ask in vain."""
    for work_id in needs.work:
        world.add_work(work_id, None)
    for flow_id in needs.flows:
        world.add_flow(flow_id, None)
    for step_id in needs.steps:
        world.add_current(step_id, None)
    for call_id in needs.calls:
        world.add_call(call_id, None)


def _write(connection: sqlite3.Connection, statements: list[Statement]) -> None:
    """All statements, then the commit that makes them durable."""
    for sql, parameters, expected in statements:
        changed = connection.execute(sql, parameters).rowcount
        if expected is not None and changed != expected:
            raise GuardRefused(f"{expected - changed} of {expected} rows: {sql[:40]}")
    connection.execute("COMMIT")


def _rollback(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def bulk_statements(changes: Changes) -> list[Statement]:
    """What a batch writes, table by table; definitions before what names them."""
    statements: list[Statement] = []

    def bulk(query: str, parameters: Sequence[tuple[Any, ...]], *, exact: bool = True) -> None:
        statements.extend(_bulk(query, parameters, exact=exact))

    versions = [version for version in changes.current.values() if version is not None]
    if changes.current:
        bulk("insert_version", [_version_row(version) for version in changes.versions.values()], exact=False)
        bulk("put_step", [(v.step_id, v.version, changes.at, changes.at) for v in versions])
        removed = [(step_id,) for step_id, version in changes.current.items() if version is None]
        bulk("delete_step", removed, exact=False)
    new = changes.new
    flows, steps, work = changes.flows, changes.steps, changes.work
    if new.flows:
        bulk("insert_flows", [rows.inserted_flow(flows[key]) for key in sorted(new.flows)])
        bulk("insert_inputs", [rows.inserted_inputs(inputs) for inputs in changes.inputs.values()])
        labels = [(f"{k}:{v}", i.flow_id) for i in changes.inputs.values() for k, v in i.labels.items()]
        bulk("insert_labels", labels)
    bulk("update_flows", [rows.updated_flow(flow) for key, flow in flows.items() if key not in new.flows])
    bulk("insert_steps", [rows.inserted_step(steps[key]) for key in new.steps])
    bulk("update_steps", [rows.updated_step(step) for key, step in steps.items() if key not in new.steps])
    bulk("insert_work", [rows.inserted_work(work[key]) for key in sorted(new.work)])
    bulk("update_work", [rows.updated_work(item) for key, item in work.items() if key not in new.work])
    bulk("append_journal", [rows.appended_event(event) for event in changes.events])
    bulk("put_calls", [rows.put_call(call) for call in changes.calls.values() if call is not None])
    bulk("delete_calls", [(key,) for key, call in changes.calls.items() if call is None], exact=False)
    return statements


def _version_row(version: StepVersion) -> tuple[Any, ...]:
    definition = version.definition.model_dump_json(by_alias=True, exclude_unset=True)
    return (version.version, version.step_id, definition)


def _bulk(query: str, parameters: Sequence[tuple[Any, ...]], *, exact: bool) -> Iterable[Statement]:
    """Cut rows into statements of 64, 32, 16 ... 1 rows: few texts, so that SQLite's prepared ones are used again."""
    start = 0
    while start < len(parameters):
        size = min(MOST_ROWS, 1 << (len(parameters) - start).bit_length() - 1)
        chunk = parameters[start : start + size]
        yield _sql(query, size, len(chunk[0])), list(chain.from_iterable(chunk)), size if exact else None
        start += size


_TEXTS: dict[tuple[str, int], str] = {}


def _sql(query: str, size: int, width: int) -> str:
    text = _TEXTS.get((query, size))
    if text is None:
        row = f"({', '.join('?' * width)})"
        text = _TEXTS[(query, size)] = QUERIES[query].replace(":rows", ", ".join([row] * size))
    return text
