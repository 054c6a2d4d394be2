-- Locks, and what became of a commit whose answer was lost. Only a store of several nodes needs them.

-- name: lock_flows
-- The locks of all flows that a batch will look at, by their own ids or by those of their work, in the order of their
-- ids, so that two batches never wait for each other; each with its revision.
SELECT f.flow_id, f.revision FROM flows AS f
WHERE f.flow_id = ANY($1::text[])
    OR f.flow_id = ANY(ARRAY(SELECT w.flow_id FROM work AS w WHERE w.work_id = ANY($2::text[])))
ORDER BY f.flow_id FOR UPDATE;

-- name: lock_calls
-- The locks of cancel calls, in the order of their ids.
SELECT c.call_id FROM cancel_calls AS c WHERE c.call_id = ANY($1::text[]) ORDER BY c.call_id FOR UPDATE;

-- name: lock_schedules
-- The locks of schedules, in the order of their ids; which there are.
SELECT s.schedule_id FROM schedules AS s WHERE s.schedule_id = ANY($1::text[]) ORDER BY s.schedule_id FOR UPDATE;

-- name: lock_new_schedules
-- The right to make schedules that there were not: one batch at a time, for what is not there cannot be locked.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.schedules', 0));

-- name: try_lock_new_schedules
-- The same without waiting: whether it could be had.
SELECT pg_try_advisory_xact_lock(hashtextextended('counterfoil.schedules', 0));

-- name: lock_steps
-- The right to count what is out of a step, or was sent lately, and then to send more, in the order of their ids; held
-- until the commit.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.parallelism.' || step_id, 0))
FROM (SELECT unnest($1::text[]) AS step_id ORDER BY 1) AS wanted;

-- name: try_lock_steps
-- The same without waiting: whether all of them could be had.
SELECT coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('counterfoil.parallelism.' || step_id, 0))), TRUE)
FROM (SELECT unnest($1::text[]) AS step_id ORDER BY 1) AS wanted;

-- name: lock_register
-- The right to change which version of a step is current: one batch at a time, for its rows are in any order.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.register', 0));

-- name: lock_keys
-- The right to give keys away, in the order of their ids; held until the commit.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.key.' || key_id, 0))
FROM (SELECT unnest($1::text[]) AS key_id ORDER BY 1) AS wanted;

-- name: try_lock_keys
-- The same without waiting: whether all of them could be had.
SELECT coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('counterfoil.key.' || key_id, 0))), TRUE)
FROM (SELECT unnest($1::text[]) AS key_id ORDER BY 1) AS wanted;

-- name: lock_dedup
-- The right to change the owners of keys that work items share, in the order of their ids; held until the commit.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.dedup.' || dedup_id, 0))
FROM (SELECT unnest($1::text[]) AS dedup_id ORDER BY 1) AS wanted;

-- name: try_lock_dedup
-- The same without waiting: whether all of them could be had.
SELECT coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('counterfoil.dedup.' || dedup_id, 0))), TRUE)
FROM (SELECT unnest($1::text[]) AS dedup_id ORDER BY 1) AS wanted;

-- name: lock_hook_tokens
-- The right to change the owners of hook tokens, in the order of their ids; held until the commit.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.hook.' || token_id, 0))
FROM (SELECT unnest($1::text[]) AS token_id ORDER BY 1) AS wanted;

-- name: try_lock_hook_tokens
-- The same without waiting: whether all of them could be had.
SELECT coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('counterfoil.hook.' || token_id, 0))), TRUE)
FROM (SELECT unnest($1::text[]) AS token_id ORDER BY 1) AS wanted;

-- name: lock_deliveries
-- The locks of deliveries, in the order of their ids.
SELECT d.delivery_id FROM deliveries AS d WHERE d.delivery_id = ANY($1::text[]) ORDER BY d.delivery_id FOR UPDATE;

-- name: lock_controls
-- The right to change policies and subscriptions, and their revision.
SELECT revision FROM controls FOR UPDATE;

-- name: find_entry
-- Whether the journal holds this very entry, under this number if there is one: how a commit in doubt is read back.
SELECT count(*) FROM journal
WHERE flow_id = $1 AND work_id IS NOT DISTINCT FROM $2 AND at = $3 AND events = $4 AND coalesce($5::bigint, seq) = seq;

-- name: raise_revision
-- A statement that counts on the revision of this flow has ended, or will never write anything.
UPDATE flows SET revision = revision + 1 WHERE flow_id = $1;
