-- Definitions of steps, the register, and steps in flows.

-- name: load_open_steps
-- All open steps of some flows.
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives
FROM flow_steps AS s WHERE s.flow_id = ANY($1::text[]) AND s.status IN ('pending', 'active');

-- name: load_steps
-- Steps in flows by key, each with what it gave.
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
FROM unnest($1::text[]) AS wanted (key)
JOIN flow_steps AS s
ON s.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND s.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_whole_steps
-- All steps of some flows, each with what it gave.
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
FROM flow_steps AS s WHERE s.flow_id = ANY($1::text[]);

-- name: load_register
-- The register's revision, with every current step unless the revision is the one that is known.
SELECT r.revision, s.step_id, s.version, v.definition
FROM unnest($1::bigint[]) AS known (revision) CROSS JOIN register AS r
LEFT JOIN steps AS s ON r.revision <> known.revision
LEFT JOIN step_versions AS v ON v.version = s.version;

-- name: load_current
-- The current version of some steps.
SELECT s.step_id, s.version FROM steps AS s WHERE s.step_id = ANY($1::text[]);

-- name: load_versions
-- Definitions by version.
SELECT v.version, v.step_id, v.definition FROM step_versions AS v WHERE v.version = ANY($1::text[]);

-- name: insert_version
-- A definition that may be known already: the same content has the same version.
INSERT INTO step_versions (version, step_id, definition)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING;

-- name: put_step
-- Make a version the current one of its step.
INSERT INTO steps (step_id, version, created_at, updated_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
ON CONFLICT (step_id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at;

-- name: delete_step
-- Take a step out of the register; flows under way keep their version.
DELETE FROM steps WHERE step_id = ANY($1::text[]);

-- name: raise_register
-- The register has changed. Nodes change it one after the other (lock_register).
UPDATE register SET revision = register.revision + change.steps FROM unnest($1::bigint[]) AS change (steps);

-- name: insert_steps
INSERT INTO flow_steps (
    flow_id, step_id, version, status, goal, items, open_items, failed_items, started_at, finished_at, error, ready_at,
    due_at, released, waiting_items, redrives, outputs
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::integer[], $7::integer[], $8::integer[],
    $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::integer[], $15::integer[],
    $16::integer[], $17::text[]
);

-- name: update_steps
-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; and whatever several of these moves
-- in one batch come to. What has ended begins anew only by one more redrive.
UPDATE flow_steps SET
    status = change.status, items = change.items, open_items = change.open_items,
    failed_items = change.failed_items, started_at = change.started_at, finished_at = change.finished_at,
    error = change.error, ready_at = change.ready_at, due_at = change.due_at, released = change.released,
    waiting_items = change.waiting_items, redrives = change.redrives, outputs = change.outputs
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::bigint[], $8::bigint[],
    $9::text[], $10::bigint[], $11::bigint[], $12::integer[], $13::integer[], $14::integer[], $15::text[]
) AS change (
    flow_id, step_id, status, items, open_items, failed_items, started_at, finished_at, error, ready_at, due_at,
    released, waiting_items, redrives, outputs
)
WHERE flow_steps.flow_id = ANY(ARRAY[change.flow_id]) AND flow_steps.step_id = change.step_id
    AND (flow_steps.redrives < change.redrives AND flow_steps.status <> 'skipped' OR CASE change.status
    WHEN 'pending' THEN flow_steps.status IN ('pending')
    WHEN 'active' THEN flow_steps.status IN ('pending', 'active')
    WHEN 'completed' THEN flow_steps.status IN ('pending', 'active')
    WHEN 'failed' THEN flow_steps.status IN ('pending', 'active')
    WHEN 'skipped' THEN flow_steps.status IN ('pending')
    WHEN 'cancelled' THEN flow_steps.status IN ('pending', 'active')
END);

-- name: count_steps
-- The same for steps that were begun before, of which only counters and the end can change: most of all updates.
UPDATE flow_steps SET
    status = change.status, open_items = change.open_items, failed_items = change.failed_items,
    finished_at = change.finished_at, error = change.error, outputs = change.outputs
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::bigint[], $7::text[], $8::text[]
) AS change (flow_id, step_id, status, open_items, failed_items, finished_at, error, outputs)
WHERE flow_steps.flow_id = ANY(ARRAY[change.flow_id]) AND flow_steps.step_id = change.step_id AND CASE change.status
    WHEN 'active' THEN flow_steps.status IN ('active')
    WHEN 'completed' THEN flow_steps.status IN ('active')
    WHEN 'failed' THEN flow_steps.status IN ('active')
    WHEN 'cancelled' THEN flow_steps.status IN ('active')
END;

-- name: complete_steps
-- The same where none of its items has failed.
UPDATE flow_steps SET
    status = 'completed', open_items = 0, finished_at = change.finished_at, outputs = change.outputs
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS change (flow_id, step_id, finished_at, outputs)
WHERE flow_steps.flow_id = ANY(ARRAY[change.flow_id]) AND flow_steps.step_id = change.step_id
    AND flow_steps.status = 'active';

-- name: get_step
SELECT s.step_id, s.version, v.definition, s.created_at, s.updated_at
FROM steps AS s JOIN step_versions AS v ON v.version = s.version WHERE s.step_id = :step_id;

-- name: list_steps
SELECT s.step_id, s.version, v.definition, s.created_at, s.updated_at
FROM steps AS s JOIN step_versions AS v ON v.version = s.version ORDER BY s.step_id;

-- name: get_flow_steps
-- The kind of a step, if it says one, stands first in its definition, which may hold what PostgreSQL reads no JSON with.
SELECT s.step_id, s.status, s.goal, s.version, s.started_at, s.finished_at, s.items, s.error, s.due_at, s.redrives,
    substring(v.definition FROM '^\{"kind":"([a-z]+)"')
FROM flow_steps s LEFT JOIN step_versions v ON v.version = s.version
WHERE s.flow_id = :flow_id ORDER BY s.started_at NULLS FIRST, s.step_id;

-- name: step_version
SELECT v.definition FROM step_versions AS v WHERE v.version = :version;
