-- Unknown outcomes, and the keys whose results work items share.

-- name: load_reconciliations
-- What is known of some work items whose outcome is, or was, unknown.
SELECT
    r.work_id, r.flow_id, r.step_id, r.hold, r.cause, r.attempt, r.since, r.due_at, r.probes, r.probed_at,
    r.probe_state, r.granted
FROM reconciliations AS r WHERE r.work_id = ANY($1::text[]);

-- name: load_dedup
-- Some keys, with their owner or result.
SELECT
    d.dedup_id, d.step_id, d.idempotency_key, d.state, d.work_id, d.flow_id, d.outcome, d.recorded_at, d.expires_at,
    d.waiting, d.wake_at
FROM dedup_records AS d WHERE d.dedup_id = ANY($1::text[]);

-- name: load_waiters
-- Work items that wait for a key.
SELECT
    w.work_id, w.flow_id, w.dedup_id, w.since
FROM dedup_waiters AS w WHERE w.work_id = ANY($1::text[]);

-- name: put_reconciliations
-- An unknown outcome, new or changed.
INSERT INTO reconciliations (
    work_id, flow_id, step_id, hold, cause, attempt, since, due_at, probes, probed_at, probe_state, granted
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[],
    $9::integer[], $10::bigint[], $11::text[], $12::integer[]
)
ON CONFLICT (work_id) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, hold = excluded.hold, cause = excluded.cause,
    attempt = excluded.attempt, since = excluded.since, due_at = excluded.due_at, probes = excluded.probes,
    probed_at = excluded.probed_at, probe_state = excluded.probe_state, granted = excluded.granted;

-- name: put_dedup
-- A key with its owner or result, new or changed.
INSERT INTO dedup_records (
    dedup_id, step_id, idempotency_key, state, work_id, flow_id, outcome, recorded_at, expires_at, waiting, wake_at
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[],
    $10::integer[], $11::bigint[]
)
ON CONFLICT (dedup_id) DO UPDATE SET
    step_id = excluded.step_id, idempotency_key = excluded.idempotency_key, state = excluded.state,
    work_id = excluded.work_id, flow_id = excluded.flow_id, outcome = excluded.outcome,
    recorded_at = excluded.recorded_at, expires_at = excluded.expires_at, waiting = excluded.waiting,
    wake_at = excluded.wake_at;

-- name: put_waiters
-- A work item begins to wait for a key.
INSERT INTO dedup_waiters (
    work_id, flow_id, dedup_id, since
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::bigint[]
)
ON CONFLICT (work_id) DO UPDATE SET
    flow_id = excluded.flow_id, dedup_id = excluded.dedup_id, since = excluded.since;

-- name: delete_reconciliations
DELETE FROM reconciliations WHERE work_id = ANY($1::text[]);

-- name: delete_dedup
DELETE FROM dedup_records WHERE dedup_id = ANY($1::text[]);

-- name: delete_waiters
DELETE FROM dedup_waiters WHERE work_id = ANY($1::text[]);

-- name: find_due_probes
-- Unknown outcomes whose status_url is to be asked now, the longest due first.
SELECT r.work_id FROM reconciliations AS r JOIN flows AS f ON f.flow_id = ANY(ARRAY[r.flow_id])
WHERE r.due_at <= :now ORDER BY r.due_at LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: next_probe
SELECT min(due_at) FROM reconciliations WHERE due_at IS NOT NULL;

-- name: find_waking
-- Work items that can go on because their key has a result, or no owner: then only the one that has waited longest.
SELECT w.work_id, w.flow_id, w.dedup_id, w.since
FROM dedup_records AS d JOIN dedup_waiters AS w ON w.dedup_id = ANY(ARRAY[d.dedup_id]) JOIN flows AS f ON f.flow_id = ANY(ARRAY[w.flow_id])
WHERE d.wake_at IS NOT NULL AND (d.state <> 'free' OR NOT EXISTS (
        SELECT 1 FROM dedup_waiters AS earlier
        WHERE earlier.dedup_id = w.dedup_id AND (earlier.since, earlier.work_id) < (w.since, w.work_id)
))
ORDER BY d.wake_at, w.since, w.work_id LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: next_waking
SELECT min(wake_at) FROM dedup_records WHERE wake_at IS NOT NULL;

-- name: find_forgettable
-- Keys whose window has passed, the longest ago first.
SELECT d.dedup_id FROM dedup_records AS d WHERE d.expires_at <= :now ORDER BY d.expires_at LIMIT :limit;

-- name: next_forgetting
-- When the next key is forgotten: of work items, or of tools.
SELECT min(due) FROM (
    SELECT min(expires_at) AS due FROM dedup_records WHERE expires_at IS NOT NULL
    UNION ALL SELECT min(forget_at) FROM reservations WHERE forget_at IS NOT NULL
) AS forgetting;

-- name: get_reconciliation
SELECT r.since, r.work_id AS entry_id, r.work_id, r.flow_id, r.step_id, r.hold, r.cause, r.attempt, r.probed_at,
    r.probe_state, r.due_at, w.idempotency_key, w.arguments, w.status, v.definition, i.init,
    NULL::text AS tool, NULL::text AS effect_key, NULL::text AS holder
FROM reconciliations AS r
JOIN work AS w ON w.work_id = ANY(ARRAY[r.work_id])
LEFT JOIN step_versions AS v ON v.version = ANY(ARRAY[w.version])
LEFT JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[w.flow_id])
WHERE r.work_id = :work_id;

-- name: list_reconciliations
-- The reconciliation queue, the longest waiting first: work items, and lapsed reservations of irreversible effects, which
-- belong to no step. Each filter is off while its parameter is null.
SELECT * FROM (
    SELECT r.since, r.work_id AS entry_id, r.work_id, r.flow_id, r.step_id, r.hold, r.cause, r.attempt, r.probed_at,
        r.probe_state, r.due_at, w.idempotency_key, w.arguments, w.status, v.definition, i.init,
        NULL::text AS tool, NULL::text AS effect_key, NULL::text AS holder
    FROM reconciliations AS r
    JOIN work AS w ON w.work_id = ANY(ARRAY[r.work_id])
    LEFT JOIN step_versions AS v ON v.version = ANY(ARRAY[w.version])
    LEFT JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[w.flow_id])
    WHERE r.hold IS NOT NULL
        AND (:after_since::bigint IS NULL OR (r.since, r.work_id) > (:after_since::bigint, :after_work::text))
        AND (:step_id::text IS NULL OR r.step_id = :step_id)
        AND (:hold::text IS NULL OR r.hold = :hold)
        AND (:since::bigint IS NULL OR r.since >= :since)
    ORDER BY r.since, r.work_id LIMIT :limit
) AS items
UNION ALL
SELECT * FROM (
    SELECT e.expires_at, e.effect_id, NULL, NULL, NULL, 'irreversible', NULL, e.fence, NULL::bigint, NULL, NULL::bigint,
        e.effect_key, NULL, e.state, NULL, NULL, e.tool, e.effect_key, e.holder
    FROM reservations AS e
    WHERE e.state = 'pending' AND e.effect_class = 'irreversible' AND e.expires_at <= :now::bigint
        AND (:after_since::bigint IS NULL OR (e.expires_at, e.effect_id) > (:after_since::bigint, :after_work::text))
        AND :step_id::text IS NULL
        AND coalesce(:hold::text, 'irreversible') = 'irreversible'
        AND (:since::bigint IS NULL OR e.expires_at >= :since)
    ORDER BY e.expires_at, e.effect_id LIMIT :limit
) AS effects
ORDER BY 1, 2 LIMIT :limit;

-- name: reconciliations_by_hold
-- How many items and lapsed reservations wait to be settled, and since when the oldest does, by their hold.
SELECT hold, count(*), min(since) FROM reconciliations WHERE hold IS NOT NULL GROUP BY hold
UNION ALL
SELECT 'irreversible', count(*), min(expires_at) FROM reservations
WHERE state = 'pending' AND effect_class = 'irreversible' AND expires_at <= :now::bigint HAVING count(*) > 0;

-- name: awaited_items
-- Of some work items that wait for the result of another one, which one that is, and in which flow each waits.
SELECT w.work_id, d.work_id, w.flow_id FROM dedup_waiters AS w JOIN dedup_records AS d ON d.dedup_id = ANY(ARRAY[w.dedup_id])
WHERE w.work_id = ANY(ARRAY(SELECT jsonb_array_elements_text(:work_ids::jsonb))) AND d.work_id IS NOT NULL;
