-- Named queries of the embedded store. `:rows` stands for bracketed rows of parameters: those that a batch has, and some
-- that are all null and must have no effect, so that few texts serve every number of rows.
-- Bulk updates begin with UPDATE (not WITH): Python counts the rows of no other statement, and the guards need the count.
-- Batch loads give one row of JSON: SQLite builds it without holding Python's lock, and one step fetches it.

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

-- name: load_flows
-- Flows by id.
SELECT json_group_array(json_array(
    f.flow_id, f.status, f.created_at, f.open_steps, f.error, f.finished_at, f.plan, f.parent, f.deadline_at, f.compensation,
    f.redrives
))
FROM json_each(?) AS wanted CROSS JOIN flows AS f ON f.flow_id = wanted.value;

-- name: load_open_work
-- Ids of all open work of some flows.
SELECT json_group_array(w.work_id)
FROM json_each(?) AS wanted CROSS JOIN work AS w ON w.flow_id = wanted.value
WHERE w.status IN ('pending', 'held', 'active', 'not_completed');

-- name: load_open_steps
-- All open steps of some flows.
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value
WHERE s.status IN ('pending', 'active');

-- name: load_step_work
-- Ids of all work of some steps in flows. The key of a step is its flow, a line feed, and its own id.
SELECT json_group_array(w.work_id)
FROM json_each(?) AS wanted CROSS JOIN work AS w
ON w.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND w.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: load_steps
-- Steps in flows by key, each with what it gave.
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s
ON s.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND s.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: load_whole_steps
-- All steps of some flows, each with what it gave.
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value;

-- name: load_plans
-- Plans by id.
SELECT json_group_array(json_array(p.plan_id, p.document))
FROM json_each(?) AS wanted CROSS JOIN plans AS p ON p.plan_id = wanted.value;

-- name: load_register
-- The register's revision, with every current step unless the revision is the one that is known.
SELECT json_group_array(json_array(r.revision, s.step_id, s.version, v.definition))
FROM json_each(?) AS known CROSS JOIN register AS r
LEFT JOIN steps AS s ON r.revision <> CAST(known.value AS INTEGER)
LEFT JOIN step_versions AS v ON v.version = s.version;

-- name: load_inputs
-- What some flows were started with.
SELECT json_group_array(json_array(i.flow_id, i.goals, i.init, i.metadata, i.labels, i.options))
FROM json_each(?) AS wanted CROSS JOIN flow_inputs AS i ON i.flow_id = wanted.value;

-- name: load_current
-- The current version of some steps.
SELECT json_group_array(json_array(s.step_id, s.version))
FROM json_each(?) AS wanted CROSS JOIN steps AS s ON s.step_id = wanted.value;

-- name: load_versions
-- Definitions by version.
SELECT json_group_array(json_array(v.version, v.step_id, v.definition))
FROM json_each(?) AS wanted CROSS JOIN step_versions AS v ON v.version = wanted.value;

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

-- name: load_schedules
-- Schedules by id.
SELECT json_group_array(json_array(
    s.schedule_id, s.cron, s.timezone, s.every_ms, s.flow, s.catch_up, s.enabled, s.anchor_at, s.next_at, s.last_at,
    s.last_flow_id, s.last_error, s.created_at, s.updated_at
))
FROM json_each(?) AS wanted CROSS JOIN schedules AS s ON s.schedule_id = wanted.value;
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

-- name: load_gates
-- What the gate knows of some steps.
SELECT json_group_array(json_array(
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
))
FROM json_each(?) AS wanted CROSS JOIN gates AS g
ON g.flow_id = substr(wanted.value, 1, instr(wanted.value, char(10)) - 1)
    AND g.step_id = substr(wanted.value, instr(wanted.value, char(10)) + 1);

-- name: load_approvals
-- Approvals by id.
SELECT json_group_array(json_array(
    a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
))
FROM json_each(?) AS wanted CROSS JOIN approvals AS a ON a.approval_id = wanted.value;

-- name: load_keys
-- Who some keys belong to.
SELECT json_group_array(json_array(
    k.key_id, k.flow_id, k.step_id, k.digest, k.created_at, k.expires_at
))
FROM json_each(?) AS wanted CROSS JOIN key_owners AS k ON k.key_id = wanted.value;

-- name: load_policies
-- Policies by id, those that were deleted among them.
SELECT json_group_array(json_array(
    p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at
))
FROM json_each(?) AS wanted CROSS JOIN policies AS p ON p.policy_id = wanted.value;

-- name: load_subscriptions
-- Subscriptions by id.
SELECT json_group_array(json_array(
    s.subscription_id, s.definition, s.note, s.created_at, s.updated_at
))
FROM json_each(?) AS wanted CROSS JOIN subscriptions AS s ON s.subscription_id = wanted.value;

-- name: load_deliveries
-- Deliveries by id.
SELECT json_group_array(json_array(
    d.delivery_id, d.subscription_id, d.flow_id, d.type, d.body, d.attempt, d.due_at, d.note, d.created_at
))
FROM json_each(?) AS wanted CROSS JOIN deliveries AS d ON d.delivery_id = wanted.value;

-- name: load_controls
-- The revision of the controls, with every policy and subscription unless the revision is the one that is known.
SELECT json_group_array(json_array(c.revision, o.kind, o.id, o.version, o.definition))
FROM json_each(?) AS known CROSS JOIN controls AS c
LEFT JOIN (
    SELECT 'policy' AS kind, policy_id AS id, version, definition FROM policies WHERE definition IS NOT NULL
    UNION ALL
    SELECT 'subscription', subscription_id, 0, definition FROM subscriptions
) AS o ON c.revision <> CAST(known.value AS INTEGER);

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
-- Items of a step that are not released yet, among some of its places.
SELECT work_id FROM work
WHERE flow_id = :flow_id AND step_id = :step_id AND item >= :first AND item < :end
    AND status = 'pending' AND due_at IS NULL
ORDER BY item;

-- name: find_due_flows
-- Flows whose deadline has passed, or a step of which waits no longer.
SELECT flow_id FROM flows WHERE deadline_at <= :now
UNION
SELECT flow_id FROM flow_steps WHERE due_at <= :now
LIMIT :limit;

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

-- name: find_due_schedules
-- Schedules whose next tick has come, the longest due first.
SELECT schedule_id FROM schedules WHERE next_at <= :now ORDER BY next_at LIMIT :limit;

-- name: find_expired_approvals
-- Approvals that nobody gave in time, the longest ago first.
SELECT approval_id, flow_id FROM approvals WHERE status = 'pending' AND expires_at <= :now ORDER BY expires_at LIMIT :limit;

-- name: find_deliveries
-- Deliveries to be made now, the longest due of each subscriber, at most a share of each; but for subscribers that are
-- being told as much as they may be at once. One seek a subscriber, however much waits for it.
WITH RECURSIVE told (subscription_id) AS (
    SELECT min(subscription_id) FROM deliveries WHERE due_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(d.subscription_id) FROM deliveries AS d WHERE d.subscription_id > told.subscription_id AND d.due_at IS NOT NULL)
    FROM told WHERE told.subscription_id IS NOT NULL
)
SELECT d.delivery_id
FROM told CROSS JOIN deliveries AS d ON d.ordinal IN (
    SELECT o.ordinal FROM deliveries AS o
    WHERE o.subscription_id = told.subscription_id AND o.due_at <= :now ORDER BY o.due_at LIMIT :share
)
WHERE told.subscription_id NOT IN (SELECT value FROM json_each(:busy))
LIMIT :limit;

-- name: insert_version
-- A definition that may be known already: the same content has the same version.
INSERT INTO step_versions (version, step_id, definition)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING;

-- name: put_step
-- Make a version the current one of its step.
INSERT INTO steps (step_id, version, created_at, updated_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (step_id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at;

-- name: delete_step
-- Take a step out of the register; flows under way keep their version.
DELETE FROM steps WHERE step_id IN (VALUES :rows);

-- name: raise_register
-- The register has changed.
UPDATE register SET revision = revision + change.steps
FROM (WITH change (steps) AS (VALUES :rows) SELECT * FROM change) AS change;

-- name: insert_plans
-- A plan that may be known already: the same content has the same id.
INSERT INTO plans (plan_id, document)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING;

-- name: insert_flows
INSERT INTO flows (
    flow_id, status, created_at, open_steps, error, finished_at, plan, parent, deadline_at, compensation, redrives
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: update_flows
-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled. What has failed or was
-- cancelled becomes active only by one more redrive.
UPDATE flows SET
    status = change.status, open_steps = change.open_steps, error = change.error, finished_at = change.finished_at,
    deadline_at = change.deadline_at, compensation = change.compensation, parent = change.parent,
    redrives = change.redrives
FROM (
    WITH change (
        flow_id, status, open_steps, error, finished_at, deadline_at, compensation, parent, redrives
    ) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flows.flow_id = change.flow_id
    AND (flows.redrives < change.redrives AND flows.status <> 'completed' OR CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'compensating' THEN flows.status IN ('active', 'compensating')
    WHEN 'completed' THEN flows.status IN ('active')
    WHEN 'failed' THEN flows.status IN ('active', 'compensating')
    WHEN 'cancelled' THEN flows.status IN ('active', 'compensating')
END);

-- name: move_flows
-- The same for flows that go on or complete and were never redriven, of which nothing else can change: most of all
-- updates.
UPDATE flows SET
    status = change.status, open_steps = change.open_steps, finished_at = change.finished_at,
    deadline_at = change.deadline_at
FROM (
    WITH change (flow_id, status, open_steps, finished_at, deadline_at) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flows.flow_id = change.flow_id AND CASE change.status
    WHEN 'active' THEN flows.status IN ('active')
    WHEN 'completed' THEN flows.status IN ('active')
END;

-- name: insert_inputs
INSERT INTO flow_inputs (flow_id, goals, init, metadata, labels, options)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: insert_labels
INSERT INTO flow_labels (label, flow_id)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: insert_steps
INSERT INTO flow_steps (
    flow_id, step_id, version, status, goal, items, open_items, failed_items, started_at, finished_at, error, ready_at,
    due_at, released, waiting_items, redrives, outputs
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: update_steps
-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; and whatever several of these moves
-- in one batch come to. What has ended begins anew only by one more redrive.
UPDATE flow_steps SET
    status = change.status, items = change.items, open_items = change.open_items,
    failed_items = change.failed_items, started_at = change.started_at, finished_at = change.finished_at,
    error = change.error, ready_at = change.ready_at, due_at = change.due_at, released = change.released,
    waiting_items = change.waiting_items, redrives = change.redrives, outputs = change.outputs
FROM (
    WITH change (
        flow_id, step_id, status, items, open_items, failed_items, started_at, finished_at, error, ready_at, due_at,
        released, waiting_items, redrives, outputs
    ) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flow_steps.flow_id = change.flow_id AND flow_steps.step_id = change.step_id
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
FROM (
    WITH change (flow_id, step_id, status, open_items, failed_items, finished_at, error, outputs) AS (VALUES :rows)
    SELECT * FROM change
) AS change
WHERE flow_steps.flow_id = change.flow_id AND flow_steps.step_id = change.step_id AND CASE change.status
    WHEN 'active' THEN flow_steps.status IN ('active')
    WHEN 'completed' THEN flow_steps.status IN ('active')
    WHEN 'failed' THEN flow_steps.status IN ('active')
    WHEN 'cancelled' THEN flow_steps.status IN ('active')
END;

-- name: complete_steps
-- The same where none of its items has failed.
UPDATE flow_steps SET
    status = 'completed', open_items = 0, finished_at = change.finished_at, outputs = change.outputs
FROM (
    WITH change (flow_id, step_id, finished_at, outputs) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE flow_steps.flow_id = change.flow_id AND flow_steps.step_id = change.step_id AND flow_steps.status = 'active';

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

-- name: append_journal
INSERT INTO journal (flow_id, work_id, at, events)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

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

-- name: put_gates
-- What the gate knows of a step, new or changed.
INSERT INTO gates (
    flow_id, step_id, work_id, idempotency_key, gate_count, completion_count, first_at, last_at,
    decision, standing, decision_id, input_digest, approval_id, holder, completed_at, completed_work_id,
    facts
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
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
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (approval_id) DO UPDATE SET
    status = excluded.status, reviews = excluded.reviews, decided_at = excluded.decided_at
WHERE approvals.status = 'pending';

-- name: put_keys
-- Whom a key belongs to from now on.
INSERT INTO key_owners (key_id, flow_id, step_id, digest, created_at, expires_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (key_id) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, digest = excluded.digest,
    created_at = excluded.created_at, expires_at = excluded.expires_at;

-- name: put_policies
-- A policy as it is now; without a definition it is deleted.
INSERT INTO policies (policy_id, version, definition, source, changed_by, created_at, updated_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (policy_id) DO UPDATE SET
    version = excluded.version, definition = excluded.definition, source = excluded.source,
    changed_by = excluded.changed_by, updated_at = excluded.updated_at;

-- name: insert_policy_versions
INSERT INTO policy_versions (policy_id, version, definition, source, changed_by, at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

-- name: put_subscriptions
INSERT INTO subscriptions (subscription_id, definition, note, created_at, updated_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (subscription_id) DO UPDATE SET
    definition = excluded.definition, note = excluded.note, updated_at = excluded.updated_at;

-- name: delete_subscriptions
DELETE FROM subscriptions WHERE subscription_id IN (VALUES :rows);

-- name: drop_deliveries
-- What a subscriber that is no more was still to be told.
DELETE FROM deliveries WHERE subscription_id IN (VALUES :rows);

-- name: raise_controls
-- Policies or subscriptions have changed.
UPDATE controls SET revision = revision + change.changes
FROM (WITH change (changes) AS (VALUES :rows) SELECT * FROM change) AS change;

-- name: put_deliveries
-- A delivery, new, to be tried again later, or given up.
INSERT INTO deliveries (delivery_id, subscription_id, flow_id, type, body, attempt, due_at, note, created_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (delivery_id) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at, note = excluded.note;

-- name: delete_deliveries
DELETE FROM deliveries WHERE delivery_id IN (VALUES :rows);

-- name: put_schedules
-- A schedule, new or changed, or moved on to its next tick.
INSERT INTO schedules (
    schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
    last_error, created_at, updated_at
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (schedule_id) DO UPDATE SET
    cron = excluded.cron, timezone = excluded.timezone, every_ms = excluded.every_ms, flow = excluded.flow,
    catch_up = excluded.catch_up, enabled = excluded.enabled, anchor_at = excluded.anchor_at,
    next_at = excluded.next_at, last_at = excluded.last_at, last_flow_id = excluded.last_flow_id,
    last_error = excluded.last_error, created_at = excluded.created_at, updated_at = excluded.updated_at;

-- name: delete_schedules
DELETE FROM schedules WHERE schedule_id IN (VALUES :rows);

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

-- name: next_flow_clock
-- When the first flow must be looked at again: for its deadline, or for a step that waits.
SELECT min(at) FROM (
    SELECT min(deadline_at) AS at FROM flows WHERE deadline_at IS NOT NULL
    UNION ALL
    SELECT min(due_at) FROM flow_steps WHERE due_at IS NOT NULL
);

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
    SELECT min(subscription_id) FROM deliveries WHERE due_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min(d.subscription_id) FROM deliveries AS d WHERE d.subscription_id > told.subscription_id AND d.due_at IS NOT NULL)
    FROM told WHERE told.subscription_id IS NOT NULL
)
SELECT min((
    SELECT min(o.due_at) FROM deliveries AS o WHERE o.subscription_id = told.subscription_id AND o.due_at IS NOT NULL
))
FROM told WHERE told.subscription_id NOT IN (SELECT value FROM json_each(:busy));

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
SELECT s.flow_id, s.outputs FROM json_each(:flow_ids) AS wanted
CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value AND s.outputs IS NOT NULL
ORDER BY wanted.key, s.finished_at, s.step_id;

-- name: get_flow_steps
SELECT s.step_id, s.status, s.goal, s.version, s.started_at, s.finished_at, s.items, s.error, s.due_at, s.redrives,
    v.definition ->> 'kind'
FROM flow_steps s LEFT JOIN step_versions v ON v.version = s.version
WHERE s.flow_id = :flow_id ORDER BY s.started_at, s.step_id;

-- name: get_flow_result
SELECT flow_id, status, error FROM flows WHERE flow_id = :flow_id;

-- name: list_flows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE (:before IS NULL OR f.ordinal < :before)
    AND (:status IS NULL OR f.status = :status)
    AND (:since IS NULL OR f.created_at >= :since)
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal = 1
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: list_open_flows
-- The same for one status that few flows have: along the partial index instead of all flows.
SELECT f.ordinal, f.flow_id, f.status, i.goals, f.created_at, f.error, f.finished_at, i.metadata, i.labels,
    f.pruned_at, f.parent
FROM flows AS f INDEXED BY flows_not_completed JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.status = :status AND f.status <> 'completed'
    AND (:before IS NULL OR f.ordinal < :before)
    AND (:since IS NULL OR f.created_at >= :since)
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
    AND (:goal IS NULL OR EXISTS (
        SELECT 1 FROM flow_steps AS s WHERE s.flow_id = f.flow_id AND s.step_id = :goal AND s.goal = 1
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

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

-- name: step_version
SELECT v.definition FROM step_versions AS v WHERE v.version = :version;

-- name: journal_of_flow
-- The journal gives entries, of which store/journal.py takes the events: from the one on that holds event :after, all
-- of whose events may have been seen already, hence one more than events are wanted.
SELECT seq, flow_id, work_id, at, events
FROM journal WHERE flow_id = :flow_id AND seq >= :after / 64 ORDER BY seq LIMIT :limit + 1;

-- name: ends_without_outcome
-- Entries of a flow that hold the skipping or cancelling of steps, which happened at these times.
SELECT events FROM journal
WHERE flow_id = :flow_id AND at IN (SELECT value FROM json_each(:times))
    AND (events LIKE '%["step_skipped",%' OR events LIKE '%["step_cancelled",%')
ORDER BY seq;

-- name: journal_of_work
SELECT seq, flow_id, work_id, at, events
FROM journal WHERE flow_id = :flow_id AND work_id = :work_id ORDER BY seq;

-- name: journal_of_works
-- The same for several items, each given as its flow and itself.
SELECT j.seq, j.flow_id, j.work_id, j.at, j.events
FROM json_each(:work) AS wanted
CROSS JOIN journal AS j ON j.flow_id = wanted.value ->> 0 AND j.work_id = wanted.value ->> 1
ORDER BY j.seq;

-- name: journal_after
SELECT seq, flow_id, work_id, at, events
FROM journal WHERE seq >= :after / 64 ORDER BY seq LIMIT :limit + 1;

-- name: last_seq
-- The highest number that an event may have so far.
SELECT coalesce(max(seq) * 64 + 63, 0) FROM journal;

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
FROM schedules WHERE schedule_id > coalesce(:after, '') ORDER BY schedule_id LIMIT :limit;

-- name: list_gated_work
-- What agents were let run and have not reported, the oldest first: without what somebody has claimed at this moment.
SELECT w.ordinal, w.work_id, w.flow_id, w.step_id, w.item, w.status, w.attempt, w.due_at, w.deadline_at, w.hold,
    w.progress, w.message, w.result, w.error, w.created_at, w.sent_at, w.acknowledged_at, w.recorded_at,
    w.idempotency_key, w.redrive_of, w.undoes, w.child_flow_id
FROM work AS w JOIN gates AS g ON g.flow_id = w.flow_id AND g.step_id = w.step_id AND g.work_id = w.work_id
WHERE w.version = 'gate' AND w.status IN ('active', 'not_completed')
    AND NOT (w.status = 'active' AND g.holder IS NOT NULL AND w.deadline_at > :now)
    AND (:after IS NULL OR w.ordinal > :after)
    AND (:step_id IS NULL OR w.step_id = :step_id)
ORDER BY w.ordinal LIMIT :limit;

-- name: get_gates
-- What the gate knows of the steps of a flow, in the order in which they were asked for.
SELECT g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts, w.status, w.deadline_at, w.attempt, w.error, a.status
FROM gates AS g JOIN work AS w ON w.work_id = g.work_id LEFT JOIN approvals AS a ON a.approval_id = g.approval_id
WHERE g.flow_id = :flow_id ORDER BY g.first_at, g.step_id;

-- name: list_workflows
-- Newest first. Each filter is off while its parameter is null.
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.plan = 'cooperative'
    AND (:before IS NULL OR f.ordinal < :before)
    AND (:status IS NULL OR f.status = :status)
    AND (:source IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :source AND l.flow_id = f.flow_id
    ))
    AND (:trace_id IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :trace_id AND l.flow_id = f.flow_id
    ))
    AND (:label IS NULL OR EXISTS (
        SELECT 1 FROM flow_labels AS l WHERE l.label = :label AND l.flow_id = f.flow_id
    ))
ORDER BY f.ordinal DESC LIMIT :limit;

-- name: get_workflow
SELECT f.ordinal, f.flow_id, f.status, f.created_at, f.error, f.finished_at, i.metadata, i.labels, i.options
FROM flows AS f JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.flow_id = :flow_id AND f.plan = 'cooperative';

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
WHERE (:after IS NULL OR a.ordinal > :after)
    AND (:status IS NULL OR a.status = :status)
    AND (:flow_id IS NULL OR a.flow_id = :flow_id)
ORDER BY a.ordinal LIMIT :limit;

-- name: get_policy
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at FROM policies AS p WHERE p.policy_id = :policy_id AND p.definition IS NOT NULL;

-- name: list_policies
-- By id, behind the one that the last page ended with.
SELECT p.policy_id, p.version, p.definition, p.source, p.changed_by, p.created_at, p.updated_at FROM policies AS p
WHERE p.policy_id > coalesce(:after, '') AND p.definition IS NOT NULL ORDER BY p.policy_id LIMIT :limit;

-- name: policy_versions
-- Newest first.
SELECT policy_id, version, definition, source, changed_by, at FROM policy_versions
WHERE policy_id = :policy_id ORDER BY version DESC LIMIT :limit;

-- name: get_subscription
SELECT s.subscription_id, s.definition, s.note, s.created_at, s.updated_at FROM subscriptions AS s WHERE s.subscription_id = :subscription_id;

-- name: list_subscriptions
-- By id, behind the one that the last page ended with.
SELECT s.subscription_id, s.definition, s.note, s.created_at, s.updated_at FROM subscriptions AS s
WHERE s.subscription_id > coalesce(:after, '') ORDER BY s.subscription_id LIMIT :limit;

-- name: list_deliveries
-- What a subscriber was not told yet, the oldest first.
SELECT d.ordinal, d.delivery_id, d.subscription_id, d.flow_id, d.type, d.body, d.attempt, d.due_at, d.note, d.created_at FROM deliveries AS d
WHERE d.subscription_id = :subscription_id AND (:after IS NULL OR d.ordinal > :after) ORDER BY d.ordinal LIMIT :limit;

-- name: doctor_versions
SELECT version, step_id, definition FROM step_versions;

-- name: doctor_flows
SELECT ordinal, flow_id FROM flows WHERE ordinal > ? ORDER BY ordinal LIMIT ?;

-- name: doctor_steps
SELECT json_group_array(json_array(
    s.flow_id, s.step_id, s.version, s.status, s.goal, s.items, s.open_items, s.failed_items, s.started_at, s.finished_at,
    s.error, s.ready_at, s.due_at, s.released, s.waiting_items, s.redrives, s.outputs
))
FROM json_each(?) AS wanted CROSS JOIN flow_steps AS s ON s.flow_id = wanted.value;

-- name: doctor_work
SELECT json_group_array(w.work_id) FROM json_each(?) AS wanted CROSS JOIN work AS w ON w.flow_id = wanted.value;

-- name: doctor_gates
SELECT json_group_array(json_array(
    g.flow_id, g.step_id, g.work_id, g.idempotency_key, g.gate_count, g.completion_count, g.first_at, g.last_at,
    g.decision, g.standing, g.decision_id, g.input_digest, g.approval_id, g.holder, g.completed_at, g.completed_work_id,
    g.facts
))
FROM json_each(?) AS wanted CROSS JOIN gates AS g ON g.flow_id = wanted.value;

-- name: doctor_approvals
SELECT json_group_array(json_array(
    a.approval_id, a.flow_id, a.step_id, a.work_id, a.attempt, a.digest, a.status, a.requested_at, a.expires_at,
    a.approvals, a.separate_requester, a.severity, a.requester, a.reason, a.policies, a.arguments, a.reviews,
    a.decided_at
))
FROM json_each(?) AS wanted CROSS JOIN approvals AS a ON a.flow_id = wanted.value;

-- name: doctor_journal
SELECT j.flow_id, j.work_id, j.at, j.events
FROM json_each(?) AS wanted CROSS JOIN journal AS j ON j.flow_id = wanted.value ORDER BY j.seq;

-- name: doctor_lost_events
SELECT j.flow_id, count(*) FROM journal AS j
WHERE NOT EXISTS (SELECT 1 FROM flows AS f WHERE f.flow_id = j.flow_id) GROUP BY j.flow_id LIMIT 100;

-- Retention: finished flows go, wholly (prune_...) or without what they carried (empty_...). Whatever table or column
-- belongs to a flow or carries payload has its place here, and in store/unit_of_work/pruning.py.

-- name: walk_flows
-- Flows in the order in which they were made; those that ended by the cutoff with the number of their work items.
SELECT f.ordinal, f.flow_id, f.created_at,
    CASE WHEN f.finished_at <= :cutoff AND (NOT :payloads OR f.pruned_at IS NULL) THEN (
        SELECT coalesce(sum(s.items), 0) FROM flow_steps AS s WHERE s.flow_id = f.flow_id
    ) END
FROM flows AS f WHERE f.ordinal > :after ORDER BY f.ordinal LIMIT :limit;

-- name: find_prunable
-- Those of some flows that ended by the cutoff, each with its labels.
SELECT f.flow_id, i.labels
FROM json_each(:flows) AS wanted
CROSS JOIN flows AS f ON f.flow_id = wanted.value
LEFT JOIN flow_inputs AS i ON i.flow_id = f.flow_id
WHERE f.status IN ('completed', 'failed', 'cancelled') AND f.finished_at <= :cutoff
    AND (NOT :payloads OR f.pruned_at IS NULL);

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

-- name: prune_deliveries
DELETE FROM deliveries WHERE flow_id IN (VALUES :rows);

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
-- Who decided what stays; what it was about does not.
UPDATE approvals SET arguments = NULL WHERE flow_id IN (VALUES :rows);

-- name: empty_deliveries
-- A delivery that nobody took is what the flow carried, too.
DELETE FROM deliveries WHERE flow_id IN (VALUES :rows);

-- name: empty_flows
UPDATE flows SET pruned_at = change.pruned_at
FROM (WITH change (flow_id, pruned_at) AS (VALUES :rows) SELECT * FROM change) AS change
WHERE flows.flow_id = change.flow_id AND flows.pruned_at IS NULL
    AND flows.status IN ('completed', 'failed', 'cancelled');

-- name: doctor_pruned
-- Flows whose journal is gone.
SELECT json_group_array(f.flow_id)
FROM json_each(?) AS wanted CROSS JOIN flows AS f ON f.flow_id = wanted.value WHERE f.pruned_at IS NOT NULL;
