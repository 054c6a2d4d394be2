-- Gates, workflows, and the owners of callers' keys.

-- name: load_gates
-- What the gate knows of some steps.
SELECT
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
FROM unnest($1::text[]) AS wanted (key) JOIN gates AS g
    ON g.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND g.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_keys
-- What some keys stand for.
SELECT k.key_id, k.flow_id, k.step_id, k.digest, k.created_at, k.expires_at FROM key_owners AS k WHERE k.key_id = ANY($1::text[]);

-- name: put_gates
-- What the gate knows of a step, new or changed.
INSERT INTO gates (
    flow_id, step_id, work_id, idempotency_key, gate_count, completion_count, first_at, last_at,
    decision, standing, decision_id, input_digest, approval_id, holder, completed_at, completed_work_id,
    facts
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::integer[], $7::bigint[], $8::bigint[],
    $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::text[],
    $17::text[]
)
ON CONFLICT (flow_id, step_id) DO UPDATE SET
    work_id = excluded.work_id, gate_count = excluded.gate_count, completion_count = excluded.completion_count,
    last_at = excluded.last_at, decision = excluded.decision, standing = excluded.standing,
    decision_id = excluded.decision_id, input_digest = excluded.input_digest, approval_id = excluded.approval_id,
    holder = excluded.holder, completed_at = excluded.completed_at, completed_work_id = excluded.completed_work_id,
    facts = excluded.facts;

-- name: put_keys
-- What a key stands for from now on.
INSERT INTO key_owners (key_id, flow_id, step_id, digest, created_at, expires_at)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]
)
ON CONFLICT (key_id) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, digest = excluded.digest,
    created_at = excluded.created_at, expires_at = excluded.expires_at;

-- name: list_gated_work
-- What agents were let run and have not reported, the oldest first: without what an agent has claimed at this moment.
SELECT w.ordinal, w.work_id, w.flow_id, w.step_id, w.item, w.status, w.attempt, w.due_at, w.deadline_at, w.hold,
    w.progress, w.message, w.result, w.error, w.created_at, w.sent_at, w.acknowledged_at, w.recorded_at,
    w.idempotency_key, w.redrive_of, w.undoes, w.child_flow_id
FROM open_work AS o JOIN work AS w ON w.work_id = ANY(ARRAY[o.work_id])
JOIN gates AS g ON g.flow_id = w.flow_id AND g.step_id = w.step_id AND g.work_id = w.work_id
WHERE o.version = 'gate' AND o.status IN ('active', 'not_completed')
    AND NOT (w.status = 'active' AND g.holder IS NOT NULL AND w.deadline_at > :now)
    AND (:after::bigint IS NULL OR o.ordinal > :after)
    AND (:step_id::text IS NULL OR o.step_id = :step_id)
ORDER BY o.ordinal LIMIT :limit;

-- name: get_gates
-- What the gate knows of the steps of a flow, in the order in which they were asked for, with their last completion: its
-- result where that begins with metadata, since results may be long, and its number.
SELECT g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts, w.status, w.deadline_at, w.attempt, w.error, a.status, a.expires_at, a.reviews,
    m.result, c.ordinal
FROM gates AS g JOIN work AS w ON w.work_id = ANY(ARRAY[g.work_id])
JOIN work AS c ON c.work_id = ANY(ARRAY[coalesce(g.completed_work_id, g.work_id)])
LEFT JOIN work AS m ON m.work_id = ANY(ARRAY[g.completed_work_id]) AND m.result LIKE '{"metadata":%'
LEFT JOIN approvals AS a ON a.approval_id = ANY(ARRAY[g.approval_id])
WHERE g.flow_id = :flow_id ORDER BY g.first_at, g.step_id;

-- name: list_workflows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options
FROM (
    SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at
    FROM flows AS f
    WHERE f.plan = 'cooperative'
        AND (:before::bigint IS NULL OR f.ordinal < :before)
        AND (:status::text IS NULL OR f.status = :status)
        AND (:source::text IS NULL OR EXISTS (
            SELECT 1 FROM flow_labels AS l WHERE l.label = :source AND l.flow_id = f.flow_id
        ))
        AND (:trace_id::text IS NULL OR EXISTS (
            SELECT 1 FROM flow_labels AS l WHERE l.label = :trace_id AND l.flow_id = f.flow_id
        ))
        AND (:label::text IS NULL OR EXISTS (
            SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
        ))
    ORDER BY f.ordinal DESC LIMIT :limit OFFSET :offset
) AS f JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
ORDER BY f.ordinal DESC;

-- name: count_workflows
-- How many there are, along the index of workflows.
SELECT count(*) FROM flows AS f WHERE f.plan = 'cooperative' AND (:status::text IS NULL OR f.status = :status);

-- name: count_labelled_workflows
-- The same with a label, and with two more if they are not null: along the index of the first label.
SELECT count(*) FROM flow_labels AS l JOIN flows AS f ON f.flow_id = ANY(ARRAY[l.flow_id])
WHERE l.label = :label AND coalesce(f.plan, '') = 'cooperative' AND (:status::text IS NULL OR f.status = :status)
    AND (:second::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS o WHERE o.label = :second AND o.flow_id = f.flow_id
    ))
    AND (:third::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS o WHERE o.label = :third AND o.flow_id = f.flow_id
    ));

-- name: get_workflow
-- By its id, never by the index of all workflows: hence the coalesce.
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options,
    f.pruned_at
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.flow_id = :flow_id AND coalesce(f.plan, '') = 'cooperative';
