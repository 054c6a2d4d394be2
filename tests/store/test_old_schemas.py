"""Shared databases of older versions: migrated, they are like new ones, and what was in them is still there.

Those of SQLite are in tests/unit/test_journal_migration.py.
"""

from __future__ import annotations

import pytest

from tests.databases import NewDatabase
from tests.store.records import NOW
from tests.store.schemas import PostgresDatabase, versions

pytestmark = pytest.mark.postgresql_only

VERSION_1 = """
CREATE TABLE step_versions (
    version    TEXT COLLATE "C" PRIMARY KEY,
    step_id    TEXT COLLATE "C" NOT NULL,
    definition TEXT NOT NULL
);

CREATE TABLE steps (
    step_id    TEXT COLLATE "C" PRIMARY KEY,
    version    TEXT COLLATE "C" NOT NULL REFERENCES step_versions (version),
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

CREATE TABLE flows (
    ordinal     BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    flow_id     TEXT COLLATE "C" PRIMARY KEY,
    status      TEXT NOT NULL CHECK (status IN ('active', 'compensating', 'completed', 'failed', 'cancelled')),
    created_at  BIGINT NOT NULL,
    open_steps  INTEGER NOT NULL CHECK (open_steps >= 0),
    outputs     TEXT,
    error       TEXT,
    finished_at BIGINT,
    revision    BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX flows_not_completed ON flows (status, ordinal) WHERE status <> 'completed';

CREATE TABLE flow_inputs (
    flow_id  TEXT COLLATE "C" PRIMARY KEY,
    goals    TEXT NOT NULL,
    init     TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels   TEXT NOT NULL
);

CREATE TABLE flow_labels (
    label   TEXT COLLATE "C" NOT NULL,
    flow_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (label, flow_id)
);

CREATE TABLE flow_steps (
    flow_id      TEXT COLLATE "C" NOT NULL,
    step_id      TEXT COLLATE "C" NOT NULL,
    version      TEXT COLLATE "C" NOT NULL,
    status       TEXT NOT NULL
        CHECK (status IN ('pending', 'active', 'completed', 'failed', 'skipped', 'cancelled')),
    goal         BOOLEAN NOT NULL,
    items        INTEGER NOT NULL,
    open_items   INTEGER NOT NULL CHECK (open_items >= 0),
    failed_items INTEGER NOT NULL,
    started_at   BIGINT,
    finished_at  BIGINT,
    PRIMARY KEY (flow_id, step_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE work (
    ordinal         BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    work_id         TEXT COLLATE "C" PRIMARY KEY,
    flow_id         TEXT COLLATE "C" NOT NULL,
    step_id         TEXT COLLATE "C" NOT NULL,
    item            INTEGER NOT NULL,
    version         TEXT COLLATE "C" NOT NULL,
    status          TEXT NOT NULL CHECK (
        status IN ('pending', 'held', 'active', 'not_completed', 'succeeded', 'failed', 'cancelled')
    ),
    attempt         INTEGER NOT NULL CHECK (attempt >= 0),
    idempotency_key TEXT NOT NULL,
    lane            TEXT COLLATE "C" NOT NULL,
    created_at      BIGINT NOT NULL,
    due_at          BIGINT,
    deadline_at     BIGINT,
    owner           TEXT COLLATE "C",
    first_sent_at   BIGINT,
    sent_at         BIGINT,
    acknowledged_at BIGINT,
    progress        TEXT,
    message         TEXT,
    hold            TEXT,
    result          TEXT,
    error           TEXT,
    recorded_at     BIGINT
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX work_of_flow ON work (flow_id, step_id, item);

CREATE INDEX work_claimable ON work (lane, due_at)
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL;

CREATE INDEX work_waiting ON work (step_id, sent_at) WHERE status = 'active';

CREATE INDEX work_due ON work (due_at) WHERE status = 'active';

CREATE INDEX work_sending ON work (owner) WHERE owner IS NOT NULL;

CREATE TABLE journal (
    seq     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flow_id TEXT COLLATE "C" NOT NULL,
    work_id TEXT COLLATE "C",
    at      BIGINT NOT NULL,
    events  TEXT NOT NULL
);
CREATE INDEX journal_of_flow ON journal (flow_id, seq);

CREATE TABLE cancel_calls (
    call_id TEXT COLLATE "C" PRIMARY KEY,
    flow_id TEXT COLLATE "C" NOT NULL,
    step_id TEXT COLLATE "C" NOT NULL,
    work_id TEXT COLLATE "C" NOT NULL,
    url     TEXT NOT NULL,
    body    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    due_at  BIGINT NOT NULL
);
CREATE INDEX cancel_calls_due ON cancel_calls (due_at);

CREATE TABLE nodes (
    node_id     TEXT COLLATE "C" PRIMARY KEY,
    joined_at   TIMESTAMPTZ NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE receipt_secret (
    only_one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_one),
    secret   TEXT NOT NULL
);
"""
"""The first schema of the shared store, without its comments."""


async def test_a_database_of_the_first_version_is_migrated(new_database: NewDatabase) -> None:
    old, fresh = [await PostgresDatabase.at(new_database(empty=True)) for _ in range(2)]
    await old.migrate(NOW - 1, 1, {}, VERSION_1)
    await old.fetch("INSERT INTO step_versions VALUES ('v', 'step', '{}')")
    assert await old.migrate(NOW) == 1
    await fresh.migrate(NOW)
    assert await old.catalogue() == await fresh.catalogue()
    assert await versions(old) == [(1, NOW - 1), *((version, NOW) for version in range(2, old.present + 1))]
    assert await old.fetch("SELECT version FROM step_versions") == [("v",)]
    for database in (old, fresh):
        await database.close()
