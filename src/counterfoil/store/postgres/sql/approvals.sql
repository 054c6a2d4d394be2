-- Approvals.

-- name: load_approvals
-- Approvals by id.
SELECT
    a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
FROM approvals AS a WHERE a.approval_id = ANY($1::text[]);

-- name: find_expired_approvals
-- Approvals that were not decided in time, the longest ago first, of flows that no other node has locked.
SELECT a.approval_id, a.flow_id FROM approvals AS a JOIN flows AS f ON f.flow_id = ANY(ARRAY[a.flow_id])
WHERE a.status = 'pending' AND a.expires_at <= :now ORDER BY a.expires_at LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: put_approvals
-- An approval, new or decided: what was decided stays so.
INSERT INTO approvals (
    approval_id, flow_id, step_id, work_id, attempt, digest, status, requested_at, expires_at,
    approvals, separate_requester, severity, requester, reason, policies, arguments, reviews,
    decided_at
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::bigint[], $9::bigint[],
    $10::integer[], $11::boolean[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[],
    $18::bigint[]
)
ON CONFLICT (approval_id) DO UPDATE SET
    status = excluded.status, reviews = excluded.reviews, decided_at = excluded.decided_at
WHERE approvals.status = 'pending';

-- name: next_approval
-- When the next approval expires.
SELECT min(expires_at) FROM approvals WHERE status = 'pending';

-- name: get_approval
SELECT a.ordinal, a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at FROM approvals AS a WHERE a.approval_id = :approval_id;

-- name: list_approvals
-- Oldest first. Each filter is off while its parameter is null.
SELECT a.ordinal, a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
FROM approvals AS a
WHERE (:after::bigint IS NULL OR a.ordinal > :after)
    AND (:status::text IS NULL OR a.status = :status)
    AND (:flow_id::text IS NULL OR a.flow_id = :flow_id)
ORDER BY a.ordinal LIMIT :limit;

-- name: list_pending_approvals
-- Oldest first, each with what names its flow and its step, and with the position of that in a workflow.
SELECT a.ordinal, a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at, i.options, i.goals, g.facts,
    (SELECT count(*) FROM gates AS o
        WHERE o.flow_id = g.flow_id AND (o.first_at < g.first_at OR o.first_at = g.first_at AND o.step_id < g.step_id))
FROM (
    SELECT * FROM approvals WHERE status = 'pending' ORDER BY ordinal LIMIT :limit OFFSET :offset
) AS a JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[a.flow_id])
LEFT JOIN gates AS g ON g.flow_id = a.flow_id AND g.step_id = a.step_id
ORDER BY a.ordinal;

-- name: count_pending_approvals
SELECT count(*) FROM approvals WHERE status = 'pending';
