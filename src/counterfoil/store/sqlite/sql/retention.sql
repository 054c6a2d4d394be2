-- Retention: finished flows go, wholly (prune_...) or without what they carried (empty_...). A table whose rows belong to
-- a flow, or carry payload, has a statement here, which its kind declares (store/kinds).

-- name: walk_flows
-- Flows in the order in which they were made; those that ended by the cutoff with the number of their work items.
SELECT f.ordinal, f.flow_id, f.created_at,
    CASE WHEN f.finished_at <= :cutoff AND (NOT :payloads OR f.pruned_at IS NULL) THEN (
        SELECT coalesce(sum(s.items), 0) FROM flow_steps AS s WHERE s.flow_id = f.flow_id
    ) END
FROM flows AS f WHERE f.ordinal > :after ORDER BY f.ordinal LIMIT :limit;

-- name: find_prunable
-- Those of some flows that ended by the cutoff, each with its labels; none with an unknown outcome to be settled.
SELECT f.flow_id, i.labels
FROM json_each(:flows) AS wanted
CROSS JOIN flows AS f ON f.flow_id = wanted.value
LEFT JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.status IN ('completed', 'failed', 'cancelled') AND f.finished_at <= :cutoff
    AND (NOT :payloads OR f.pruned_at IS NULL)
    AND NOT EXISTS (SELECT 1 FROM reconciliations AS r WHERE r.flow_id = f.flow_id AND r.hold IS NOT NULL);

-- name: prune_calls
DELETE FROM cancel_calls WHERE call_id IN (SELECT w.work_id FROM work AS w WHERE w.flow_id IN (VALUES :rows));

-- name: prune_labels
-- By way of a SELECT: SQLite looks through the whole table for rows that are compared with VALUES.
DELETE FROM flow_labels WHERE (label, flow_id) IN (SELECT column1, column2 FROM (VALUES :rows));

-- name: prune_gates
DELETE FROM gates WHERE flow_id IN (VALUES :rows);

-- name: prune_approvals
DELETE FROM approvals WHERE flow_id IN (VALUES :rows);

-- name: prune_keys
-- A key of a step outlives its flow for as long as it is to be unique across workflows.
DELETE FROM key_owners WHERE key_id IN (
    SELECT k.key_id FROM (VALUES :rows) AS gone CROSS JOIN key_owners AS k ON k.flow_id = gone.column1
    WHERE k.step_id IS NULL OR k.expires_at <= gone.column2
);

-- name: prune_keyed_flows
DELETE FROM keyed_flows WHERE flow_id IN (VALUES :rows);

-- name: prune_reconciliations
DELETE FROM reconciliations WHERE flow_id IN (VALUES :rows);

-- name: prune_waiters
DELETE FROM dedup_waiters WHERE flow_id IN (VALUES :rows);

-- name: prune_hooks
DELETE FROM hooks WHERE flow_id IN (VALUES :rows);

-- name: prune_hook_payloads
DELETE FROM hook_payloads WHERE flow_id IN (VALUES :rows);

-- name: prune_hook_deliveries
DELETE FROM hook_deliveries WHERE flow_id IN (VALUES :rows);

-- name: prune_deliveries
DELETE FROM deliveries WHERE flow_id IN (VALUES :rows);

-- name: prune_callbacks
DELETE FROM callbacks WHERE flow_id IN (VALUES :rows);

-- name: prune_work
DELETE FROM work WHERE flow_id IN (VALUES :rows);

-- name: prune_steps
DELETE FROM flow_steps WHERE flow_id IN (VALUES :rows);

-- name: prune_inputs
DELETE FROM flow_inputs WHERE flow_id IN (VALUES :rows);

-- name: prune_journal
DELETE FROM journal WHERE flow_id IN (VALUES :rows);

-- name: prune_flows
DELETE FROM flows WHERE flow_id IN (VALUES :rows) AND status IN ('completed', 'failed', 'cancelled');

-- name: empty_work
-- Of a result stays whether it was a success, of an error its code.
UPDATE work SET
    message = NULL,
    arguments = NULL,
    result = CASE WHEN result IS NOT NULL THEN
        '{"success":' || iif(status = 'succeeded', 'true', 'false') || ',"outputs":{},"error":null,"pruned":true}'
    END,
    error = CASE WHEN error IS NOT NULL THEN
        json_object('code', coalesce(error ->> '$.code', 'UNKNOWN'), 'message', 'no longer kept')
    END
WHERE flow_id IN (VALUES :rows);

-- name: empty_inputs
-- A flow that has lost its inputs cannot be redriven: the options tell.
UPDATE flow_inputs SET init = '{}', metadata = '{}', options = '{"pruned":true}' WHERE flow_id IN (VALUES :rows);

-- name: empty_steps
UPDATE flow_steps SET
    outputs = NULL,
    error = CASE WHEN error IS NOT NULL THEN
        json_object('code', coalesce(error ->> '$.code', 'UNKNOWN'), 'message', 'no longer kept')
    END
WHERE flow_id IN (VALUES :rows);

-- name: empty_approvals
-- The decision and its reviewers stay; the arguments do not.
UPDATE approvals SET arguments = NULL WHERE flow_id IN (VALUES :rows);

-- name: empty_deliveries
-- An undelivered message is payload of the flow, too.
DELETE FROM deliveries WHERE flow_id IN (VALUES :rows);

-- name: empty_hooks
-- A token of a template holds inputs of the flow.
UPDATE hooks SET token = NULL WHERE flow_id IN (VALUES :rows);

-- name: empty_callbacks
-- Without its journal nothing tells which callbacks were accepted: the others go as well.
DELETE FROM callbacks WHERE flow_id IN (VALUES :rows);

-- name: empty_flows
UPDATE flows SET pruned_at = change.pruned_at
FROM (WITH change (flow_id, pruned_at) AS (VALUES :rows) SELECT * FROM change) AS change
WHERE flows.flow_id = change.flow_id AND flows.pruned_at IS NULL
    AND flows.status IN ('completed', 'failed', 'cancelled');
