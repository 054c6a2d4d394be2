-- Retention: finished flows go, wholly (prune_...) or without what they carried (empty_...). A table whose rows belong to
-- a flow, or carry payload, has a statement here, which its kind declares (store/kinds).

-- name: walk_flows
-- Flows in the order in which they were made; those that ended by the cutoff with the number of their work items.
SELECT f.ordinal, f.flow_id, f.created_at,
    CASE WHEN f.finished_at <= :cutoff AND (NOT :payloads::boolean OR f.pruned_at IS NULL) THEN (
        SELECT coalesce(sum(s.items), 0) FROM flow_steps AS s WHERE s.flow_id = f.flow_id
    ) END
FROM flows AS f WHERE f.ordinal > :after ORDER BY f.ordinal LIMIT :limit;

-- name: find_prunable
-- Those of some flows that ended by the cutoff, each with its labels; none with an unknown outcome to be settled. The
-- index of held outcomes is of no use here, and coalesce keeps the planner from it.
SELECT f.flow_id, i.labels
FROM flows AS f LEFT JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE f.flow_id = ANY(ARRAY(SELECT jsonb_array_elements_text(:flows::jsonb)))
    AND f.status IN ('completed', 'failed', 'cancelled') AND f.finished_at <= :cutoff
    AND (NOT :payloads::boolean OR f.pruned_at IS NULL)
    AND NOT EXISTS (
        SELECT 1 FROM reconciliations AS r WHERE r.flow_id = ANY(ARRAY[f.flow_id]) AND coalesce(r.hold, '') <> ''
    )
FOR UPDATE OF f SKIP LOCKED;

-- name: prune_calls
DELETE FROM cancel_calls WHERE call_id IN (SELECT w.work_id FROM work AS w WHERE w.flow_id = ANY($1::text[]));

-- name: prune_labels
DELETE FROM flow_labels AS l USING unnest($1::text[], $2::text[]) AS gone (label, flow_id)
WHERE l.label = gone.label AND l.flow_id = gone.flow_id;

-- name: prune_gates
DELETE FROM gates WHERE flow_id = ANY($1::text[]);

-- name: prune_approvals
DELETE FROM approvals WHERE flow_id = ANY($1::text[]);

-- name: prune_keys
-- A key of a step outlives its flow for as long as it is to be unique across workflows.
DELETE FROM key_owners AS k USING unnest($1::text[], $2::bigint[]) AS gone (flow_id, at)
WHERE k.flow_id = gone.flow_id AND (k.step_id IS NULL OR k.expires_at <= gone.at);

-- name: prune_keyed_flows
DELETE FROM keyed_flows WHERE flow_id = ANY($1::text[]);

-- name: prune_reconciliations
DELETE FROM reconciliations WHERE flow_id = ANY($1::text[]);

-- name: prune_waiters
DELETE FROM dedup_waiters WHERE flow_id = ANY($1::text[]);

-- name: prune_hooks
DELETE FROM hooks WHERE flow_id = ANY($1::text[]);

-- name: prune_hook_payloads
DELETE FROM hook_payloads WHERE flow_id = ANY($1::text[]);

-- name: prune_hook_deliveries
DELETE FROM hook_deliveries WHERE flow_id = ANY($1::text[]);

-- name: prune_deliveries
DELETE FROM deliveries WHERE flow_id = ANY($1::text[]);

-- name: prune_callbacks
DELETE FROM callbacks WHERE flow_id = ANY($1::text[]);

-- name: prune_work
DELETE FROM work WHERE flow_id = ANY($1::text[])
RETURNING work_id;

-- name: prune_steps
DELETE FROM flow_steps WHERE flow_id = ANY($1::text[]);

-- name: prune_inputs
DELETE FROM flow_inputs WHERE flow_id = ANY($1::text[]);

-- name: prune_journal
DELETE FROM journal WHERE flow_id = ANY($1::text[]);

-- name: prune_flows
DELETE FROM flows WHERE flow_id = ANY($1::text[]) AND status IN ('completed', 'failed', 'cancelled')
RETURNING flow_id;

-- name: empty_work
-- Of a result stays whether it was a success, of an error its code. The code is found as text, because PostgreSQL
-- cannot take apart JSON that has the character NUL somewhere; it is the first thing in every error.
UPDATE work SET
    message = NULL,
    arguments = NULL,
    result = CASE WHEN result IS NOT NULL THEN
        '{"success":' || CASE WHEN status = 'succeeded' THEN 'true' ELSE 'false' END
        || ',"outputs":{},"error":null,"pruned":true}'
    END,
    error = CASE WHEN error IS NOT NULL THEN
        '{"code":"' || coalesce(substring(error FROM '"code":"([A-Z0-9_]+)"'), 'UNKNOWN')
        || '","message":"no longer kept"}'
    END
WHERE flow_id = ANY($1::text[]);

-- name: empty_inputs
-- A flow that has lost its inputs cannot be redriven: the options tell.
UPDATE flow_inputs SET init = '{}', metadata = '{}', options = '{"pruned":true}' WHERE flow_id = ANY($1::text[]);

-- name: empty_steps
UPDATE flow_steps SET
    outputs = NULL,
    error = CASE WHEN error IS NOT NULL THEN
        '{"code":"' || coalesce(substring(error FROM '"code":"([A-Z0-9_]+)"'), 'UNKNOWN')
        || '","message":"no longer kept"}'
    END
WHERE flow_id = ANY($1::text[]);

-- name: empty_approvals
-- The decision and its reviewers stay; the arguments do not.
UPDATE approvals SET arguments = NULL WHERE flow_id = ANY($1::text[]);

-- name: empty_deliveries
-- An undelivered message is payload of the flow, too.
DELETE FROM deliveries WHERE flow_id = ANY($1::text[]);

-- name: empty_hooks
-- A token of a template holds inputs of the flow.
UPDATE hooks SET token = NULL WHERE flow_id = ANY($1::text[]);

-- name: empty_callbacks
-- Without its journal nothing tells which callbacks were accepted: the others go as well.
DELETE FROM callbacks WHERE flow_id = ANY($1::text[]);

-- name: empty_flows
UPDATE flows SET pruned_at = change.pruned_at, revision = flows.revision + 1
FROM unnest($1::text[], $2::bigint[]) AS change (flow_id, pruned_at)
WHERE flows.flow_id = change.flow_id AND flows.pruned_at IS NULL
    AND flows.status IN ('completed', 'failed', 'cancelled');
