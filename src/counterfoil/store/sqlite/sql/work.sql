-- Work items, cancel calls, rates and receipts.

-- name: load_work
-- Work items by id, each with its step in the flow and its flow.
SELECT json_group_array(json_array(
    w.work_id, w.flow_id, w.step_id, w.item, w.version, w.status, w.attempt, w.idempotency_key, w.lane, w.created_at,
    w.due_at, w.deadline_at, w.owner, w.first_sent_at, w.sent_at, w.acknowledged_at, w.progress, w.message, w.hold,
    w.result, w.error, w.recorded_at, w.arguments, w.redrive_of, w.undoes, w.child_flow_id,
    s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives,
    f.status, f.created_at, f.open_steps, f.error, f.finished_at, f.plan, f.parent, f.deadline_at, f.compensation,
    f.redrives
))
FROM json_each(?) AS wanted
CROSS JOIN work AS w ON w.work_id = wanted.value
CROSS JOIN flow_steps AS s ON s.flow_id = w.flow_id AND s.step_id = w.step_id
CROSS JOIN flows AS f ON f.flow_id = w.flow_id;

-- name: load_open_work
-- Ids of all open work of some flows.
SELECT json_group_array(w.work_id)
FROM json_each(?) AS wanted CROSS JOIN work AS w ON w.flow_id = wanted.value
WHERE w.status IN ('pending', 'held', 'active', 'not_completed');

-- name: load_step_work
-- Ids of all work of some steps in flows. The key of a step is its flow, a line feed, and its own id.
SELECT json_group_array(w.work_id)
FROM json_each(?) AS wanted CROSS JOIN work AS w
ON w.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND w.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: load_calls
-- Cancel calls by id.
SELECT json_group_array(json_array(c.call_id, c.flow_id, c.step_id, c.work_id, c.url, c.body, c.attempt, c.due_at))
FROM json_each(?) AS wanted CROSS JOIN cancel_calls AS c ON c.call_id = wanted.value;

-- name: count_active
-- How many items of some steps are out at this moment.
SELECT json_group_array(json_array(
    wanted.value,
    (SELECT count(*) FROM work AS w WHERE w.step_id = wanted.value AND w.status = 'active' AND w.version <> 'gate')
))
FROM json_each(?) AS wanted;

-- name: load_rates
-- When some steps were sent last.
SELECT json_group_array(json_array(r.step_id, r.most, r.sent))
FROM json_each(?) AS wanted CROSS JOIN step_rates AS r ON r.step_id = wanted.value;

-- name: load_gate_work
-- Ids of the work that the gates of some steps let through last. The key of a step is its flow, a line feed, its id.
SELECT json_group_array(g.work_id)
FROM json_each(?) AS wanted CROSS JOIN gates AS g
ON g.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND g.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: find_claimable
-- Work that may be sent now, in some lanes: the longest due of each lane, at most a lane's share of each.
SELECT w.work_id, w.flow_id
FROM json_each(:lanes) AS lane
CROSS JOIN work AS w ON w.ordinal IN (
    SELECT d.ordinal FROM work AS d
    WHERE d.lane = lane.value AND d.status IN ('pending', 'not_completed') AND d.due_at <= :now
    ORDER BY d.due_at LIMIT :share
)
LIMIT :limit;

-- name: find_waiting_items
-- Items of a step that are not released yet, in a range of items.
SELECT work_id FROM work
WHERE flow_id = :flow_id AND step_id = :step_id AND item >= :first AND item < :end
    AND status = 'pending' AND due_at IS NULL AND hold IS NULL
ORDER BY item;

-- name: find_failed_work
-- Work that has failed in a step that has, the longest ago first. Each filter is off while its parameter is null.
-- What an agent runs is not among it: the agent asks for another attempt itself.
-- An error's code is found in its text, be it its own or that of its cause: no quote stands in a string unescaped.
SELECT w.work_id, w.flow_id, w.step_id FROM work AS w
JOIN flow_steps AS s ON s.flow_id = w.flow_id AND s.step_id = w.step_id AND s.status = 'failed'
JOIN flows AS f ON f.flow_id = w.flow_id AND f.status IN ('failed', 'active')
WHERE w.status = 'failed' AND w.undoes IS NULL AND w.version <> 'gate'
    AND (:step_id IS NULL OR w.step_id = :step_id)
    AND (:error_code IS NULL OR instr(w.error, '"code":"' || :error_code || '"') > 0)
    AND (:since IS NULL OR w.recorded_at >= :since)
    AND (:until IS NULL OR w.recorded_at < :until)
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = w.flow_id
    ))
    AND NOT EXISTS (
        SELECT 1 FROM work AS newer WHERE newer.flow_id = w.flow_id AND newer.step_id = w.step_id
            AND newer.item = w.item AND newer.redrive_of = w.work_id
    )
ORDER BY w.recorded_at LIMIT :limit;

-- name: find_overdue
-- Active work whose clock has run out, the longest overdue first.
SELECT work_id FROM work WHERE status = 'active' AND due_at <= :now ORDER BY due_at LIMIT :limit;

-- name: find_orphaned
-- Work that a node was sending which is no longer there: with one process at a time, every other one. Two ranges of the
-- index instead of all of it.
SELECT work_id, owner FROM work WHERE owner < :owner OR owner > :owner LIMIT :limit;

-- name: next_lapse
-- In how many milliseconds the next lease of another node lapses: there is no other node.
SELECT NULL WHERE :owner IS NOT NULL;

-- name: find_calls
-- Cancel calls to be made now, the longest due first.
SELECT call_id FROM cancel_calls WHERE due_at <= :now ORDER BY due_at LIMIT :limit;

-- name: insert_work
INSERT INTO work (
    work_id, flow_id, step_id, item, version, status, attempt, idempotency_key, lane, created_at, due_at,
    deadline_at, owner, first_sent_at, sent_at, acknowledged_at, progress, message, hold, result, error, recorded_at,
    arguments, redrive_of, undoes, child_flow_id
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: update_work
-- The guard says what domain/states.py says: moves of a batch may bring open work to any state, and what is final stays.
UPDATE work SET
    status = change.status, attempt = change.attempt, due_at = change.due_at, deadline_at = change.deadline_at,
    owner = change.owner, first_sent_at = change.first_sent_at, sent_at = change.sent_at,
    acknowledged_at = change.acknowledged_at, progress = change.progress, message = change.message,
    hold = change.hold, result = change.result, error = change.error, recorded_at = change.recorded_at,
    child_flow_id = change.child_flow_id
FROM (
    WITH change (
        work_id, status, attempt, due_at, deadline_at, owner, first_sent_at, sent_at, acknowledged_at, progress, message,
        hold, result, error, recorded_at, child_flow_id
    ) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE work.work_id = change.work_id AND CASE change.status
    WHEN 'pending' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'held' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'active' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'not_completed' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'succeeded' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'failed' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'cancelled' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
END;

-- name: end_work
-- The same for items that were sent before and are done now, of which only the end can change: most of all updates.
UPDATE work SET
    status = change.status, result = change.result, error = NULL, recorded_at = change.recorded_at,
    due_at = NULL, deadline_at = NULL, owner = NULL, hold = NULL
FROM (
    WITH change (work_id, status, result, recorded_at) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE work.work_id = change.work_id AND CASE change.status
    WHEN 'succeeded' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'cancelled' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
END;

-- name: put_rates
-- When steps with a rate limit were sent last, in the place of what was known before.
INSERT INTO step_rates (step_id, most, sent)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (step_id) DO UPDATE SET most = excluded.most, sent = excluded.sent;

-- name: put_calls
-- A cancel call, new or to be tried again later.
INSERT INTO cancel_calls (call_id, flow_id, step_id, work_id, url, body, attempt, due_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (call_id) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at;

-- name: delete_calls
DELETE FROM cancel_calls WHERE call_id IN (VALUES :rows);

-- name: due_lanes
-- Every lane with something to send, and when its first item is due: one seek a lane, however much waits in it.
WITH RECURSIVE lanes (lane) AS (
    SELECT min(lane) FROM work WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(w.lane) FROM work AS w
        WHERE w.lane > lanes.lane AND w.status IN ('pending', 'not_completed') AND w.due_at IS NOT NULL
    )
    FROM lanes WHERE lanes.lane IS NOT NULL
)
SELECT lane, (
    SELECT min(w.due_at) FROM work AS w
    WHERE w.lane = lanes.lane AND w.status IN ('pending', 'not_completed') AND w.due_at IS NOT NULL
)
FROM lanes WHERE lane IS NOT NULL;

-- name: next_clock
-- When the first clock of active work runs out.
SELECT min(due_at) FROM work WHERE status = 'active';

-- name: next_call
SELECT min(due_at) FROM cancel_calls;

-- name: open_work_by_state
-- How much work is open, by state.
SELECT status, count(*) FROM work
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL GROUP BY status
UNION ALL
SELECT 'active', count(*) FROM work WHERE status = 'active'
UNION ALL
SELECT 'held', count(*) FROM work WHERE status = 'held';

-- name: oldest_waiting
-- For every step with work out, since when its oldest item waits: one seek a step.
WITH RECURSIVE waiting (step_id) AS (
    SELECT min(step_id) FROM work WHERE status = 'active' AND version <> 'gate'
    UNION ALL
    SELECT (
        SELECT min(w.step_id) FROM work AS w
        WHERE w.step_id > waiting.step_id AND w.status = 'active' AND w.version <> 'gate'
    )
    FROM waiting WHERE waiting.step_id IS NOT NULL
)
SELECT step_id, (
    SELECT min(w.sent_at) FROM work AS w
    WHERE w.step_id = waiting.step_id AND w.status = 'active' AND w.version <> 'gate'
)
FROM waiting WHERE step_id IS NOT NULL;

-- name: work_of_flow
SELECT ordinal, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
    result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of, undoes,
    child_flow_id
FROM work WHERE flow_id = :flow_id ORDER BY flow_id, step_id, item, ordinal;

-- name: get_work
SELECT ordinal, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
    result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of, undoes,
    child_flow_id
FROM work WHERE work_id = :work_id;

-- name: list_work
-- Oldest first. Each filter is off while its parameter is null.
SELECT ordinal, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
    result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of, undoes,
    child_flow_id
FROM work
WHERE (:after IS NULL OR ordinal > :after)
    AND (:status IS NULL OR status = :status)
    AND (:step_id IS NULL OR step_id = :step_id)
ORDER BY ordinal LIMIT :limit;

-- name: list_overdue_work
-- Open work whose time has come but that has not moved: by the partial indexes, so ended work costs nothing.
SELECT ordinal, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
    result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of, undoes,
    child_flow_id
FROM work
WHERE ordinal IN (
        SELECT ordinal FROM work WHERE status = 'active' AND due_at <= :now
        UNION ALL
        SELECT ordinal FROM work
        WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL AND due_at <= :now
    )
    AND (:after IS NULL OR ordinal > :after)
    AND (:status IS NULL OR status = :status)
    AND (:step_id IS NULL OR step_id = :step_id)
ORDER BY ordinal LIMIT :limit;

-- name: receipt_status
SELECT w.status, w.attempt, w.deadline_at, w.recorded_at FROM work AS w WHERE w.work_id = :work_id;

-- name: receipt_checks
SELECT check_value, signs_from, signs_until FROM receipt_checks ORDER BY signs_from, check_value;

-- name: receipts_out
-- Work of driven steps that was sent within a time and has no outcome yet, by the version of its step.
SELECT w.version, count(*) FROM work AS w
WHERE w.status IN ('active', 'not_completed', 'held') AND w.version <> 'gate'
    AND w.first_sent_at <= :until AND w.sent_at >= :since
GROUP BY w.version;
