-- Flows, what they were started with, and their plans.

-- name: load_flows
-- Flows by id.
SELECT f.flow_id, f.status, f.created_at, f.open_steps, f.error, f.finished_at, f.plan, f.parent, f.deadline_at, f.compensation,
    f.redrives
FROM flows AS f WHERE f.flow_id = ANY($1::text[]);

-- name: load_plans
-- Plans by id.
SELECT p.plan_id, p.document FROM plans AS p WHERE p.plan_id = ANY($1::text[]);

-- name: load_inputs
-- What some flows were started with.
SELECT i.flow_id, i.goals, i.init, i.metadata, i.labels, i.options
FROM flow_inputs AS i WHERE i.flow_id = ANY($1::text[]);

-- name: find_due_flows
-- Flows whose deadline has passed, or a step of which waits no longer.
SELECT f.flow_id FROM flows AS f WHERE f.flow_id = ANY(ARRAY(
    SELECT d.flow_id FROM flows AS d WHERE d.deadline_at <= :now
    UNION ALL
    SELECT s.flow_id FROM flow_steps AS s WHERE s.due_at <= :now
))
LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: insert_plans
-- A plan that may be known already: the same content has the same id.
INSERT INTO plans (plan_id, document)
SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING;

-- name: insert_flows
INSERT INTO flows (
    flow_id, status, created_at, open_steps, error, finished_at, plan, parent, deadline_at, compensation, redrives
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::integer[], $5::text[], $6::bigint[], $7::text[], $8::text[],
    $9::bigint[], $10::text[], $11::integer[]
)
RETURNING flow_id, status, ordinal;

-- name: update_flows
-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled. What has failed or was
-- cancelled becomes active only by one more redrive.
-- Every flow of which anything changes is written: one without a status keeps all that it has, and its revision rises.
UPDATE flows SET
    status = coalesce(change.status, flows.status),
    open_steps = coalesce(change.open_steps, flows.open_steps),
    error = CASE WHEN change.status IS NULL THEN flows.error ELSE change.error END,
    finished_at = CASE WHEN change.status IS NULL THEN flows.finished_at ELSE change.finished_at END,
    deadline_at = CASE WHEN change.status IS NULL THEN flows.deadline_at ELSE change.deadline_at END,
    compensation = CASE WHEN change.status IS NULL THEN flows.compensation ELSE change.compensation END,
    parent = CASE WHEN change.status IS NULL THEN flows.parent ELSE change.parent END,
    redrives = coalesce(change.redrives, flows.redrives),
    revision = change.revision + 1
FROM unnest(
    $1::text[], $2::text[], $3::integer[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::integer[],
    $10::bigint[]
) AS change (
    flow_id, status, open_steps, error, finished_at, deadline_at, compensation, parent, redrives, revision
)
WHERE flows.flow_id = ANY(ARRAY[change.flow_id]) AND flows.revision = change.revision
    AND (flows.redrives < change.redrives AND flows.status <> 'completed' OR CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'compensating' THEN flows.status IN ('active', 'compensating')
    WHEN 'completed' THEN flows.status IN ('active')
    WHEN 'failed' THEN flows.status IN ('active', 'compensating')
    WHEN 'cancelled' THEN flows.status IN ('active', 'compensating')
    ELSE change.status IS NULL
END)
RETURNING flows.flow_id, flows.status;

-- name: move_flows
-- The same for flows that go on or complete and were never redriven, of which nothing else can change: most of all
-- updates.
UPDATE flows SET
    status = coalesce(change.status, flows.status),
    open_steps = coalesce(change.open_steps, flows.open_steps),
    finished_at = coalesce(change.finished_at, flows.finished_at),
    deadline_at = CASE WHEN change.status IS NULL THEN flows.deadline_at ELSE change.deadline_at END,
    revision = change.revision + 1
FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[])
AS change (flow_id, status, open_steps, finished_at, deadline_at, revision)
WHERE flows.flow_id = ANY(ARRAY[change.flow_id]) AND flows.revision = change.revision AND CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'completed' THEN flows.status IN ('active')
    ELSE change.status IS NULL
END
RETURNING flows.flow_id, flows.status;

-- name: insert_inputs
INSERT INTO flow_inputs (flow_id, goals, init, metadata, labels, options)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]);

-- name: insert_labels
INSERT INTO flow_labels (label, flow_id) SELECT * FROM unnest($1::text[], $2::text[]);

-- name: next_flow_clock
-- When the first flow must be looked at again: for its deadline, or for a step that waits.
SELECT min(clock.at) FROM (
    SELECT min(deadline_at) AS at FROM flows WHERE deadline_at IS NOT NULL
    UNION ALL
    SELECT min(due_at) FROM flow_steps WHERE due_at IS NOT NULL
) AS clock;

-- name: get_flow
SELECT f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.init, i.options,
    f.parent, f.deadline_at, f.compensation, p.document, f.pruned_at,
    (SELECT k.run_key FROM keyed_flows AS k WHERE k.flow_id = f.flow_id)
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id LEFT JOIN plans AS p ON p.plan_id = f.plan
WHERE f.flow_id = :flow_id;

-- name: outputs_of_flows
-- What the steps of some flows gave, in the order in which the flows are given.
-- OFFSET 0: found first, then put in order, instead of reading all in that order.
SELECT found.flow_id, found.outputs FROM (
    SELECT s.flow_id, s.outputs, s.finished_at, s.step_id, wanted.place
    FROM jsonb_array_elements_text(:flow_ids::jsonb) WITH ORDINALITY AS wanted (flow_id, place)
    JOIN flow_steps AS s ON s.flow_id = ANY(ARRAY[wanted.flow_id]) AND s.outputs IS NOT NULL OFFSET 0
) AS found
ORDER BY found.place, found.finished_at, found.step_id;

-- name: get_flow_result
SELECT flow_id, status, error FROM flows WHERE flow_id = :flow_id;

-- name: results_of_flows
-- State and outputs of some flows, in the order in which they are given: a row for each step that gave something, or one
-- row without outputs. Those of a flow that has not ended are left out unless so_far. OFFSET 0: see outputs_of_flows.
SELECT found.flow_id, found.status, found.error, found.outputs FROM (
    SELECT f.flow_id, f.status, f.error, s.outputs, s.finished_at, s.step_id, wanted.place
    FROM jsonb_array_elements_text(:flow_ids::jsonb) WITH ORDINALITY AS wanted (flow_id, place)
    JOIN flows AS f ON f.flow_id = ANY(ARRAY[wanted.flow_id])
    LEFT JOIN flow_steps AS s ON s.flow_id = ANY(ARRAY[f.flow_id]) AND s.outputs IS NOT NULL
        AND (:so_far::boolean OR f.status IN ('completed', 'failed', 'cancelled')) OFFSET 0
) AS found
ORDER BY found.place, found.finished_at, found.step_id;

-- name: flows_not_open
-- Which of some flows have ended, or do not exist.
SELECT wanted.flow_id
FROM jsonb_array_elements_text(:flow_ids::jsonb) WITH ORDINALITY AS wanted (flow_id, place)
LEFT JOIN flows AS f ON f.flow_id = ANY(ARRAY[wanted.flow_id])
WHERE f.flow_id IS NULL OR f.status IN ('completed', 'failed', 'cancelled') ORDER BY wanted.place;

-- name: list_flows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent, (SELECT k.run_key FROM keyed_flows AS k WHERE k.flow_id = f.flow_id)
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE (:status::text IS NULL OR f.status = :status)
    AND f.ordinal < coalesce(:before::bigint, 9223372036854775807)
    AND (:since::bigint IS NULL OR f.created_at >= :since)
    AND (:label::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: list_open_flows
-- The same for one status that few flows have: by the table of those that have not completed, instead of all flows.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent, (SELECT k.run_key FROM keyed_flows AS k WHERE k.flow_id = f.flow_id)
FROM open_flows AS o
JOIN flows AS f ON f.flow_id = ANY(ARRAY[o.flow_id]) JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE o.status = :status
    AND o.ordinal < coalesce(:before::bigint, 9223372036854775807)
    AND (:since::bigint IS NULL OR f.created_at >= :since)
    AND (:label::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal
    ))
ORDER BY o.ordinal DESC LIMIT :limit;

-- name: flow_exists
SELECT 1 FROM flows WHERE flow_id = :flow_id;
