-- Hooks, the tokens that they own, the payloads that they keep, and the deliveries that they have taken.

-- name: load_hooks
-- Some hooks.
SELECT json_group_array(json_array(
    h.hook_id, h.flow_id, h.step_id, h.item, h.status, h.token_id, h.token, h.collect, h.created_at, h.work_id,
    h.received, h.size, h.enough, h.registered_at, h.deadline_at
))
FROM json_each(?) AS wanted CROSS JOIN hooks AS h ON h.hook_id = wanted.value;

-- name: load_hook_tokens
-- Some tokens, with their owners and queues.
SELECT json_group_array(json_array(
    t.token_id, t.hook_id, t.flow_id, t.step_id, t.work_id, t.queue, t.wake_at
))
FROM json_each(?) AS wanted CROSS JOIN hook_tokens AS t ON t.token_id = wanted.value;

-- name: load_hook_payloads
-- Some payloads.
SELECT json_group_array(json_array(
    p.payload_id, p.flow_id, p.payload
))
FROM json_each(?) AS wanted CROSS JOIN hook_payloads AS p ON p.payload_id = wanted.value;

-- name: load_hook_deliveries
-- Some delivery ids that were taken.
SELECT json_group_array(json_array(
    d.delivery_key, d.flow_id, d.step_id, d.hook_id
))
FROM json_each(?) AS wanted CROSS JOIN hook_deliveries AS d ON d.delivery_key = wanted.value;

-- name: put_hooks
INSERT INTO hooks (
    hook_id, flow_id, step_id, item, status, token_id, token, collect, created_at, work_id, received, size, enough,
    registered_at, deadline_at
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (hook_id) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, item = excluded.item, status = excluded.status,
    token_id = excluded.token_id, token = excluded.token, collect = excluded.collect,
    created_at = excluded.created_at, work_id = excluded.work_id, received = excluded.received,
    size = excluded.size, enough = excluded.enough, registered_at = excluded.registered_at,
    deadline_at = excluded.deadline_at;

-- name: put_hook_tokens
INSERT INTO hook_tokens (
    token_id, hook_id, flow_id, step_id, work_id, queue, wake_at
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (token_id) DO UPDATE SET
    hook_id = excluded.hook_id, flow_id = excluded.flow_id, step_id = excluded.step_id, work_id = excluded.work_id,
    queue = excluded.queue, wake_at = excluded.wake_at;

-- name: put_hook_payloads
INSERT INTO hook_payloads (
    payload_id, flow_id, payload
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (payload_id) DO UPDATE SET
    flow_id = excluded.flow_id, payload = excluded.payload;

-- name: put_hook_deliveries
INSERT INTO hook_deliveries (
    delivery_key, flow_id, step_id, hook_id
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (delivery_key) DO UPDATE SET
    flow_id = excluded.flow_id, step_id = excluded.step_id, hook_id = excluded.hook_id;

-- name: delete_hooks
DELETE FROM hooks WHERE hook_id IN (VALUES :rows);

-- name: delete_hook_tokens
DELETE FROM hook_tokens WHERE token_id IN (VALUES :rows);

-- name: delete_hook_payloads
DELETE FROM hook_payloads WHERE payload_id IN (VALUES :rows);

-- name: delete_hook_deliveries
DELETE FROM hook_deliveries WHERE delivery_key IN (VALUES :rows);

-- name: find_expected_hooks
-- Hooks with this token whose steps had not started, the oldest first. The lock of the token covers them.
SELECT h.hook_id FROM hooks AS h
WHERE h.token_id = :token_id AND h.status = 'expected' ORDER BY h.created_at, h.hook_id LIMIT :limit;

-- name: find_waking_hooks
-- Hooks that had to wait for their tokens, and own them by now.
SELECT t.token_id, t.hook_id, t.work_id FROM hook_tokens AS t
WHERE t.wake_at IS NOT NULL ORDER BY t.wake_at, t.token_id LIMIT :limit;

-- name: next_waking_hook
SELECT min(wake_at) FROM hook_tokens WHERE wake_at IS NOT NULL;

-- name: get_hook
-- The hook that owns a token.
SELECT h.registered_at, h.work_id, h.flow_id, h.step_id, h.item, h.status, h.token, h.received, h.collect, h.deadline_at
FROM hook_tokens AS t JOIN hooks AS h ON h.hook_id = t.hook_id WHERE t.token_id = :token_id;

-- name: get_expected_hook
-- The hook that would take the next payload of a token that no hook owns.
SELECT h.registered_at, h.work_id, h.flow_id, h.step_id, h.item, h.status, h.token, h.received, h.collect, h.deadline_at
FROM hooks AS h
JOIN flow_steps AS s ON s.flow_id = h.flow_id AND s.step_id = h.step_id
JOIN flows AS f ON f.flow_id = h.flow_id
WHERE h.token_id = :token_id AND h.status = 'expected' AND h.enough = 0
    AND f.status = 'active' AND s.status IN ('pending', 'active')
ORDER BY h.created_at, h.hook_id LIMIT 1;

-- name: list_hooks
-- Active hooks, the longest waiting first.
SELECT h.registered_at, h.work_id, h.flow_id, h.step_id, h.item, h.status, h.token, h.received, h.collect, h.deadline_at
FROM hooks AS h
WHERE h.status = 'waiting'
    AND (:after_at IS NULL OR (h.registered_at, h.work_id) > (:after_at, :after_work))
    AND (:step_id IS NULL OR h.step_id = :step_id)
ORDER BY h.registered_at, h.work_id LIMIT :limit;

-- name: hooks_of_flow
-- What the hooks of a flow wait for, by work item.
SELECT h.work_id, h.status, h.token, h.received, h.collect FROM hooks AS h
WHERE h.flow_id = :flow_id AND h.work_id IS NOT NULL;

-- name: count_hooks
-- How many hooks wait for a payload.
SELECT count(*) FROM hooks WHERE status = 'waiting';
