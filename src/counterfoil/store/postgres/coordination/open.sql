-- The tables of what is open, which only a store of several nodes needs. They are kept in step with flows and work in
-- the statement that writes these: each takes what the write beside it, whose name it uses, has returned, by keys (see
-- sql/README.md).

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
