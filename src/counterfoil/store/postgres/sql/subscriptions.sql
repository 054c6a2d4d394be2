-- Subscriptions and deliveries.

-- name: load_subscriptions
-- Subscriptions by id.
SELECT s.subscription_id, s.definition, s.note, s.created_at, s.updated_at FROM subscriptions AS s WHERE s.subscription_id = ANY($1::text[]);

-- name: load_deliveries
-- Deliveries by id.
SELECT d.delivery_id, d.subscription_id, d.flow_id, d.type, d.body, d.attempt, d.due_at, d.note, d.created_at
FROM deliveries AS d WHERE d.delivery_id = ANY($1::text[]);

-- name: find_deliveries
-- Deliveries to be made now, the longest due of each subscriber, at most a share of each; but for subscribers that are
-- being told as much as they may be at once. One seek a subscriber, however much waits for it. Their own rows are locked:
-- the node that locks one makes it.
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

-- name: put_subscriptions
INSERT INTO subscriptions (subscription_id, definition, note, created_at, updated_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
ON CONFLICT (subscription_id) DO UPDATE SET
    definition = excluded.definition, note = excluded.note, updated_at = excluded.updated_at;

-- name: delete_subscriptions
DELETE FROM subscriptions WHERE subscription_id = ANY($1::text[]);

-- name: drop_deliveries
-- Undelivered messages of a deleted subscription. One that another node has locked is dropped by that node.
DELETE FROM deliveries WHERE delivery_id IN (
    SELECT d.delivery_id FROM deliveries AS d WHERE d.subscription_id = ANY($1::text[]) FOR UPDATE SKIP LOCKED
);

-- name: put_deliveries
-- A delivery, new, to be tried again later, or given up.
INSERT INTO deliveries (delivery_id, subscription_id, flow_id, type, body, attempt, due_at, note, created_at)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::bigint[], $8::text[], $9::bigint[]
)
ON CONFLICT (delivery_id) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at, note = excluded.note;

-- name: delete_deliveries
DELETE FROM deliveries WHERE delivery_id = ANY($1::text[]);

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
