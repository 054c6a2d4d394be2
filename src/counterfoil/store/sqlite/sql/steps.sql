-- Definitions of steps, the register, and steps in flows.

-- name: load_open_steps
-- All open steps of some flows.
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value
WHERE s.status IN ('pending', 'active');

-- name: load_steps
-- Steps in flows by key, each with what it gave.
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s
ON s.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND s.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: load_whole_steps
-- All steps of some flows, each with what it gave.
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value;

-- name: load_register
-- The register's revision, with every current step unless the revision is the one that is known.
SELECT json_group_array(json_array(r.revision, s.step_id, s.version, v.definition))
FROM json_each(?) AS known CROSS JOIN register AS r
LEFT JOIN steps AS s ON r.revision <> CAST(known.value AS INTEGER)
LEFT JOIN step_versions AS v ON v.version = s.version;

-- name: load_current
-- The current version of some steps.
SELECT json_group_array(json_array(s.step_id, s.version))
FROM json_each(?) AS wanted CROSS JOIN steps AS s ON s.step_id = wanted.value;

-- name: load_versions
-- Definitions by version.
SELECT json_group_array(json_array(v.version, v.step_id, v.definition))
FROM json_each(?) AS wanted CROSS JOIN step_versions AS v ON v.version = wanted.value;

-- name: insert_version
-- A definition that may be known already: the same content has the same version.
INSERT INTO step_versions (version, step_id, definition)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING;

-- name: put_step
-- Make a version the current one of its step.
INSERT INTO steps (step_id, version, created_at, updated_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (step_id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at;

-- name: delete_step
-- Take a step out of the register; flows under way keep their version.
DELETE FROM steps WHERE step_id IN (VALUES :rows);

-- name: raise_register
-- The register has changed.
UPDATE register SET revision = revision + change.steps
FROM (WITH change (steps) AS (VALUES :rows) SELECT * FROM change) AS change;

-- name: insert_steps
INSERT INTO flow_steps (
    flow_id, step_id, version, status, goal, items, open_items, failed_items, started_at, finished_at, error, ready_at,
    due_at, released, waiting_items, redrives, outputs
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: update_steps
-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; and whatever several of these moves
-- in one batch come to. What has ended begins anew only by one more redrive.
UPDATE flow_steps SET
    status = change.status, items = change.items, open_items = change.open_items,
    failed_items = change.failed_items, started_at = change.started_at, finished_at = change.finished_at,
    error = change.error, ready_at = change.ready_at, due_at = change.due_at, released = change.released,
    waiting_items = change.waiting_items, redrives = change.redrives, outputs = change.outputs
FROM (
    WITH change (
        flow_id, step_id, status, items, open_items, failed_items, started_at, finished_at, error, ready_at, due_at,
        released, waiting_items, redrives, outputs
    ) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flow_steps.flow_id = change.flow_id AND flow_steps.step_id = change.step_id
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
FROM (
    WITH change (flow_id, step_id, status, open_items, failed_items, finished_at, error, outputs) AS (VALUES :rows)
    SELECT * FROM change
) AS change
WHERE flow_steps.flow_id = change.flow_id AND flow_steps.step_id = change.step_id AND CASE change.status
    WHEN 'active' THEN flow_steps.status IN ('active')
    WHEN 'completed' THEN flow_steps.status IN ('active')
    WHEN 'failed' THEN flow_steps.status IN ('active')
    WHEN 'cancelled' THEN flow_steps.status IN ('active')
END;

-- name: complete_steps
-- The same where none of its items has failed.
UPDATE flow_steps SET
    status = 'completed', open_items = 0, finished_at = change.finished_at, outputs = change.outputs
FROM (
    WITH change (flow_id, step_id, finished_at, outputs) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flow_steps.flow_id = change.flow_id AND flow_steps.step_id = change.step_id AND flow_steps.status = 'active';

-- name: get_step
SELECT s.step_id, s.version, v.definition, s.created_at, s.updated_at
FROM steps AS s JOIN step_versions AS v ON v.version = s.version WHERE s.step_id = :step_id;

-- name: list_steps
SELECT s.step_id, s.version, v.definition, s.created_at, s.updated_at
FROM steps AS s JOIN step_versions AS v ON v.version = s.version ORDER BY s.step_id;

-- name: get_flow_steps
SELECT s.step_id, s.status, s.goal, s.version, s.started_at, s.finished_at, s.items, s.error, s.due_at, s.redrives,
    v.definition ->> 'kind'
FROM flow_steps s LEFT JOIN step_versions v ON v.version = s.version
WHERE s.flow_id = :flow_id ORDER BY s.started_at, s.step_id;

-- name: step_version
SELECT v.definition FROM step_versions AS v WHERE v.version = :version;
