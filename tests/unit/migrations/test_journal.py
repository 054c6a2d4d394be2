"""A file of version 1, whose journal had a row for every event: migrated, examined, and continued by an engine."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.work.results import StepResult
from counterfoil.settings import Settings
from counterfoil.store.maintenance.migrating import Migrated, migrate_store
from counterfoil.store.protocol import Row
from counterfoil.store.sqlite.doctor import examine
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.testing.simulator import Simulator
from tests.by_hand import by_hand
from tests.journal import ENTRIES, events_of
from tests.store.old_stores import BEFORE_PLANS, OUTPUTS, WORK, old_rows
from tests.store.records import DEFAULTS, NOW
from tests.store.schemas import SqliteDatabase, versions

pytestmark = pytest.mark.sqlite_only

VERSION_1 = """
CREATE TABLE step_versions (
    version    TEXT PRIMARY KEY,
    step_id    TEXT NOT NULL,
    definition TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (
    step_id    TEXT PRIMARY KEY,
    version    TEXT NOT NULL REFERENCES step_versions (version),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE flows (
    ordinal     INTEGER PRIMARY KEY,
    flow_id     TEXT NOT NULL UNIQUE,
    status      TEXT NOT NULL CHECK (status IN ('active', 'compensating', 'completed', 'failed', 'cancelled')),
    created_at  INTEGER NOT NULL,
    open_steps  INTEGER NOT NULL CHECK (open_steps >= 0),
    outputs     TEXT,
    error       TEXT,
    finished_at INTEGER
) STRICT;
CREATE INDEX flows_not_completed ON flows (status, ordinal) WHERE status <> 'completed';

CREATE TABLE flow_inputs (
    flow_id  TEXT PRIMARY KEY,
    goals    TEXT NOT NULL,
    init     TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels   TEXT NOT NULL
) STRICT;

CREATE TABLE flow_labels (
    label   TEXT NOT NULL,
    flow_id TEXT NOT NULL,
    PRIMARY KEY (label, flow_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE flow_steps (
    flow_id      TEXT NOT NULL,
    step_id      TEXT NOT NULL,
    version      TEXT NOT NULL,
    status       TEXT NOT NULL
        CHECK (status IN ('pending', 'active', 'completed', 'failed', 'skipped', 'cancelled')),
    goal         INTEGER NOT NULL,
    items        INTEGER NOT NULL,
    open_items   INTEGER NOT NULL CHECK (open_items >= 0),
    failed_items INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER,
    PRIMARY KEY (flow_id, step_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE work (
    ordinal         INTEGER PRIMARY KEY,
    work_id         TEXT NOT NULL UNIQUE,
    flow_id         TEXT NOT NULL,
    step_id         TEXT NOT NULL,
    item            INTEGER NOT NULL,
    version         TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (
        status IN ('pending', 'held', 'active', 'not_completed', 'succeeded', 'failed', 'cancelled')
    ),
    attempt         INTEGER NOT NULL CHECK (attempt >= 0),
    idempotency_key TEXT NOT NULL,
    lane            TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    due_at          INTEGER,
    deadline_at     INTEGER,
    owner           TEXT,
    first_sent_at   INTEGER,
    sent_at         INTEGER,
    acknowledged_at INTEGER,
    progress        TEXT,
    message         TEXT,
    hold            TEXT,
    result          TEXT,
    error           TEXT,
    recorded_at     INTEGER
) STRICT;
CREATE INDEX work_of_flow ON work (flow_id, step_id, item);
CREATE INDEX work_claimable ON work (lane, due_at, status)
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL;
CREATE INDEX work_waiting ON work (step_id, sent_at) WHERE status = 'active';
CREATE INDEX work_due ON work (due_at) WHERE status = 'active';
CREATE INDEX work_sending ON work (owner) WHERE owner IS NOT NULL;

CREATE TABLE journal (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    type    TEXT NOT NULL,
    at      INTEGER NOT NULL,
    flow_id TEXT NOT NULL,
    step_id TEXT,
    work_id TEXT,
    attempt INTEGER,
    data    TEXT NOT NULL
) STRICT;
CREATE INDEX journal_of_flow ON journal (flow_id, seq);

CREATE TABLE cancel_calls (
    call_id TEXT PRIMARY KEY,
    flow_id TEXT NOT NULL,
    step_id TEXT NOT NULL,
    work_id TEXT NOT NULL,
    url     TEXT NOT NULL,
    body    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    due_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX cancel_calls_due ON cancel_calls (due_at);
"""
"""The schema of release 0.1.0, without its comments."""

AWKWARD = (
    r'{"digits":123456789012345678901234567890,"small":1e-7,"zero":-0.0,"deep":[[{}]],"none":null,'
    r'"text":"\"\\\u0000\n ä🦆"}'
)
OLD_EVENTS: list[Row] = [
    (3, "flow_started", 1, "räuber", None, None, None, AWKWARD),
    (4, "work_created", 1, "räuber", 'a "step"\\', "w1", 0, "{}"),
    (9, "work_dispatched", 2, "z", "step", "w2", 2**40, AWKWARD),
    (10, "work_heartbeat", 3, "räuber", "\x01\u2028'", "w1", None, '{"n":10000000000000000000000000000001}'),
]
"""Rows of the old journal, with gaps in their numbers."""


async def old_file(path: Path, events: list[Row]) -> Path:
    database = SqliteDatabase(path)
    await database.migrate(NOW - 1, 1, {}, VERSION_1)
    database.connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?)", events)
    await database.close()
    return path


async def migrated(path: Path) -> Path:
    assert await migrate_store(Settings(store=f"sqlite:///{path}"), NOW) == Migrated(1, SCHEMA_VERSION)
    return path


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, lambda: NOW, DEFAULTS)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_the_schema_is_that_of_a_new_file(tmp_path: Path) -> None:
    path = await migrated(await old_file(tmp_path / "old.db", OLD_EVENTS))
    old, fresh = SqliteDatabase(path), SqliteDatabase(tmp_path / "fresh.db")
    await fresh.migrate(NOW)
    assert await old.catalogue() == await fresh.catalogue()
    assert await versions(old) == [(1, NOW - 1), *((version, NOW) for version in range(2, SCHEMA_VERSION + 1))]
    assert await old.fetch("PRAGMA integrity_check") == [("ok",)]
    await old.close()
    await fresh.close()


async def test_every_event_is_kept_to_the_letter(tmp_path: Path) -> None:
    path = await migrated(await old_file(tmp_path / "old.db", OLD_EVENTS))
    entries = by_hand(path, ENTRIES)
    for (seq, kind, at, flow_id, step_id, work_id, attempt, data), entry in zip(OLD_EVENTS, entries, strict=True):
        assert entry[:4] == (seq, flow_id, work_id, at)
        assert json.loads(entry[4]) == [[kind, step_id, int(work_id is not None), attempt, json.loads(data)]]
        assert entry[4].endswith(f",{data}]]")
    async with opened(path) as store:
        everything = await store.read("journal_after", after=0, limit=99)
        assert everything == [(seq * 64, *rest) for seq, *rest in OLD_EVENTS]
        of_work = await store.read("journal_of_work", flow_id="räuber", work_id="w1")
        assert of_work == [everything[1], everything[3]]
        assert await store.read("journal_of_flow", flow_id="räuber", after=everything[0][0], limit=1) == [everything[1]]
        assert await store.read("last_seq") == [(10 * 64 + 63,)]


@pytest.mark.parametrize("gone", ["seq = 10", "TRUE", "FALSE"])
async def test_new_entries_come_behind_all_that_there_ever_were(tmp_path: Path, gone: str) -> None:
    path = await old_file(tmp_path / "old.db", OLD_EVENTS)
    by_hand(path, f"DELETE FROM journal WHERE {gone}")
    await migrated(path)
    assert by_hand(path, "SELECT name, seq FROM sqlite_sequence") == [("journal", 10)]
    appended = "INSERT INTO journal (flow_id, at, events) VALUES ('z', 1, '[]') RETURNING seq"
    assert by_hand(path, appended) == [(11,)]


async def test_an_empty_journal_begins_at_one(tmp_path: Path) -> None:
    path = await migrated(await old_file(tmp_path / "old.db", []))
    appended = "INSERT INTO journal (flow_id, at, events) VALUES ('z', 1, '[]') RETURNING seq"
    assert by_hand(path, appended) == [(1,)]


async def test_a_damaged_event_does_not_stand_in_the_way(tmp_path: Path) -> None:
    path = await old_file(tmp_path / "old.db", [*OLD_EVENTS, (11, "work_forgotten", 1, "z", None, None, None, "{")])
    await migrated(path)
    assert len(by_hand(path, "SELECT 1 FROM journal")) == len(OLD_EVENTS) + 1


# ------------------------------------------------------------------------------------------------ under an engine


async def aged(path: Path) -> list[dict[str, Any]]:
    """Make a file of version 1 with the flows of the time before plans, as the engine then would have; its events."""
    tables = old_rows(BEFORE_PLANS, numbered=True)
    events = events_of(tables.pop("journal")[1])
    columns = ("type", "at", "flow_id", "step_id", "work_id", "attempt")
    rows = [(*(event[name] for name in columns), dump_json(event["data"]).decode()) for event in events]
    await old_file(path, [(number, *row) for number, row in enumerate(rows, 1)])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for table, (names, values) in tables.items():
            marks = ", ".join("?" * len(names))
            connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)
    return events


def without_numbers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "seq": None} for event in events]


async def test_an_engine_goes_on_where_the_old_one_stopped(tmp_path: Path) -> None:
    path, work_id = tmp_path / "counterfoil.db", WORK["open"]
    before = await aged(path)
    [finding] = examine(path, DEFAULTS)
    assert (finding.invariant, finding.subject) == ("schema", "version 1")

    async with Simulator(path, defaults=DEFAULTS) as new:
        assert by_hand(path, "SELECT max(version) FROM schema_version") == [(SCHEMA_VERSION,)]
        assert without_numbers(events_of(by_hand(path, ENTRIES))) == without_numbers(before)
        assert new.examine() == []
        queries = new.engine.queries
        last = await queries.last_seq()
        await new.engine.reports.complete(work_id, StepResult(success=True, outputs={"amount": 1}))
        (result, final) = await queries.result("open", 0)
        assert (result["status"], final) == ("completed", True)
        added, _ = await queries.journal_after(last, None, 99)
        assert [kind for _, kind, _ in added] == ["work_succeeded", "step_completed", "flow_completed"]
        told, _ = await queries.journal_after(0, "open", 99)
        assert [number for number, _, _ in told] == sorted({number for number, _, _ in told})
        assert [(await queries.flow(flow_id))["outputs"] for flow_id in ("done", "open")] == [
            OUTPUTS["done"],
            {"amount": 1},
        ]
        [(_, _, first), *_], _ = await queries.journal_after(0, "done", 1)
        assert str(OUTPUTS["done"]["amount"]).encode() in first
        assert [kind for _, kind, _ in told[-3:]] == [kind for _, kind, _ in added]
        document = await queries.work_item(work_id)
        assert [attempt["outcome"] for attempt in document["attempts"]] == ["succeeded"]
        assert new.examine() == []
    assert examine(path, DEFAULTS) == []
