-- From version 2 to 3: flows are planned. What a step gave lies with the step; a flow names its plan, its parent, its deadline
-- and its compensation; work may carry its own arguments. Outputs are taken from the journal as they stand there: what a
-- flow had gathered of them is their sum.

CREATE TABLE register (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO register (only_one, revision) VALUES (1, 0);
CREATE TABLE plans (
    plan_id  TEXT PRIMARY KEY,
    document TEXT NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE flows DROP COLUMN outputs;
ALTER TABLE flows ADD COLUMN plan TEXT;
ALTER TABLE flows ADD COLUMN parent TEXT;
ALTER TABLE flows ADD COLUMN deadline_at INTEGER;
ALTER TABLE flows ADD COLUMN compensation TEXT;
ALTER TABLE flows ADD COLUMN redrives INTEGER NOT NULL DEFAULT 0;
CREATE INDEX flows_deadline ON flows (deadline_at) WHERE deadline_at IS NOT NULL;

ALTER TABLE flow_inputs ADD COLUMN options TEXT NOT NULL DEFAULT '{}';

ALTER TABLE flow_steps RENAME TO flow_steps_before;
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
INSERT INTO flow_steps (
    flow_id, step_id, version, status, goal, items, open_items, failed_items, started_at, finished_at, outputs, error
)
SELECT b.flow_id, b.step_id, b.version, b.status, b.goal, b.items, b.open_items, b.failed_items, b.started_at,
    b.finished_at,
    (SELECT nullif(e.value -> 4 ->> 'outputs', '{}') FROM journal AS j, json_each(j.events) AS e
    WHERE j.flow_id = b.flow_id AND json_valid(j.events) AND e.value ->> 0 = 'step_completed'
        AND e.value ->> 1 = b.step_id),
    (SELECT e.value -> 4 ->> 'error' FROM journal AS j, json_each(j.events) AS e
    WHERE j.flow_id = b.flow_id AND json_valid(j.events) AND e.value ->> 0 = 'step_failed'
        AND e.value ->> 1 = b.step_id)
FROM flow_steps_before AS b;
DROP TABLE flow_steps_before;
CREATE INDEX flow_steps_due ON flow_steps (due_at) WHERE due_at IS NOT NULL;

ALTER TABLE work ADD COLUMN arguments TEXT;
ALTER TABLE work ADD COLUMN redrive_of TEXT;
ALTER TABLE work ADD COLUMN undoes TEXT;
ALTER TABLE work ADD COLUMN child_flow_id TEXT;
CREATE INDEX work_failed ON work (step_id, recorded_at) WHERE status = 'failed';

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

-- When what the flow carried was taken from it; the journal does not tell of it any more.
ALTER TABLE flows ADD COLUMN pruned_at INTEGER;
