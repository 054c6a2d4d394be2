-- From version 1 to 2: flows are planned. What a step gave lies with the step; a flow names its plan, its parent, its deadline
-- and its compensation; work may carry its own arguments. Outputs are taken from the journal as they stand there: what a
-- flow had gathered of them is their sum.

CREATE TABLE register (
    only_one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_one),
    revision BIGINT NOT NULL
);
INSERT INTO register (revision) VALUES (0);
CREATE TABLE plans (
    plan_id  TEXT COLLATE "C" PRIMARY KEY,
    document TEXT NOT NULL
);

ALTER TABLE flows DROP COLUMN outputs, ADD COLUMN plan TEXT COLLATE "C", ADD COLUMN parent TEXT,
    ADD COLUMN deadline_at BIGINT, ADD COLUMN compensation TEXT, ADD COLUMN redrives INTEGER NOT NULL DEFAULT 0;
CREATE INDEX flows_deadline ON flows (deadline_at) WHERE deadline_at IS NOT NULL;

ALTER TABLE flow_inputs ADD COLUMN options TEXT NOT NULL DEFAULT '{}';

ALTER TABLE flow_steps ADD COLUMN outputs TEXT, ADD COLUMN error TEXT, ADD COLUMN ready_at BIGINT,
    ADD COLUMN due_at BIGINT, ADD COLUMN released INTEGER,
    ADD COLUMN waiting_items INTEGER NOT NULL DEFAULT 0, ADD COLUMN redrives INTEGER NOT NULL DEFAULT 0;
CREATE INDEX flow_steps_due ON flow_steps (due_at) WHERE due_at IS NOT NULL;
-- An event is [type, step, 0 or 1, attempt, data]. PostgreSQL looks into no JSON that has the character NUL in any of its
-- texts, and what workers say may have it: so events are only taken apart, and what they hold is cut out as text.
UPDATE flow_steps SET
    outputs = nullif(CASE WHEN told.data LIKE '{"outputs":%' THEN substr(told.data, 12, length(told.data) - 12) END, '{}'),
    error = nullif(CASE WHEN told.data LIKE '{"error":%' THEN substr(told.data, 10, length(told.data) - 10) END, 'null')
FROM (
    SELECT j.flow_id, btrim(event.parts[2], '"') AS step_id, event.parts[5] AS data
    FROM journal AS j CROSS JOIN json_array_elements(j.events::json) AS e
    CROSS JOIN LATERAL (
        SELECT array_agg(p.part::text ORDER BY p.place) AS parts
        FROM json_array_elements(e) WITH ORDINALITY AS p (part, place)
    ) AS event
    WHERE j.events ~ '"step_(completed|failed)"' AND event.parts[1] IN ('"step_completed"', '"step_failed"')
) AS told
WHERE flow_steps.flow_id = told.flow_id AND flow_steps.step_id = told.step_id;

ALTER TABLE work ADD COLUMN arguments TEXT, ADD COLUMN redrive_of TEXT COLLATE "C", ADD COLUMN undoes TEXT COLLATE "C",
    ADD COLUMN child_flow_id TEXT COLLATE "C";
CREATE INDEX work_failed ON work (step_id, recorded_at) WHERE status = 'failed';

-- When flows start by themselves. The next tick, which is null while a schedule is paused, moves on in the transaction
-- that starts the flows of the present one, under the lock of this row: each tick is fired by one node.
CREATE TABLE schedules (
    schedule_id  TEXT COLLATE "C" PRIMARY KEY,
    cron         TEXT,
    timezone     TEXT,
    every_ms     BIGINT,
    flow         TEXT NOT NULL,
    catch_up     TEXT NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    enabled      BOOLEAN NOT NULL,
    anchor_at    BIGINT NOT NULL,
    next_at      BIGINT,
    last_at      BIGINT,
    last_flow_id TEXT COLLATE "C",
    last_error   TEXT,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    CHECK ((cron IS NULL) <> (every_ms IS NULL))
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;

-- When each step with a rate limit was sent last: the first time, then distances, as a JSON array. One row a step, of
-- at most 10,000 times; `most` is the largest number of them that one of its definitions had to count.
CREATE TABLE step_rates (
    step_id TEXT COLLATE "C" PRIMARY KEY,
    most    INTEGER NOT NULL,
    sent    TEXT NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- When what the flow carried was taken from it; the journal does not tell of it any more.
ALTER TABLE flows ADD COLUMN pruned_at BIGINT;
