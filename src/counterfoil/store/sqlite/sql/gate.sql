-- Gates, workflows, and the owners of callers' keys.

-- name: load_gates
-- What the gate knows of some steps.
SELECT json_group_array(json_array(
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
))
FROM json_each(?) AS wanted CROSS JOIN gates AS g
ON g.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND g.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: load_keys
-- What some keys stand for.
SELECT json_group_array(json_array(
    k.key_id, k.flow_id, k.step_id, k.digest, k.created_at, k.expires_at
))
FROM json_each(?) AS wanted CROSS JOIN key_owners AS k ON k.key_id = wanted.value;

-- name: put_gates
-- What the gate knows of a step, new or changed.
INSERT INTO gates (
    flow_id, step_id, work_id, idempotency_key, gate_count, completion_count, first_at, last_at,
    decision, standing, decision_id, input_digest, approval_id, holder, completed_at, completed_work_id,
    facts
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (flow_id, step_id) DO UPDATE SET
    work_id = excluded.work_id, gate_count = excluded.gate_count, completion_count = excluded.completion_count,
    last_at = excluded.last_at, decision = excluded.decision, standing = excluded.standing,
    decision_id = excluded.decision_id, input_digest = excluded.input_digest, approval_id = excluded.approval_id,
    holder = excluded.holder, completed_at = excluded.completed_at, completed_work_id = excluded.completed_work_id,
    facts = excluded.facts;

-- name: put_keys
-- What a key stands for from now on.
INSERT INTO key_owners (key_id, flow_id, step_id, digest, created_at, expires_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (key_id) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, digest = excluded.digest,
    created_at = excluded.created_at, expires_at = excluded.expires_at;

-- name: list_gated_work
-- What agents were let run and have not reported, the oldest first: without what an agent has claimed at this moment.
SELECT w.ordinal, w.work_id, w.flow_id, w.step_id, w.item, w.status, w.attempt, w.due_at, w.deadline_at, w.hold,
    w.progress, w.message, w.result, w.error, w.created_at, w.sent_at, w.acknowledged_at, w.recorded_at,
    w.idempotency_key, w.redrive_of, w.undoes, w.child_flow_id
FROM work AS w JOIN gates AS g ON g.flow_id = w.flow_id AND g.step_id = w.step_id AND g.work_id = w.work_id
WHERE w.version = 'gate' AND w.status IN ('active', 'not_completed')
    AND NOT (w.status = 'active' AND g.holder IS NOT NULL AND w.deadline_at > :now)
    AND (:after IS NULL OR w.ordinal > :after)
    AND (:step_id IS NULL OR w.step_id = :step_id)
ORDER BY w.ordinal LIMIT :limit;

-- name: get_gates
-- What the gate knows of the steps of a flow, in the order in which they were asked for, with their last completion: its
-- result where that begins with metadata, since results may be long, and its number.
SELECT g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts, w.status, w.deadline_at, w.attempt, w.error, a.status, a.expires_at, a.reviews,
    m.result, c.ordinal
FROM gates AS g JOIN work AS w ON w.work_id = g.work_id
JOIN work AS c ON c.work_id = coalesce(g.completed_work_id, g.work_id)
LEFT JOIN work AS m ON m.work_id = g.completed_work_id AND m.result LIKE '{"metadata":%'
LEFT JOIN approvals AS a ON a.approval_id = g.approval_id
WHERE g.flow_id = :flow_id ORDER BY g.first_at, g.step_id;

-- name: list_workflows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options
FROM (
    SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at
    FROM flows AS f
    WHERE f.plan = 'cooperative'
        AND (:before IS NULL OR f.ordinal < :before)
        AND (:status IS NULL OR f.status = :status)
        AND (:source IS NULL OR EXISTS (
            SELECT 1 FROM flow_labels AS l WHERE l.label = :source AND l.flow_id = f.flow_id
        ))
        AND (:trace_id IS NULL OR EXISTS (
            SELECT 1 FROM flow_labels AS l WHERE l.label = :trace_id AND l.flow_id = f.flow_id
        ))
        AND (:label IS NULL OR EXISTS (
            SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
        ))
    ORDER BY f.ordinal DESC LIMIT :limit OFFSET :offset
) AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
ORDER BY f.ordinal DESC;

-- name: count_workflows
-- How many there are, along the index of workflows.
SELECT count(*) FROM flows AS f WHERE f.plan = 'cooperative' AND (:status IS NULL OR f.status = :status);

-- name: count_labelled_workflows
-- The same with a label, and with two more if they are not null: along the index of the first label.
SELECT count(*) FROM flow_labels AS l CROSS JOIN flows AS f ON f.flow_id = l.flow_id
WHERE l.label = :label AND f.plan = 'cooperative' AND (:status IS NULL OR f.status = :status)
    AND (:second IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS o WHERE o.label = :second AND o.flow_id = f.flow_id
    ))
    AND (:third IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS o WHERE o.label = :third AND o.flow_id = f.flow_id
    ));

-- name: get_workflow
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options,
    f.pruned_at
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.flow_id = :flow_id AND f.plan = 'cooperative';
