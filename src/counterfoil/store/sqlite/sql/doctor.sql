-- What the doctor reads.

-- name: doctor_versions
SELECT version, step_id, definition FROM step_versions;

-- name: doctor_flows
SELECT ordinal, flow_id FROM flows WHERE ordinal > ? ORDER BY ordinal LIMIT ?;

-- name: doctor_steps
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value;

-- name: doctor_work
SELECT json_group_array(w.work_id) FROM json_each(?) AS wanted CROSS JOIN work AS w ON w.flow_id = wanted.value;

-- name: doctor_gates
SELECT json_group_array(json_array(
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
))
FROM json_each(?) AS wanted CROSS JOIN gates AS g ON g.flow_id = wanted.value;

-- name: doctor_approvals
SELECT json_group_array(json_array(
    a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
))
FROM json_each(?) AS wanted CROSS JOIN approvals AS a ON a.flow_id = wanted.value;

-- name: doctor_journal
SELECT j.flow_id, j.work_id, j.at, j.events
FROM json_each(?) AS wanted CROSS JOIN journal AS j ON j.flow_id = wanted.value ORDER BY j.seq;

-- name: doctor_lost_events
SELECT j.flow_id, count(*) FROM journal AS j
WHERE NOT EXISTS (SELECT 1 FROM flows AS f WHERE f.flow_id = j.flow_id) GROUP BY j.flow_id LIMIT 100;

-- name: doctor_pruned
-- Flows whose journal is gone.
SELECT json_group_array(f.flow_id)
FROM json_each(?) AS wanted CROSS JOIN flows AS f ON f.flow_id = wanted.value WHERE f.pruned_at IS NOT NULL;

-- name: doctor_reconciliations
SELECT json_group_array(json_array(
    r.work_id, r.flow_id, r.step_id, r.hold, r.cause, r.attempt, r.since, r.due_at, r.probes, r.probed_at,
    r.probe_state, r.granted
))
FROM json_each(?) AS wanted CROSS JOIN reconciliations AS r ON r.flow_id = wanted.value;

-- name: doctor_keys
-- Keys that work items share: what does not fit together, and why.
SELECT d.work_id, 'owner' FROM dedup_records AS d
WHERE d.state = 'pending' AND NOT EXISTS (
    SELECT 1 FROM work AS w WHERE w.work_id = d.work_id AND w.status IN ('pending', 'held', 'active', 'not_completed')
)
UNION ALL
SELECT n.work_id, 'waiter' FROM dedup_waiters AS n
WHERE NOT EXISTS (SELECT 1 FROM work AS w WHERE w.work_id = n.work_id AND w.status = 'pending' AND w.hold = 'dedup')
UNION ALL
SELECT w.work_id, 'lost' FROM work AS w
WHERE w.status = 'pending' AND w.hold = 'dedup' AND NOT EXISTS (
    SELECT 1 FROM dedup_waiters AS n JOIN dedup_records AS d ON d.dedup_id = n.dedup_id
    WHERE n.work_id = w.work_id AND (d.state = 'pending' OR d.wake_at IS NOT NULL)
)
LIMIT 100;

-- name: doctor_hooks
SELECT json_group_array(json_array(
    h.hook_id, h.flow_id, h.step_id, h.item, h.status, h.token_id, h.token, h.collect, h.created_at, h.work_id,
    h.received, h.size, h.enough, h.registered_at, h.deadline_at
))
FROM json_each(?) AS wanted CROSS JOIN hooks AS h ON h.flow_id = wanted.value;

-- name: doctor_hook_tokens
-- Tokens of hooks: what does not fit together, and why.
SELECT t.hook_id, 'owner' FROM hook_tokens AS t
WHERE NOT EXISTS (SELECT 1 FROM hooks AS h WHERE h.hook_id = t.hook_id AND h.token_id = t.token_id
    AND (h.status = 'waiting' OR (h.status = 'queued' AND t.wake_at IS NOT NULL)))
UNION ALL
SELECT h.hook_id, 'two' FROM hooks AS h
WHERE h.status = 'waiting' AND NOT EXISTS (
    SELECT 1 FROM hook_tokens AS t WHERE t.token_id = h.token_id AND t.hook_id = h.hook_id
)
UNION ALL
SELECT h.hook_id, 'lost' FROM hooks AS h
WHERE h.status = 'queued' AND NOT EXISTS (
    SELECT 1 FROM hook_tokens AS t WHERE t.token_id = h.token_id AND (
        t.hook_id = h.hook_id OR EXISTS (SELECT 1 FROM json_each(t.queue) AS q WHERE q.value ->> 0 = h.hook_id)
    )
)
UNION ALL
SELECT q.value ->> 0, 'queue' FROM hook_tokens AS t CROSS JOIN json_each(t.queue) AS q
WHERE NOT EXISTS (SELECT 1 FROM hooks AS h WHERE h.hook_id = q.value ->> 0 AND h.status = 'queued')
LIMIT 100;
