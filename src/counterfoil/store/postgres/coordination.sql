-- Named queries that only a store of several nodes needs: locks, leases, and what became of a commit.

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
-- The right to give keys to somebody, in the order of their ids; held until the commit.
SELECT pg_advisory_xact_lock(hashtextextended('counterfoil.key.' || key_id, 0))
FROM (SELECT unnest($1::text[]) AS key_id ORDER BY 1) AS wanted;

-- name: try_lock_keys
-- The same without waiting: whether all of them could be had.
SELECT coalesce(bool_and(pg_try_advisory_xact_lock(hashtextextended('counterfoil.key.' || key_id, 0))), TRUE)
FROM (SELECT unnest($1::text[]) AS key_id ORDER BY 1) AS wanted;

-- name: lock_deliveries
-- The locks of deliveries, in the order of their ids.
SELECT d.delivery_id FROM deliveries AS d WHERE d.delivery_id = ANY($1::text[]) ORDER BY d.delivery_id FOR UPDATE;

-- name: lock_controls
-- The right to change policies and subscriptions, and their revision.
SELECT revision FROM controls FOR UPDATE;

-- name: check_leases
-- Which of some nodes may send what they claim: those whose lease has not lapsed.
SELECT n.node_id FROM nodes AS n WHERE n.node_id = ANY($1::text[]) AND n.lease_until > clock_timestamp();

-- name: join_nodes
-- A lease for a new node; forgets nodes that have been gone for a day.
WITH forgotten AS (DELETE FROM nodes WHERE lease_until < clock_timestamp() - INTERVAL '1 day')
INSERT INTO nodes (node_id, joined_at, lease_until)
VALUES ($1, clock_timestamp(), clock_timestamp() + $2::bigint * INTERVAL '1 millisecond');

-- name: renew_lease
-- Prolong a lease that has not lapsed yet; no row: it has, and stays so. The time is asked after the row was locked:
-- whoever found the lease lapsed (find_orphaned) had that lock before.
WITH mine AS MATERIALIZED (SELECT n.node_id FROM nodes AS n WHERE n.node_id = $1 FOR UPDATE),
asked AS MATERIALIZED (SELECT mine.node_id, clock_timestamp() AS at FROM mine)
UPDATE nodes SET lease_until = asked.at + $2::bigint * INTERVAL '1 millisecond'
FROM asked WHERE nodes.node_id = asked.node_id AND nodes.lease_until > asked.at
RETURNING (SELECT count(*) FROM nodes AS n WHERE n.node_id <> $1 AND n.lease_until > clock_timestamp());

-- name: probe_write
-- A write that says nothing new: PostgreSQL makes a new version of the row and flushes its log all the same.
UPDATE nodes SET joined_at = joined_at WHERE node_id = $1 RETURNING node_id;

-- name: leave_nodes
-- Give a lease back: whatever its holder left behind is anybody's at once.
UPDATE nodes SET lease_until = clock_timestamp() WHERE node_id = $1 AND lease_until > clock_timestamp();

-- name: begin_signing
-- The first secret that is ever noted has signed what a database of an earlier version holds.
INSERT INTO receipt_checks (check_value, signs_from, signs_until)
VALUES ($1, CASE WHEN EXISTS (SELECT 1 FROM receipt_checks) THEN $2::bigint ELSE 0 END, $3)
ON CONFLICT (check_value) DO UPDATE
SET signs_until = greatest(receipt_checks.signs_until, excluded.signs_until);

-- name: end_signing
-- Secrets that nodes no longer accept, and, of a copied database, the one of the engine that was stopped for it.
WITH dropped AS (DELETE FROM receipt_checks WHERE check_value = ANY($1::text[]))
UPDATE receipt_checks SET signs_until = $2 WHERE signs_until IS NULL AND check_value <> ALL($1::text[]);

-- name: go_on_signing
UPDATE receipt_checks SET signs_until = greatest(signs_until, $2) WHERE check_value = $1;

-- name: find_entry
-- Whether the journal holds this very entry, under this number if there is one: how a commit in doubt is read back.
SELECT count(*) FROM journal
WHERE flow_id = $1 AND work_id IS NOT DISTINCT FROM $2 AND at = $3 AND events = $4 AND coalesce($5::bigint, seq) = seq;

-- name: raise_revision
-- A statement that counts on the revision of this flow has ended, or will never write anything.
UPDATE flows SET revision = revision + 1 WHERE flow_id = $1;

-- What follows from writing flows and work, in the same statement: the tables of what is open are kept in step. Each
-- takes what the write beside it, whose name it uses, has returned, by keys (see queries.sql).

-- name: open_new_flows
INSERT INTO open_flows (flow_id, status, ordinal)
SELECT n.flow_id, n.status, n.ordinal FROM insert_flows AS n WHERE n.status <> 'completed';

-- name: follow_flows
UPDATE open_flows AS o SET status = u.status
FROM update_flows AS u WHERE o.flow_id = ANY(ARRAY[u.flow_id]) AND u.status <> 'completed' AND u.status <> o.status;

-- name: close_flows
DELETE FROM open_flows AS o
WHERE o.flow_id = ANY(ARRAY(SELECT u.flow_id FROM update_flows AS u WHERE u.status = 'completed'));

-- name: close_moved_flows
DELETE FROM open_flows AS o
WHERE o.flow_id = ANY(ARRAY(SELECT m.flow_id FROM move_flows AS m WHERE m.status = 'completed'));

-- name: forget_flows
DELETE FROM open_flows AS o WHERE o.flow_id = ANY(ARRAY(SELECT p.flow_id FROM prune_flows AS p));

-- name: open_new_work
INSERT INTO open_work (
    work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal
)
SELECT n.work_id, n.flow_id, n.step_id, n.version, n.lane, n.status, n.due_at, n.sent_at, n.owner, n.recorded_at,
    n.ordinal
FROM insert_work AS n WHERE n.status NOT IN ('succeeded', 'cancelled');

-- name: follow_work
UPDATE open_work AS o SET
    status = u.status, due_at = u.due_at, sent_at = u.sent_at, owner = u.owner, recorded_at = u.recorded_at
FROM update_work AS u WHERE o.work_id = ANY(ARRAY[u.work_id]) AND u.status NOT IN ('succeeded', 'cancelled');

-- name: close_work
DELETE FROM open_work AS o
WHERE o.work_id = ANY(ARRAY(SELECT u.work_id FROM update_work AS u WHERE u.status IN ('succeeded', 'cancelled')));

-- name: close_ended_work
DELETE FROM open_work AS o WHERE o.work_id = ANY(ARRAY(SELECT e.work_id FROM end_work AS e));

-- name: forget_work
DELETE FROM open_work AS o WHERE o.work_id = ANY(ARRAY(SELECT p.work_id FROM prune_work AS p));

-- name: fill_open_flows
-- All of it anew, where flows and work came from elsewhere.
INSERT INTO open_flows (flow_id, status, ordinal)
SELECT flow_id, status, ordinal FROM flows WHERE status <> 'completed';

-- name: fill_open_work
INSERT INTO open_work (
    work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal
)
SELECT work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal
FROM work WHERE status NOT IN ('succeeded', 'cancelled');

-- name: doctor_open_flows
-- Flows of which the table of open ones says something else than their own row.
SELECT coalesce(f.flow_id, o.flow_id)
FROM (SELECT flow_id, status, ordinal FROM flows WHERE status <> 'completed') AS f
FULL JOIN open_flows AS o ON o.flow_id = f.flow_id
WHERE (o.status, o.ordinal) IS DISTINCT FROM (f.status, f.ordinal);

-- name: doctor_open_work
-- The same for work items, each with its flow.
SELECT coalesce(w.flow_id, o.flow_id), coalesce(w.work_id, o.work_id)
FROM (SELECT * FROM work WHERE status NOT IN ('succeeded', 'cancelled')) AS w
FULL JOIN open_work AS o ON o.work_id = w.work_id
WHERE (o.flow_id, o.step_id, o.version, o.lane, o.status, o.due_at, o.sent_at, o.owner, o.recorded_at, o.ordinal)
    IS DISTINCT FROM
    (w.flow_id, w.step_id, w.version, w.lane, w.status, w.due_at, w.sent_at, w.owner, w.recorded_at, w.ordinal);
