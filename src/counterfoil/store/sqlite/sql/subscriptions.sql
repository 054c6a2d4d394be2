-- Subscriptions and deliveries.

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

-- name: put_deliveries
-- A delivery, new, to be tried again later, or given up.
INSERT INTO deliveries (delivery_id, subscription_id, flow_id, type, body, attempt, due_at, note, created_at)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (delivery_id) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at, note = excluded.note;

-- name: delete_deliveries
DELETE FROM deliveries WHERE delivery_id IN (VALUES :rows);

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
