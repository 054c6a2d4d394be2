-- Flows, what they were started with, and their plans.

-- name: load_flows
-- Flows by id.
SELECT json_group_array(json_array(
    f.flow_id, f.status, f.created_at, f.open_steps, f.error, f.finished_at, f.plan, f.parent, f.deadline_at, f.compensation,
    f.redrives
))
FROM json_each(?) AS wanted CROSS JOIN flows AS f ON f.flow_id = wanted.value;

-- name: load_plans
-- Plans by id.
SELECT json_group_array(json_array(p.plan_id, p.document))
FROM json_each(?) AS wanted CROSS JOIN plans AS p ON p.plan_id = wanted.value;

-- name: load_inputs
-- What some flows were started with.
SELECT json_group_array(json_array(i.flow_id, i.goals, i.init, i.metadata, i.labels, i.options))
FROM json_each(?) AS wanted CROSS JOIN flow_inputs AS i ON i.flow_id = wanted.value;

-- name: find_due_flows
-- Flows whose deadline has passed, or a step of which waits no longer.
SELECT flow_id FROM flows WHERE deadline_at <= :now
UNION
SELECT flow_id FROM flow_steps WHERE due_at <= :now
LIMIT :limit;

-- name: insert_plans
-- A plan that may be known already: the same content has the same id.
INSERT INTO plans (plan_id, document)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING;

-- name: insert_flows
INSERT INTO flows (
    flow_id, status, created_at, open_steps, error, finished_at, plan, parent, deadline_at, compensation, redrives
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: update_flows
-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled. What has failed or was
-- cancelled becomes active only by one more redrive.
UPDATE flows SET
    status = change.status, open_steps = change.open_steps, error = change.error, finished_at = change.finished_at,
    deadline_at = change.deadline_at, compensation = change.compensation, parent = change.parent,
    redrives = change.redrives
FROM (
    WITH change (
        flow_id, status, open_steps, error, finished_at, deadline_at, compensation, parent, redrives
    ) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flows.flow_id = change.flow_id
    AND (flows.redrives < change.redrives AND flows.status <> 'completed' OR CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'compensating' THEN flows.status IN ('active', 'compensating')
    WHEN 'completed' THEN flows.status IN ('active')
    WHEN 'failed' THEN flows.status IN ('active', 'compensating')
    WHEN 'cancelled' THEN flows.status IN ('active', 'compensating')
END);

-- name: move_flows
-- The same for flows that go on or complete and were never redriven, of which nothing else can change: most of all
-- updates.
UPDATE flows SET
    status = change.status, open_steps = change.open_steps, finished_at = change.finished_at,
    deadline_at = change.deadline_at
FROM (
    WITH change (flow_id, status, open_steps, finished_at, deadline_at) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flows.flow_id = change.flow_id AND CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'completed' THEN flows.status IN ('active')
END;

-- name: insert_inputs
INSERT INTO flow_inputs (flow_id, goals, init, metadata, labels, options)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: insert_labels
INSERT INTO flow_labels (label, flow_id)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: next_flow_clock
-- When the first flow must be looked at again: for its deadline, or for a step that waits.
SELECT min(at) FROM (
    SELECT min(deadline_at) AS at FROM flows WHERE deadline_at IS NOT NULL
    UNION ALL
    SELECT min(due_at) FROM flow_steps WHERE due_at IS NOT NULL
);

-- name: get_flow
SELECT f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.init, i.options,
    f.parent, f.deadline_at, f.compensation, p.document, f.pruned_at,
    (SELECT k.run_key FROM keyed_flows AS k WHERE k.flow_id = f.flow_id)
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id LEFT JOIN plans AS p ON p.plan_id = f.plan
WHERE f.flow_id = :flow_id;

-- name: outputs_of_flows
-- What the steps of some flows gave, in the order in which the flows are given.
SELECT s.flow_id, s.outputs FROM json_each(:flow_ids) AS wanted
CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value AND s.outputs IS NOT NULL
ORDER BY wanted.key, s.finished_at, s.step_id;

-- name: get_flow_result
SELECT flow_id, status, error FROM flows WHERE flow_id = :flow_id;

-- name: results_of_flows
-- State and outputs of some flows, in the order in which they are given: a row for each step that gave something, or one
-- row without outputs. Those of a flow that has not ended are left out unless so_far.
SELECT f.flow_id, f.status, f.error, s.outputs FROM json_each(:flow_ids) AS wanted
CROSS JOIN flows AS f ON f.flow_id = wanted.value
LEFT JOIN flow_steps AS s ON s.flow_id = f.flow_id AND s.outputs IS NOT NULL
    AND (:so_far OR f.status IN ('completed', 'failed', 'cancelled'))
ORDER BY wanted.key, s.finished_at, s.step_id;

-- name: flows_not_open
-- Which of some flows have ended, or do not exist.
SELECT wanted.value FROM json_each(:flow_ids) AS wanted LEFT JOIN flows AS f ON f.flow_id = wanted.value
WHERE f.flow_id IS NULL OR f.status IN ('completed', 'failed', 'cancelled') ORDER BY wanted.key;

-- name: list_flows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent, (SELECT k.run_key FROM keyed_flows AS k WHERE k.flow_id = f.flow_id)
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE (:before IS NULL OR f.ordinal < :before)
    AND (:status IS NULL OR f.status = :status)
    AND (:since IS NULL OR f.created_at >= :since)
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal = 1
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: list_open_flows
-- The same for one status that few flows have: along the partial index instead of all flows.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent, (SELECT k.run_key FROM keyed_flows AS k WHERE k.flow_id = f.flow_id)
FROM flows AS f INDEXED BY flows_not_completed JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.status = :status AND f.status <> 'completed'
    AND (:before IS NULL OR f.ordinal < :before)
    AND (:since IS NULL OR f.created_at >= :since)
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal = 1
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: flow_exists
SELECT 1 FROM flows WHERE flow_id = :flow_id;
