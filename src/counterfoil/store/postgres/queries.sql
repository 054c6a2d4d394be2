-- Named queries of the shared store: the names of the embedded one, whose columns and meaning they keep.
-- Where one differs more than in dialect, it says why. What differs throughout:
-- - Bulk statements take one array a column, in $1, $2 ... (unnest): a statement a table, however many rows.
-- - Batch loads give rows, not JSON: the driver decodes them outside Python.
-- - Searches lock the flow of what they find (FOR UPDATE ... SKIP LOCKED): two nodes never find the same.
-- - Parameters that may be null say their type, and open ends of a range are numbers: a plan made once serves both.
-- - Rows that are looked up for each row of something else are so by "= ANY(ARRAY[key])". By "= key", a plan that was
--   made while the table was nearly empty would go on reading all of it (docs/decisions/0033).

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

-- name: load_flows
-- Flows by id.
SELECT f.flow_id, f.status, f.created_at, f.open_steps, f.error, f.finished_at, f.plan, f.parent, f.deadline_at, f.compensation,
    f.redrives
FROM flows AS f WHERE f.flow_id = ANY($1::text[]);

-- name: load_open_work
-- Ids of all open work of some flows.
SELECT w.work_id FROM work AS w
WHERE w.flow_id = ANY($1::text[]) AND w.status IN ('pending', 'held', 'active', 'not_completed');

-- name: load_open_steps
-- All open steps of some flows.
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives
FROM flow_steps AS s WHERE s.flow_id = ANY($1::text[]) AND s.status IN ('pending', 'active');

-- name: load_step_work
-- Ids of all work of some steps in flows. The key of a step is its flow, a line feed, and its own id.
SELECT w.work_id
FROM unnest($1::text[]) AS wanted (key)
JOIN work AS w ON w.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND w.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_steps
-- Steps in flows by key, each with what it gave.
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
FROM unnest($1::text[]) AS wanted (key)
JOIN flow_steps AS s
ON s.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND s.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_whole_steps
-- All steps of some flows, each with what it gave.
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
FROM flow_steps AS s WHERE s.flow_id = ANY($1::text[]);

-- name: load_plans
-- Plans by id.
SELECT p.plan_id, p.document FROM plans AS p WHERE p.plan_id = ANY($1::text[]);

-- name: load_register
-- The register's revision, with every current step unless the revision is the one that is known.
SELECT r.revision, s.step_id, s.version, v.definition
FROM unnest($1::bigint[]) AS known (revision) CROSS JOIN register AS r
LEFT JOIN steps AS s ON r.revision <> known.revision
LEFT JOIN step_versions AS v ON v.version = s.version;

-- name: load_inputs
-- What some flows were started with.
SELECT i.flow_id, i.goals, i.init, i.metadata, i.labels, i.options
FROM flow_inputs AS i WHERE i.flow_id = ANY($1::text[]);

-- name: load_current
-- The current version of some steps.
SELECT s.step_id, s.version FROM steps AS s WHERE s.step_id = ANY($1::text[]);

-- name: load_versions
-- Definitions by version.
SELECT v.version, v.step_id, v.definition FROM step_versions AS v WHERE v.version = ANY($1::text[]);

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

-- name: load_schedules
-- Schedules by id.
SELECT
    s.schedule_id, s.cron, s.timezone, s.every_ms, s.flow, s.catch_up, s.enabled, s.anchor_at, s.next_at, s.last_at,
    s.last_flow_id, s.last_error, s.created_at, s.updated_at
FROM schedules AS s WHERE s.schedule_id = ANY($1::text[]);
-- name: load_rates
-- When some steps were sent last.
SELECT r.step_id, r.most, r.sent FROM step_rates AS r WHERE r.step_id = ANY($1::text[]);

-- name: load_gate_work
-- Ids of the work that the gates of some steps let through last. The key of a step is its flow, a line feed, its id.
SELECT g.work_id
FROM unnest($1::text[]) AS wanted (key) JOIN gates AS g
    ON g.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND g.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_gates
-- What the gate knows of some steps.
SELECT
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
FROM unnest($1::text[]) AS wanted (key) JOIN gates AS g
    ON g.flow_id = ANY(ARRAY[split_part(wanted.key, chr(10), 1)]) AND g.step_id = split_part(wanted.key, chr(10), 2);

-- name: load_approvals
-- Approvals by id.
SELECT
    a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
FROM approvals AS a WHERE a.approval_id = ANY($1::text[]);

-- name: load_keys
-- Who some keys belong to.
SELECT k.key_id, k.flow_id, k.step_id, k.digest, k.created_at, k.expires_at FROM key_owners AS k WHERE k.key_id = ANY($1::text[]);

-- name: load_policies
-- Policies by id, those that were deleted among them.
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at
FROM policies AS p WHERE p.policy_id = ANY($1::text[]);

-- name: load_subscriptions
-- Subscriptions by id.
SELECT s.subscription_id, s.definition, s.note, s.created_at, s.updated_at FROM subscriptions AS s WHERE s.subscription_id = ANY($1::text[]);

-- name: load_deliveries
-- Deliveries by id.
SELECT d.delivery_id, d.subscription_id, d.flow_id, d.type, d.body, d.attempt, d.due_at, d.note, d.created_at
FROM deliveries AS d WHERE d.delivery_id = ANY($1::text[]);

-- name: load_controls
-- The revision of the controls, with every policy and subscription unless the revision is the one that is known.
SELECT c.revision, o.kind, o.id, o.version, o.definition
FROM unnest($1::bigint[]) AS known (revision) CROSS JOIN controls AS c
LEFT JOIN (
    SELECT 'policy' AS kind, policy_id AS id, version, definition FROM policies WHERE definition IS NOT NULL
    UNION ALL
    SELECT 'subscription', subscription_id, 0, definition FROM subscriptions
) AS o ON c.revision <> known.revision;

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
-- Items of a step that are not released yet, among some of its places. Whoever asks has the flow in hand already.
SELECT work_id FROM work
WHERE flow_id = :flow_id AND step_id = :step_id AND item >= :first AND item < :end
    AND status = 'pending' AND due_at IS NULL
ORDER BY item;

-- name: find_due_flows
-- Flows whose deadline has passed, or a step of which waits no longer.
SELECT f.flow_id FROM flows AS f WHERE f.flow_id = ANY(ARRAY(
    SELECT d.flow_id FROM flows AS d WHERE d.deadline_at <= :now
    UNION ALL
    SELECT s.flow_id FROM flow_steps AS s WHERE s.due_at <= :now
))
LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

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

-- name: find_due_schedules
-- Schedules whose next tick has come, the longest due first. Their own rows are locked: they belong to no flow.
SELECT schedule_id FROM schedules WHERE next_at <= :now ORDER BY next_at LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: find_expired_approvals
-- Approvals that nobody gave in time, the longest ago first, of flows that nobody else has in hand.
SELECT a.approval_id, a.flow_id FROM approvals AS a JOIN flows AS f ON f.flow_id = ANY(ARRAY[a.flow_id])
WHERE a.status = 'pending' AND a.expires_at <= :now ORDER BY a.expires_at LIMIT :limit FOR UPDATE OF f SKIP LOCKED;

-- name: find_deliveries
-- Deliveries to be made now, the longest due of each subscriber, at most a share of each; but for subscribers that are
-- being told as much as they may be at once. One seek a subscriber, however much waits for it. Their own rows are locked:
-- whoever has one in hand makes it.
WITH RECURSIVE told (subscription_id) AS (
    (SELECT d.subscription_id FROM deliveries AS d WHERE d.due_at IS NOT NULL ORDER BY d.subscription_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT d.subscription_id FROM deliveries AS d
        WHERE d.subscription_id > told.subscription_id AND d.due_at IS NOT NULL ORDER BY d.subscription_id LIMIT 1
    )
    FROM told WHERE told.subscription_id IS NOT NULL
)
SELECT due.delivery_id
FROM told CROSS JOIN LATERAL (
    SELECT o.delivery_id FROM deliveries AS o
    WHERE o.subscription_id = told.subscription_id AND o.due_at IS NOT NULL AND o.due_at <= :now
    ORDER BY o.due_at LIMIT :share FOR UPDATE SKIP LOCKED
) AS due
WHERE told.subscription_id NOT IN (SELECT jsonb_array_elements_text(:busy::jsonb))
LIMIT :limit;

-- name: insert_version
-- A definition that may be known already: the same content has the same version.
INSERT INTO step_versions (version, step_id, definition)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING;

-- name: put_step
-- Make a version the current one of its step.
INSERT INTO steps (step_id, version, created_at, updated_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
ON CONFLICT (step_id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at;

-- name: delete_step
-- Take a step out of the register; flows under way keep their version.
DELETE FROM steps WHERE step_id = ANY($1::text[]);

-- name: raise_register
-- The register has changed. Nodes change it one after the other (lock_register).
UPDATE register SET revision = register.revision + change.steps FROM unnest($1::bigint[]) AS change (steps);

-- name: insert_plans
-- A plan that may be known already: the same content has the same id.
INSERT INTO plans (plan_id, document)
SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING;

-- name: insert_flows
INSERT INTO flows (
    flow_id, status, created_at, open_steps, error, finished_at, plan, parent, deadline_at, compensation, redrives
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::integer[], $5::text[], $6::bigint[], $7::text[], $8::text[],
    $9::bigint[], $10::text[], $11::integer[]
)
RETURNING flow_id, status, ordinal;

-- name: update_flows
-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled. What has failed or was
-- cancelled becomes active only by one more redrive.
-- Every flow of which anything changes is written: one without a status keeps all that it has, and its revision rises.
UPDATE flows SET
    status = coalesce(change.status, flows.status),
    open_steps = coalesce(change.open_steps, flows.open_steps),
    error = CASE WHEN change.status IS NULL THEN flows.error ELSE change.error END,
    finished_at = CASE WHEN change.status IS NULL THEN flows.finished_at ELSE change.finished_at END,
    deadline_at = CASE WHEN change.status IS NULL THEN flows.deadline_at ELSE change.deadline_at END,
    compensation = CASE WHEN change.status IS NULL THEN flows.compensation ELSE change.compensation END,
    parent = CASE WHEN change.status IS NULL THEN flows.parent ELSE change.parent END,
    redrives = coalesce(change.redrives, flows.redrives),
    revision = change.revision + 1
FROM unnest(
    $1::text[], $2::text[], $3::integer[], $4::text[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::integer[],
    $10::bigint[]
) AS change (
    flow_id, status, open_steps, error, finished_at, deadline_at, compensation, parent, redrives, revision
)
WHERE flows.flow_id = ANY(ARRAY[change.flow_id]) AND flows.revision = change.revision
    AND (flows.redrives < change.redrives AND flows.status <> 'completed' OR CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'compensating' THEN flows.status IN ('active', 'compensating')
    WHEN 'completed' THEN flows.status IN ('active')
    WHEN 'failed' THEN flows.status IN ('active', 'compensating')
    WHEN 'cancelled' THEN flows.status IN ('active', 'compensating')
    ELSE change.status IS NULL
END)
RETURNING flows.flow_id, flows.status;

-- name: move_flows
-- The same for flows that go on or complete and were never redriven, of which nothing else can change: most of all
-- updates.
UPDATE flows SET
    status = coalesce(change.status, flows.status),
    open_steps = coalesce(change.open_steps, flows.open_steps),
    finished_at = coalesce(change.finished_at, flows.finished_at),
    deadline_at = CASE WHEN change.status IS NULL THEN flows.deadline_at ELSE change.deadline_at END,
    revision = change.revision + 1
FROM unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[])
AS change (flow_id, status, open_steps, finished_at, deadline_at, revision)
WHERE flows.flow_id = ANY(ARRAY[change.flow_id]) AND flows.revision = change.revision AND CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'completed' THEN flows.status IN ('active')
    ELSE change.status IS NULL
END
RETURNING flows.flow_id, flows.status;

-- name: insert_inputs
INSERT INTO flow_inputs (flow_id, goals, init, metadata, labels, options)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]);

-- name: insert_labels
INSERT INTO flow_labels (label, flow_id) SELECT * FROM unnest($1::text[], $2::text[]);

-- name: insert_steps
INSERT INTO flow_steps (
    flow_id, step_id, version, status, goal, items, open_items, failed_items, started_at, finished_at, error, ready_at,
    due_at, released, waiting_items, redrives, outputs
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::integer[], $7::integer[], $8::integer[],
    $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::integer[], $15::integer[],
    $16::integer[], $17::text[]
);

-- name: update_steps
-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; and whatever several of these moves
-- in one batch come to. What has ended begins anew only by one more redrive.
UPDATE flow_steps SET
    status = change.status, items = change.items, open_items = change.open_items,
    failed_items = change.failed_items, started_at = change.started_at, finished_at = change.finished_at,
    error = change.error, ready_at = change.ready_at, due_at = change.due_at, released = change.released,
    waiting_items = change.waiting_items, redrives = change.redrives, outputs = change.outputs
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::bigint[], $8::bigint[],
    $9::text[], $10::bigint[], $11::bigint[], $12::integer[], $13::integer[], $14::integer[], $15::text[]
) AS change (
    flow_id, step_id, status, items, open_items, failed_items, started_at, finished_at, error, ready_at, due_at,
    released, waiting_items, redrives, outputs
)
WHERE flow_steps.flow_id = ANY(ARRAY[change.flow_id]) AND flow_steps.step_id = change.step_id
    AND (flow_steps.redrives < change.redrives AND flow_steps.status <> 'skipped' OR CASE change.status
    WHEN 'pending' THEN flow_steps.status IN ('pending')
    WHEN 'active' THEN flow_steps.status IN ('pending', 'active')
    WHEN 'completed' THEN flow_steps.status IN ('pending', 'active')
    WHEN 'failed' THEN flow_steps.status IN ('pending', 'active')
    WHEN 'skipped' THEN flow_steps.status IN ('pending')
    WHEN 'cancelled' THEN flow_steps.status IN ('pending', 'active')
END);

-- name: count_steps
-- The same for steps that were begun before, of which only counters and the end can change: most of all updates.
UPDATE flow_steps SET
    status = change.status, open_items = change.open_items, failed_items = change.failed_items,
    finished_at = change.finished_at, error = change.error, outputs = change.outputs
FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::bigint[], $7::text[], $8::text[]
) AS change (flow_id, step_id, status, open_items, failed_items, finished_at, error, outputs)
WHERE flow_steps.flow_id = ANY(ARRAY[change.flow_id]) AND flow_steps.step_id = change.step_id AND CASE change.status
    WHEN 'active' THEN flow_steps.status IN ('active')
    WHEN 'completed' THEN flow_steps.status IN ('active')
    WHEN 'failed' THEN flow_steps.status IN ('active')
    WHEN 'cancelled' THEN flow_steps.status IN ('active')
END;

-- name: complete_steps
-- The same where none of its items has failed.
UPDATE flow_steps SET
    status = 'completed', open_items = 0, finished_at = change.finished_at, outputs = change.outputs
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS change (flow_id, step_id, finished_at, outputs)
WHERE flow_steps.flow_id = ANY(ARRAY[change.flow_id]) AND flow_steps.step_id = change.step_id
    AND flow_steps.status = 'active';

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

-- name: append_journal
INSERT INTO journal (flow_id, work_id, at, events)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
RETURNING seq;

-- name: put_rates
-- When steps with a rate limit were sent last, in the place of what was known before. Whoever writes holds the lock of
-- the step (lock_steps).
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

-- name: put_gates
-- What the gate knows of a step, new or changed.
INSERT INTO gates (
    flow_id, step_id, work_id, idempotency_key, gate_count, completion_count, first_at, last_at,
    decision, standing, decision_id, input_digest, approval_id, holder, completed_at, completed_work_id,
    facts
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::integer[], $7::bigint[], $8::bigint[],
    $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bigint[], $16::text[],
    $17::text[]
)
ON CONFLICT (flow_id, step_id) DO UPDATE SET
    work_id = excluded.work_id, gate_count = excluded.gate_count, completion_count = excluded.completion_count,
    last_at = excluded.last_at, decision = excluded.decision, standing = excluded.standing,
    decision_id = excluded.decision_id, input_digest = excluded.input_digest, approval_id = excluded.approval_id,
    holder = excluded.holder, completed_at = excluded.completed_at, completed_work_id = excluded.completed_work_id,
    facts = excluded.facts;

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

-- name: put_keys
-- Whom a key belongs to from now on.
INSERT INTO key_owners (key_id, flow_id, step_id, digest, created_at, expires_at)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::bigint[]
)
ON CONFLICT (key_id) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, digest = excluded.digest,
    created_at = excluded.created_at, expires_at = excluded.expires_at;

-- name: put_policies
-- A policy as it is now; without a definition it is deleted.
INSERT INTO policies (policy_id, version, definition, source, changed_by, created_at, updated_at)
SELECT * FROM unnest(
    $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[]
)
ON CONFLICT (policy_id) DO UPDATE SET
    version = excluded.version, definition = excluded.definition, source = excluded.source,
    changed_by = excluded.changed_by, updated_at = excluded.updated_at;

-- name: insert_policy_versions
INSERT INTO policy_versions (policy_id, version, definition, source, changed_by, at)
SELECT * FROM unnest(
    $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::bigint[]
);

-- name: put_subscriptions
INSERT INTO subscriptions (subscription_id, definition, note, created_at, updated_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
ON CONFLICT (subscription_id) DO UPDATE SET
    definition = excluded.definition, note = excluded.note, updated_at = excluded.updated_at;

-- name: delete_subscriptions
DELETE FROM subscriptions WHERE subscription_id = ANY($1::text[]);

-- name: drop_deliveries
-- What a subscriber that is no more was still to be told. What another node has in hand it will find to be nobody's.
DELETE FROM deliveries WHERE delivery_id IN (
    SELECT d.delivery_id FROM deliveries AS d WHERE d.subscription_id = ANY($1::text[]) FOR UPDATE SKIP LOCKED
);

-- name: raise_controls
-- Policies or subscriptions have changed. Whoever writes holds the lock of the row (lock_controls).
UPDATE controls SET revision = revision + change.changes FROM unnest($1::bigint[]) AS change (changes);

-- name: put_deliveries
-- A delivery, new, to be tried again later, or given up.
INSERT INTO deliveries (delivery_id, subscription_id, flow_id, type, body, attempt, due_at, note, created_at)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::text[], $9::bigint[]
)
ON CONFLICT (delivery_id) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at, note = excluded.note;

-- name: delete_deliveries
DELETE FROM deliveries WHERE delivery_id = ANY($1::text[]);

-- name: put_schedules
-- A schedule, new or changed, or moved on to its next tick.
INSERT INTO schedules (
    schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
    last_error, created_at, updated_at
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::boolean[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::bigint[], $14::bigint[]
)
ON CONFLICT (schedule_id) DO UPDATE SET
    cron = excluded.cron, timezone = excluded.timezone, every_ms = excluded.every_ms, flow = excluded.flow,
    catch_up = excluded.catch_up, enabled = excluded.enabled, anchor_at = excluded.anchor_at,
    next_at = excluded.next_at, last_at = excluded.last_at, last_flow_id = excluded.last_flow_id,
    last_error = excluded.last_error, created_at = excluded.created_at, updated_at = excluded.updated_at;

-- name: delete_schedules
DELETE FROM schedules WHERE schedule_id = ANY($1::text[]);

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

-- name: next_flow_clock
-- When the first flow must be looked at again: for its deadline, or for a step that waits.
SELECT min(clock.at) FROM (
    SELECT min(deadline_at) AS at FROM flows WHERE deadline_at IS NOT NULL
    UNION ALL
    SELECT min(due_at) FROM flow_steps WHERE due_at IS NOT NULL
) AS clock;

-- name: next_call
SELECT min(due_at) FROM cancel_calls;

-- name: next_schedule
-- When the next tick of any schedule is due.
SELECT min(next_at) FROM schedules WHERE next_at IS NOT NULL;

-- name: next_approval
-- When the next approval expires.
SELECT min(expires_at) FROM approvals WHERE status = 'pending';

-- name: next_delivery
WITH RECURSIVE told (subscription_id) AS (
    (SELECT d.subscription_id FROM deliveries AS d WHERE d.due_at IS NOT NULL ORDER BY d.subscription_id LIMIT 1)
    UNION ALL
    SELECT (
        SELECT d.subscription_id FROM deliveries AS d
        WHERE d.subscription_id > told.subscription_id AND d.due_at IS NOT NULL ORDER BY d.subscription_id LIMIT 1
    )
    FROM told WHERE told.subscription_id IS NOT NULL
)
SELECT min((
    SELECT min(o.due_at) FROM deliveries AS o WHERE o.subscription_id = told.subscription_id AND o.due_at IS NOT NULL
))
FROM told WHERE told.subscription_id NOT IN (SELECT jsonb_array_elements_text(:busy::jsonb));

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

-- name: get_step
SELECT s.step_id, s.version, v.definition, s.created_at, s.updated_at
FROM steps AS s JOIN step_versions AS v ON v.version = s.version WHERE s.step_id = :step_id;

-- name: list_steps
SELECT s.step_id, s.version, v.definition, s.created_at, s.updated_at
FROM steps AS s JOIN step_versions AS v ON v.version = s.version ORDER BY s.step_id;

-- name: get_flow
SELECT f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.init, i.options,
    f.parent, f.deadline_at, f.compensation, p.document, f.pruned_at
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id LEFT JOIN plans AS p ON p.plan_id = f.plan
WHERE f.flow_id = :flow_id;

-- name: outputs_of_flows
-- What the steps of some flows gave, in the order in which the flows are given.
-- OFFSET 0: found first, then put in order, instead of reading all in that order.
SELECT found.flow_id, found.outputs FROM (
    SELECT s.flow_id, s.outputs, s.finished_at, s.step_id, wanted.place
    FROM jsonb_array_elements_text(:flow_ids::jsonb) WITH ORDINALITY AS wanted (flow_id, place)
    JOIN flow_steps AS s ON s.flow_id = ANY(ARRAY[wanted.flow_id]) AND s.outputs IS NOT NULL OFFSET 0
) AS found
ORDER BY found.place, found.finished_at, found.step_id;

-- name: get_flow_steps
-- The kind of a step, if it says one, stands first in its definition, which may hold what PostgreSQL reads no JSON with.
SELECT s.step_id, s.status, s.goal, s.version, s.started_at, s.finished_at, s.items, s.error, s.due_at, s.redrives,
    substring(v.definition FROM '^\{"kind":"([a-z]+)"')
FROM flow_steps s LEFT JOIN step_versions v ON v.version = s.version
WHERE s.flow_id = :flow_id ORDER BY s.started_at NULLS FIRST, s.step_id;

-- name: get_flow_result
SELECT flow_id, status, error FROM flows WHERE flow_id = :flow_id;

-- name: list_flows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE (:status::text IS NULL OR f.status = :status)
    AND f.ordinal < coalesce(:before::bigint, 9223372036854775807)
    AND (:since::bigint IS NULL OR f.created_at >= :since)
    AND (:label::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: list_open_flows
-- The same for one status that few flows have: by the table of those that have not completed, instead of all flows.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent
FROM open_flows AS o
JOIN flows AS f ON f.flow_id = ANY(ARRAY[o.flow_id]) JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE o.status = :status
    AND o.ordinal < coalesce(:before::bigint, 9223372036854775807)
    AND (:since::bigint IS NULL OR f.created_at >= :since)
    AND (:label::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal
    ))
ORDER BY o.ordinal DESC LIMIT :limit;

-- name: work_of_flow
SELECT ordinal, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
    result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of, undoes,
    child_flow_id
FROM work WHERE flow_id = :flow_id ORDER BY flow_id, step_id, item;

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

-- name: step_version
SELECT v.definition FROM step_versions AS v WHERE v.version = :version;

-- name: journal_of_flow
-- The journal gives entries, of which store/journal.py takes the events: from the one on that holds event :after, all
-- of whose events may have been seen already, hence one more than events are wanted.
SELECT seq, flow_id, work_id, at, events
FROM journal WHERE flow_id = :flow_id AND seq >= :after::bigint / 64 ORDER BY seq LIMIT :limit::bigint + 1;

-- name: ends_without_outcome
-- Entries of a flow that hold the skipping or cancelling of steps, which happened at these times.
SELECT events FROM journal
WHERE flow_id = :flow_id AND at IN (SELECT value::bigint FROM jsonb_array_elements_text(:times::jsonb))
    AND (events LIKE '%["step_skipped",%' OR events LIKE '%["step_cancelled",%')
ORDER BY seq;

-- name: journal_of_work
SELECT seq, flow_id, work_id, at, events
FROM journal WHERE flow_id = :flow_id AND work_id = :work_id ORDER BY seq;

-- name: journal_of_works
-- The same for several items, each given as its flow and itself. OFFSET 0: see outputs_of_flows.
SELECT found.seq, found.flow_id, found.work_id, found.at, found.events FROM (
    SELECT j.seq, j.flow_id, j.work_id, j.at, j.events
    FROM jsonb_array_elements(:work::jsonb) AS wanted (item)
    JOIN journal AS j ON j.flow_id = ANY(ARRAY[wanted.item ->> 0]) AND j.work_id = wanted.item ->> 1 OFFSET 0
) AS found
ORDER BY found.seq;

-- name: journal_after
-- As far as it is seen now, with the oldest transaction that still runs and the one that begins next: by them
-- store/postgres/journal_tail.py holds back what stands behind a number that may still appear. The end of the snapshot would
-- not do for the latter: it comes behind the last transaction that has ended, and younger ones may run. age() counts
-- back from the one that begins next; it knows the lower half of its number, the snapshot the upper.
SELECT seq, flow_id, work_id, at, events,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    + ((3 + age('3'::xid)::bigint - pg_snapshot_xmax(pg_current_snapshot())::text::bigint) & 4294967295)
FROM journal WHERE seq >= :after::bigint / 64 ORDER BY seq LIMIT :limit::bigint + 1;

-- name: last_seq
-- The highest number that an event may have so far.
SELECT coalesce((SELECT seq FROM journal ORDER BY seq DESC LIMIT 1) * 64 + 63, 0);

-- name: flow_exists
SELECT 1 FROM flows WHERE flow_id = :flow_id;

-- name: get_schedule
SELECT schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
    last_error, created_at, updated_at
FROM schedules WHERE schedule_id = :schedule_id;

-- name: list_schedules
-- By id, behind the one that the last page ended with.
SELECT schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
    last_error, created_at, updated_at
FROM schedules WHERE schedule_id > coalesce(:after::text, '') ORDER BY schedule_id LIMIT :limit;

-- name: list_gated_work
-- What agents were let run and have not reported, the oldest first: without what somebody has claimed at this moment.
SELECT w.ordinal, w.work_id, w.flow_id, w.step_id, w.item, w.status, w.attempt, w.due_at, w.deadline_at, w.hold,
    w.progress, w.message, w.result, w.error, w.created_at, w.sent_at, w.acknowledged_at, w.recorded_at,
    w.idempotency_key, w.redrive_of, w.undoes, w.child_flow_id
FROM open_work AS o JOIN work AS w ON w.work_id = ANY(ARRAY[o.work_id])
JOIN gates AS g ON g.flow_id = w.flow_id AND g.step_id = w.step_id AND g.work_id = w.work_id
WHERE o.version = 'gate' AND o.status IN ('active', 'not_completed')
    AND NOT (w.status = 'active' AND g.holder IS NOT NULL AND w.deadline_at > :now)
    AND (:after::bigint IS NULL OR o.ordinal > :after)
    AND (:step_id::text IS NULL OR o.step_id = :step_id)
ORDER BY o.ordinal LIMIT :limit;

-- name: get_gates
-- What the gate knows of the steps of a flow, in the order in which they were asked for.
SELECT g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts, w.status, w.deadline_at, w.attempt, w.error, a.status
FROM gates AS g JOIN work AS w ON w.work_id = ANY(ARRAY[g.work_id])
LEFT JOIN approvals AS a ON a.approval_id = ANY(ARRAY[g.approval_id])
WHERE g.flow_id = :flow_id ORDER BY g.first_at, g.step_id;

-- name: list_workflows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE f.plan = 'cooperative'
    AND (:before::bigint IS NULL OR f.ordinal < :before)
    AND (:status::text IS NULL OR f.status = :status)
    AND (:source::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :source AND l.flow_id = f.flow_id
    ))
    AND (:trace_id::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :trace_id AND l.flow_id = f.flow_id
    ))
    AND (:label::text IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: get_workflow
-- By its id, never by the index of all workflows: hence the coalesce.
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.flow_id = :flow_id AND coalesce(f.plan, '') = 'cooperative';

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

-- name: get_policy
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at FROM policies AS p WHERE p.policy_id = :policy_id AND p.definition IS NOT NULL;

-- name: list_policies
-- By id, behind the one that the last page ended with.
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at FROM policies AS p
WHERE p.policy_id > coalesce(:after::text, '') AND p.definition IS NOT NULL ORDER BY p.policy_id LIMIT :limit;

-- name: policy_versions
-- Newest first.
SELECT policy_id, version, definition, source, changed_by, at FROM policy_versions
WHERE policy_id = :policy_id ORDER BY version DESC LIMIT :limit;

-- name: get_subscription
SELECT s.subscription_id, s.definition, s.note, s.created_at, s.updated_at FROM subscriptions AS s WHERE s.subscription_id = :subscription_id;

-- name: list_subscriptions
-- By id, behind the one that the last page ended with.
SELECT s.subscription_id, s.definition, s.note, s.created_at, s.updated_at FROM subscriptions AS s
WHERE s.subscription_id > coalesce(:after::text, '') ORDER BY s.subscription_id LIMIT :limit;

-- name: list_deliveries
-- What a subscriber was not told yet, the oldest first.
SELECT d.ordinal, d.delivery_id, d.subscription_id, d.flow_id, d.type, d.body, d.attempt, d.due_at, d.note, d.created_at FROM deliveries AS d
WHERE d.subscription_id = :subscription_id AND (:after::bigint IS NULL OR d.ordinal > :after) ORDER BY d.ordinal LIMIT :limit;

-- name: doctor_versions
SELECT version, step_id, definition FROM step_versions;

-- name: doctor_flows
SELECT ordinal, flow_id FROM flows WHERE ordinal > $1 ORDER BY ordinal LIMIT $2;

-- name: doctor_steps
SELECT
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
FROM flow_steps AS s WHERE s.flow_id = ANY($1::text[]);

-- name: doctor_work
SELECT w.work_id FROM work AS w WHERE w.flow_id = ANY($1::text[]);

-- name: doctor_gates
SELECT
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
FROM gates AS g WHERE g.flow_id = ANY($1::text[]);

-- name: doctor_approvals
SELECT
    a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
FROM approvals AS a WHERE a.flow_id = ANY($1::text[]);

-- name: doctor_journal
SELECT j.flow_id, j.work_id, j.at, j.events
FROM journal AS j WHERE j.flow_id = ANY($1::text[]) ORDER BY j.seq;

-- name: doctor_lost_events
SELECT j.flow_id, count(*) FROM journal AS j
WHERE NOT EXISTS (SELECT 1 FROM flows AS f WHERE f.flow_id = j.flow_id) GROUP BY j.flow_id LIMIT 100;

-- Retention: finished flows go, wholly (prune_...) or without what they carried (empty_...). Whatever table or column
-- belongs to a flow or carries payload has its place here, and in store/unit_of_work/pruning.py.

-- name: walk_flows
-- Flows in the order in which they were made; those that ended by the cutoff with the number of their work items.
SELECT f.ordinal, f.flow_id, f.created_at,
    CASE WHEN f.finished_at <= :cutoff AND (NOT :payloads::boolean OR f.pruned_at IS NULL) THEN (
        SELECT coalesce(sum(s.items), 0) FROM flow_steps AS s WHERE s.flow_id = f.flow_id
    ) END
FROM flows AS f WHERE f.ordinal > :after ORDER BY f.ordinal LIMIT :limit;

-- name: find_prunable
-- Those of some flows that ended by the cutoff, each with its labels.
SELECT f.flow_id, i.labels
FROM flows AS f LEFT JOIN flow_inputs AS i ON i.flow_id = ANY(ARRAY[f.flow_id])
WHERE f.flow_id = ANY(ARRAY(SELECT jsonb_array_elements_text(:flows::jsonb)))
    AND f.status IN ('completed', 'failed', 'cancelled') AND f.finished_at <= :cutoff
    AND (NOT :payloads::boolean OR f.pruned_at IS NULL)
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

-- name: prune_deliveries
DELETE FROM deliveries WHERE flow_id = ANY($1::text[]);

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
-- Who decided what stays; what it was about does not.
UPDATE approvals SET arguments = NULL WHERE flow_id = ANY($1::text[]);

-- name: empty_deliveries
-- A delivery that nobody took is what the flow carried, too.
DELETE FROM deliveries WHERE flow_id = ANY($1::text[]);

-- name: empty_flows
UPDATE flows SET pruned_at = change.pruned_at, revision = flows.revision + 1
FROM unnest($1::text[], $2::bigint[]) AS change (flow_id, pruned_at)
WHERE flows.flow_id = change.flow_id AND flows.pruned_at IS NULL
    AND flows.status IN ('completed', 'failed', 'cancelled');

-- name: doctor_pruned
-- Flows whose journal is gone.
SELECT f.flow_id FROM flows AS f WHERE f.flow_id = ANY($1::text[]) AND f.pruned_at IS NOT NULL;
