-- Run keys, and the flows that were started with one.

-- name: load_run_keys
-- Of each key, the flow that claimed it last.
SELECT json_group_array(json_array(k.flow_id, k.run_key, k.claim, k.digest, k.retain_ms, k.retain_failed))
FROM json_each(?) AS wanted CROSS JOIN keyed_flows AS k ON k.run_key = wanted.value AND k.claim = (
    SELECT max(c.claim) FROM keyed_flows AS c WHERE c.run_key = wanted.value
);

-- name: put_keyed_flows
-- A flow claims its key: for the first time, or again because it is redriven.
INSERT INTO keyed_flows (flow_id, run_key, claim, digest, retain_ms, retain_failed)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (flow_id) DO UPDATE SET claim = excluded.claim;

-- name: delete_keyed_flows
DELETE FROM keyed_flows WHERE flow_id IN (VALUES :rows);

-- name: list_keyed_flows
-- The flows of one run key, newest first. Each other filter is off while its parameter is null.
SELECT k.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent, k.run_key
FROM keyed_flows AS k JOIN flows AS f ON f.flow_id = k.flow_id JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE k.run_key = :run_key AND (:before IS NULL OR k.ordinal < :before)
    AND (:status IS NULL OR f.status = :status)
    AND (:since IS NULL OR f.created_at >= :since)
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal = 1
    ))
ORDER BY k.ordinal DESC LIMIT :limit;

-- name: doctor_run_keys
-- The run keys of some flows.
SELECT json_group_array(json_array(k.flow_id, k.run_key))
FROM json_each(?) AS wanted CROSS JOIN keyed_flows AS k ON k.flow_id = wanted.value;

-- name: doctor_key_owners
-- Run keys that do not fit the flows, and why: an open flow is the last one that claimed its key, so a key has one open
-- flow at most.
SELECT k.flow_id, 'several' FROM keyed_flows AS k JOIN flows AS f ON f.flow_id = k.flow_id
WHERE f.status IN ('active', 'compensating') AND EXISTS (
    SELECT 1 FROM keyed_flows AS later WHERE later.run_key = k.run_key AND later.claim > k.claim
)
UNION ALL
SELECT k.flow_id, 'lost' FROM keyed_flows AS k WHERE NOT EXISTS (SELECT 1 FROM flows AS f WHERE f.flow_id = k.flow_id)
LIMIT 100;
