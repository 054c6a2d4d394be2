-- Work items, cancel calls, rates and receipts.

-- name: load_work
-- Work items by id, each with its step in the flow and its flow; here also the flow's revision, last.
SELECT
    w.work_id, w.flow_id, w.step_id, w.item, w.version, w.status, w.attempt, w.idempotency_key, w.lane, w.created_at,
    w.due_at, w.deadline_at, w.owner, w.first_sent_at, w.sent_at, w.acknowledged_at, w.progress, w.message, w.hold,
    w.result, w.error, w.recorded_at, w.arguments, w.redrive_of, w.undoes, w.child_flow_id,
    s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives,
    f.status, f.created_at, f.open_steps, f.error, f.finished_at, f.plan, f.parent, f.deadline_at, f.compensation,
    f.redrives,
    f.revision
FROM work AS w
JOIN flow_steps AS s ON s.flow_id = ANY(ARRAY[w.flow_id]) AND s.step_id = w.step_id
JOIN flows AS f ON f.flow_id = ANY(ARRAY[w.flow_id])
WHERE w.work_id = ANY($1::text[]);

-- name: load_open_work
-- Ids of all open work of some flows.
SELECT w.work_id FROM work AS w
WHERE w.flow_id = ANY($1::text[]) AND w.status IN ('pending', 'held', 'active', 'not_completed');

-- name: load_step_work
-- Ids of all work of some steps in flows. The key of a step is its flow, a line feed, and its own id.
SELECT w.work_id
FROM unnest($1::text[]) AS wanted (key)
JOIN work AS w ON w.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND w.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_calls
-- Cancel calls by id.
SELECT c.call_id, c.flow_id, c.step_id, c.work_id, c.url, c.body, c.attempt, c.due_at
FROM cancel_calls AS c WHERE c.call_id = ANY($1::text[]);

-- name: count_active
-- How many items of some steps are out at this moment.
SELECT
    wanted.step_id,
    (SELECT count(*) FROM open_work AS w
    WHERE w.step_id = wanted.step_id AND w.status = 'active' AND w.version <> 'gate')
FROM unnest($1::text[]) AS wanted (step_id);

-- name: load_rates
-- When some steps were sent last.
SELECT r.step_id, r.most, r.sent FROM step_rates AS r WHERE r.step_id = ANY($1::text[]);

-- name: load_gate_work
-- Ids of the work that the gates of some steps let through last. The key of a step is its flow, a line feed, its id.
SELECT g.work_id
FROM unnest($1::text[]) AS wanted (key) JOIN gates AS g
    ON g.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND g.step_id = split_part(wanted.key, chr(10), 2);

-- name: find_claimable
-- Work that may be sent now, in some lanes: the longest due of each lane, at most a lane's share of each.
SELECT due.work_id, due.flow_id
FROM jsonb_array_elements_text(:lanes::jsonb) AS wanted (lane)
CROSS JOIN LATERAL (
    SELECT w.work_id, w.flow_id FROM open_work AS w JOIN flows AS f ON f.flow_id = ANY(ARRAY[w.flow_id])
    WHERE w.lane = wanted.lane AND w.status IN ('pending', 'not_completed') AND w.due_at IS NOT NULL
        AND w.due_at <= :now
    ORDER BY w.due_at LIMIT :share FOR UPDATE OF f SKIP LOCKED
) AS due
LIMIT :limit;

-- name: find_waiting_items
-- Items of a step that are not released yet, in a range of items. The batch that asks holds the lock of the flow.
SELECT work_id FROM work
WHERE flow_id = :flow_id AND step_id = :step_id AND item >= :first AND item < :end
    AND status = 'pending' AND due_at IS NULL AND hold IS NULL
ORDER BY item;

-- name: find_failed_work
-- Work that has failed in a step that has, the longest ago first. Each filter is off while its parameter is null.
-- What an agent runs is not among it: the agent asks for another attempt itself.
-- An error's code is found in its text, be it its own or that of its cause: no quote stands in a string unescaped.
-- It is read outside of a batch, and redriven flow by flow: nothing is locked.
SELECT w.work_id, w.flow_id, w.step_id FROM open_work AS o JOIN work AS w ON w.work_id = ANY(ARRAY[o.work_id])
JOIN flow_steps AS s ON s.flow_id = ANY(ARRAY[w.flow_id]) AND s.step_id = w.step_id AND s.status = 'failed'
JOIN flows AS f ON f.flow_id = ANY(ARRAY[w.flow_id]) AND f.status IN ('failed', 'active')
WHERE o.status = 'failed' AND w.undoes IS NULL AND o.version <> 'gate'
    AND (:step_id::text IS NULL OR o.step_id = :step_id)
    AND (:error_code::text IS NULL OR strpos(w.error, '"code":"' || :error_code || '"') > 0)
    AND (:since::bigint IS NULL OR o.recorded_at >= :since)
    AND (:until::bigint IS NULL OR o.recorded_at < :until)
    AND (:label::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = w.flow_id
    ))
    AND NOT EXISTS (
        SELECT 1 FROM work AS newer WHERE newer.flow_id = w.flow_id AND newer.step_id = w.step_id
            AND newer.item = w.item AND newer.redrive_of = w.work_id
    )
ORDER BY o.recorded_at LIMIT :limit;

-- name: find_overdue
-- Active work whose clock has run out, the longest overdue first.
SELECT w.work_id FROM open_work AS w JOIN flows AS f ON f.flow_id = ANY(ARRAY[w.flow_id])
WHERE w.status = 'active' AND w.due_at <= :now ORDER BY w.due_at LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: find_orphaned
-- Work that a node was sending whose lease has lapsed; the asking node's own is never among it. The row of a lapsed
-- lease is locked, and so read anew: one that is being renewed at this moment is passed over.
WITH lapsed AS MATERIALIZED (
    SELECT n.node_id FROM nodes AS n
    WHERE n.lease_until <= clock_timestamp() AND EXISTS (SELECT 1 FROM open_work AS w WHERE w.owner = n.node_id)
    FOR SHARE OF n SKIP LOCKED
)
SELECT w.work_id, w.owner FROM open_work AS w JOIN flows AS f ON f.flow_id = ANY(ARRAY[w.flow_id])
WHERE w.owner IS NOT NULL AND w.owner <> :owner AND (
    w.owner IN (SELECT node_id FROM lapsed) OR NOT EXISTS (SELECT 1 FROM nodes AS n WHERE n.node_id = w.owner)
)
LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: next_lapse
-- In how many milliseconds the next lease of another node lapses, unless it is renewed. By the database's clock.
SELECT ceil(extract(EPOCH FROM min(lease_until) - clock_timestamp()) * 1000)::bigint + 1
FROM nodes WHERE node_id <> :owner AND lease_until > clock_timestamp();

-- name: find_calls
-- Cancel calls to be made now, the longest due first.
SELECT call_id FROM cancel_calls WHERE due_at <= :now ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: insert_work
INSERT INTO work (
    work_id, flow_id, step_id, item, version, status, attempt, idempotency_key, lane, created_at, due_at,
    deadline_at, owner, first_sent_at, sent_at, acknowledged_at, progress, message, hold, result, error, recorded_at,
    arguments, redrive_of, undoes, child_flow_id
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::integer[], $8::text[], $9::text[],
    $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::bigint[], $16::bigint[],
    $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::bigint[], $23::text[], $24::text[],
    $25::text[], $26::text[]
)
RETURNING work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal;

-- name: update_work
-- The guard says what domain/states.py says: moves of a batch may bring open work to any state, and what is final stays.
UPDATE work SET
    status = change.status, attempt = change.attempt, due_at = change.due_at, deadline_at = change.deadline_at,
    owner = change.owner, first_sent_at = change.first_sent_at, sent_at = change.sent_at,
    acknowledged_at = change.acknowledged_at, progress = change.progress, message = change.message,
    hold = change.hold, result = change.result, error = change.error, recorded_at = change.recorded_at,
    child_flow_id = change.child_flow_id
FROM unnest(
    $1::text[], $2::text[], $3::integer[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::text[]
) AS change (
    work_id, status, attempt, due_at, deadline_at, owner, first_sent_at, sent_at, acknowledged_at, progress, message,
    hold, result, error, recorded_at, child_flow_id
)
WHERE work.work_id = ANY(ARRAY[change.work_id]) AND CASE change.status
    WHEN 'pending' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'held' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'active' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'not_completed' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'succeeded' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'failed' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'cancelled' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
END
RETURNING work.work_id, work.status, work.due_at, work.sent_at, work.owner, work.recorded_at;

-- name: end_work
-- The same for items that were sent before and are done now, of which only the end can change: most of all updates.
UPDATE work SET
    status = change.status, result = change.result, error = NULL, recorded_at = change.recorded_at,
    due_at = NULL, deadline_at = NULL, owner = NULL, hold = NULL
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS change (work_id, status, result, recorded_at)
WHERE work.work_id = ANY(ARRAY[change.work_id]) AND CASE change.status
    WHEN 'succeeded' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
    WHEN 'cancelled' THEN work.status IN ('pending', 'held', 'active', 'not_completed')
END
RETURNING work.work_id;

-- name: put_rates
-- When steps with a rate limit were sent last, in the place of what was known before. The batch that writes holds the
-- lock of the step (lock_steps).
INSERT INTO step_rates (step_id, most, sent) SELECT * FROM unnest($1::text[], $2::integer[], $3::text[])
ON CONFLICT (step_id) DO UPDATE SET most = excluded.most, sent = excluded.sent;

-- name: put_calls
-- A cancel call, new or to be tried again later.
INSERT INTO cancel_calls (call_id, flow_id, step_id, work_id, url, body, attempt, due_at)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::bigint[]
)
ON CONFLICT (call_id) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at;

-- name: delete_calls
DELETE FROM cancel_calls WHERE call_id = ANY($1::text[]);

-- name: due_lanes
-- Every lane with something to send, and when its first item is due: one seek a lane, however much waits in it.
WITH RECURSIVE lanes (lane) AS (
    (SELECT w.lane FROM open_work AS w WHERE w.status IN ('pending', 'not_completed') AND w.due_at IS NOT NULL
    ORDER BY w.lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT w.lane FROM open_work AS w
        WHERE w.lane > lanes.lane AND w.status IN ('pending', 'not_completed') AND w.due_at IS NOT NULL
        ORDER BY w.lane LIMIT 1
    )
    FROM lanes WHERE lanes.lane IS NOT NULL
)
SELECT lane, (
    SELECT w.due_at FROM open_work AS w
    WHERE w.lane = lanes.lane AND w.status IN ('pending', 'not_completed') AND w.due_at IS NOT NULL
    ORDER BY w.due_at LIMIT 1
)
FROM lanes WHERE lane IS NOT NULL;

-- name: next_clock
-- When the first clock of active work runs out.
SELECT min(due_at) FROM open_work WHERE status = 'active';

-- name: next_call
SELECT min(due_at) FROM cancel_calls;

-- name: open_work_by_state
-- How much work is open, by state.
SELECT status, count(*) FROM open_work
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL GROUP BY status
UNION ALL
SELECT 'active', count(*) FROM open_work WHERE status = 'active'
UNION ALL
SELECT 'held', count(*) FROM open_work WHERE status = 'held';

-- name: oldest_waiting
-- For every step with work out, since when its oldest item waits: one seek a step.
WITH RECURSIVE waiting (step_id) AS (
    (SELECT w.step_id FROM open_work AS w WHERE w.status = 'active' AND w.version <> 'gate'
    ORDER BY w.step_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT w.step_id FROM open_work AS w
        WHERE w.step_id > waiting.step_id AND w.status = 'active' AND w.version <> 'gate'
        ORDER BY w.step_id LIMIT 1
    )
    FROM waiting WHERE waiting.step_id IS NOT NULL
)
SELECT step_id, (
    SELECT w.sent_at FROM open_work AS w
    WHERE w.step_id = waiting.step_id AND w.status = 'active' AND w.version <> 'gate'
    ORDER BY w.sent_at LIMIT 1
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
WHERE ordinal > coalesce(:after::bigint, 0)
    AND (:status::text IS NULL OR status = :status)
    AND (:step_id::text IS NULL OR step_id = :step_id)
ORDER BY ordinal LIMIT :limit;

-- name: list_overdue_work
-- Open work whose time has come but that has not moved: by the partial indexes, so ended work costs nothing.
SELECT ordinal, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
    result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of, undoes,
    child_flow_id
FROM (
    SELECT work_id FROM open_work WHERE status = 'active' AND due_at <= :now
    UNION ALL
    SELECT work_id FROM open_work WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL AND due_at <= :now
) AS overdue JOIN work USING (work_id)
WHERE ordinal > coalesce(:after::bigint, 0)
    AND (:status::text IS NULL OR status = :status)
    AND (:step_id::text IS NULL OR step_id = :step_id)
ORDER BY ordinal LIMIT :limit;

-- name: receipt_status
SELECT w.status, w.attempt, w.deadline_at, w.recorded_at FROM work AS w WHERE w.work_id = :work_id;

-- name: receipt_checks
SELECT check_value, signs_from, signs_until FROM receipt_checks ORDER BY signs_from, check_value;

-- name: receipts_out
-- Work of driven steps that was sent within a time and has no outcome yet, by the version of its step.
SELECT w.version, count(*) FROM open_work AS o JOIN work AS w ON w.work_id = o.work_id
WHERE o.status IN ('active', 'not_completed', 'held') AND o.version <> 'gate'
    AND w.first_sent_at <= :until AND w.sent_at >= :since
GROUP BY w.version;
