-- Schema of the embedded store. Times are milliseconds since 1970 (UTC). JSON is kept as text.
-- Partial indexes hold only what is open or due: what has ended costs no sweep anything.

-- Step definitions by content. Immutable: a flow keeps the version that it was started with.
CREATE TABLE step_versions (
    version    TEXT PRIMARY KEY,
    step_id    TEXT NOT NULL,
    definition TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The register: which version of a step new flows use.
CREATE TABLE steps (
    step_id    TEXT PRIMARY KEY,
    version    TEXT NOT NULL REFERENCES step_versions (version),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How often the register has changed: one row. Who has seen the register at this revision need not read it again.
CREATE TABLE register (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO register (only_one, revision) VALUES (1, 0);

-- Plans by content. Immutable, and shared by all flows that were planned alike.
CREATE TABLE plans (
    plan_id  TEXT PRIMARY KEY,
    document TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled; what has failed or was
-- cancelled -> active by redrive
CREATE TABLE flows (
    ordinal     INTEGER PRIMARY KEY,
    flow_id     TEXT NOT NULL UNIQUE,
    status      TEXT NOT NULL CHECK (status IN ('active', 'compensating', 'completed', 'failed', 'cancelled')),
    created_at  INTEGER NOT NULL,
    open_steps  INTEGER NOT NULL CHECK (open_steps >= 0),
    error       TEXT,
    finished_at INTEGER,
    plan        TEXT,
    parent      TEXT,
    deadline_at INTEGER,
    compensation TEXT,
    redrives    INTEGER NOT NULL DEFAULT 0,
    pruned_at   INTEGER
) STRICT;
CREATE INDEX flows_not_completed ON flows (status, ordinal) WHERE status <> 'completed';
CREATE INDEX flows_deadline ON flows (deadline_at) WHERE deadline_at IS NOT NULL;

-- What a flow was started with: apart from its state, so that a change of state does not rewrite it.
CREATE TABLE flow_inputs (
    flow_id  TEXT PRIMARY KEY,
    goals    TEXT NOT NULL,
    init     TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels   TEXT NOT NULL,
    options  TEXT NOT NULL DEFAULT '{}'
) STRICT;

CREATE TABLE flow_labels (
    label   TEXT NOT NULL,
    flow_id TEXT NOT NULL,
    PRIMARY KEY (label, flow_id)
) STRICT, WITHOUT ROWID;

-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; what has ended -> pending by redrive
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
    outputs      TEXT,
    error        TEXT,
    ready_at     INTEGER,
    due_at       INTEGER,
    released     INTEGER,
    waiting_items INTEGER NOT NULL DEFAULT 0,
    redrives     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (flow_id, step_id)
) STRICT, WITHOUT ROWID;
-- Steps that wait for an optional input, and how long yet.
CREATE INDEX flow_steps_due ON flow_steps (due_at) WHERE due_at IS NOT NULL;

-- The moves of a work item: see the guard in queries.sql (update_work) and domain/states.py.
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
    recorded_at     INTEGER,
    arguments       TEXT,
    redrive_of      TEXT,
    undoes          TEXT,
    child_flow_id   TEXT
) STRICT;
CREATE INDEX work_of_flow ON work (flow_id, step_id, item);
-- What may be sent, lane by lane, the longest due first.
CREATE INDEX work_claimable ON work (lane, due_at, status)
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL;
-- What is out, by step: how many (parallelism) and since when (the oldest one waiting).
CREATE INDEX work_waiting ON work (step_id, sent_at) WHERE status = 'active';
-- Whose clock runs out next.
CREATE INDEX work_due ON work (due_at) WHERE status = 'active';
-- What is being sent at this moment, and by which node.
CREATE INDEX work_sending ON work (owner) WHERE owner IS NOT NULL;
-- What has failed, by step: to be found and redriven.
CREATE INDEX work_failed ON work (step_id, recorded_at) WHERE status = 'failed';

-- Append-only: an event for every change, in the transaction that made it. A row is an entry: consecutive events of one
-- flow, and of at most one work item, as a JSON array (see store/journal.py).
CREATE TABLE journal (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    flow_id TEXT NOT NULL,
    work_id TEXT,
    at      INTEGER NOT NULL,
    events  TEXT NOT NULL
) STRICT;
CREATE INDEX journal_of_flow ON journal (flow_id, seq);

-- Cancellations that workers are still to be told of.
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

-- When flows start by themselves. The next tick, which is null while a schedule is paused, moves on in the transaction
-- that starts the flows of the present one.
CREATE TABLE schedules (
    schedule_id  TEXT PRIMARY KEY,
    cron         TEXT,
    timezone     TEXT,
    every_ms     INTEGER,
    flow         TEXT NOT NULL,
    catch_up     TEXT NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    enabled      INTEGER NOT NULL,
    anchor_at    INTEGER NOT NULL,
    next_at      INTEGER,
    last_at      INTEGER,
    last_flow_id TEXT,
    last_error   TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    CHECK ((cron IS NULL) <> (every_ms IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
-- When each step with a rate limit was sent last: the first time, then distances, as a JSON array. One row a step, of
-- at most 10,000 times; `most` is the largest number of them that one of its definitions had to count.
CREATE TABLE step_rates (
    step_id TEXT PRIMARY KEY,
    most    INTEGER NOT NULL,
    sent    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
