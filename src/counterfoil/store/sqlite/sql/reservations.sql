-- Reservations of the effects API, and the fence floors of keys that were forgotten.

-- name: load_reservations
-- Some keys of tools, each with its reservation or outcome.
SELECT json_group_array(json_array(
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited, r.audit
))
FROM json_each(?) AS wanted CROSS JOIN reservations AS r ON r.effect_id = wanted.value;

-- name: load_fences
-- The fence floors of some buckets.
SELECT json_group_array(json_array(f.bucket, f.fence))
FROM json_each(?) AS wanted CROSS JOIN fence_floors AS f ON f.bucket = wanted.value;

-- name: put_reservations
-- A key of a tool with its reservation or outcome, new or changed.
INSERT INTO reservations (
    effect_id, tool, effect_key, effect_class, state, fence, holder, reserved_at, window_ms, arguments_digest,
    expires_at, outcome, recorded_at, forget_at, hits, audited, audit
)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (effect_id) DO UPDATE SET
    tool = excluded.tool, effect_key = excluded.effect_key, effect_class = excluded.effect_class,
    state = excluded.state, fence = excluded.fence, holder = excluded.holder, reserved_at = excluded.reserved_at,
    window_ms = excluded.window_ms, arguments_digest = excluded.arguments_digest, expires_at = excluded.expires_at,
    outcome = excluded.outcome, recorded_at = excluded.recorded_at, forget_at = excluded.forget_at,
    hits = excluded.hits, audited = excluded.audited, audit = excluded.audit;

-- name: hit_reservations
-- A recorded outcome was given to a caller.
UPDATE reservations SET hits = change.hits, audited = change.audited, audit = change.audit
FROM (
    WITH change (effect_id, hits, audited, audit) AS (VALUES :rows) SELECT * FROM change
) AS change
WHERE reservations.effect_id = change.effect_id AND reservations.state <> 'pending';

-- name: put_fences
-- A fence floor only rises, whichever batch writes last.
INSERT INTO fence_floors (bucket, fence)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL
ON CONFLICT (bucket) DO UPDATE SET fence = max(fence_floors.fence, excluded.fence);

-- name: delete_reservations
DELETE FROM reservations WHERE effect_id IN (VALUES :rows);

-- name: get_effect
-- The record of one key, unless it was freed or is past its window.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited, r.audit
FROM reservations AS r
WHERE r.effect_id = :effect_id AND r.state <> 'free' AND (r.forget_at IS NULL OR r.forget_at > :now);

-- name: list_effects
-- The records of the effects API by tool and key, in a range that is never open: see engine/queries/reservation_queries.py.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited
FROM reservations AS r
WHERE r.state <> 'free' AND (:state IS NULL OR r.state = :state)
    AND (r.forget_at IS NULL OR r.forget_at > :now)
    AND (r.tool, r.effect_key) > (:after_tool, :after_key) AND r.tool <= :last_tool
ORDER BY r.tool, r.effect_key LIMIT :limit;

-- name: list_pending_effects
-- The same of what is pending, which an index of its own finds.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited
FROM reservations AS r
WHERE r.state = 'pending'
    AND (r.forget_at IS NULL OR r.forget_at > :now)
    AND (r.tool, r.effect_key) > (:after_tool, :after_key) AND r.tool <= :last_tool
ORDER BY r.tool, r.effect_key LIMIT :limit;

-- name: list_failed_effects
-- The same of recorded failures.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited
FROM reservations AS r
WHERE r.state = 'complete-failed'
    AND (r.forget_at IS NULL OR r.forget_at > :now)
    AND (r.tool, r.effect_key) > (:after_tool, :after_key) AND r.tool <= :last_tool
ORDER BY r.tool, r.effect_key LIMIT :limit;

-- name: pending_effects
-- How many reservations are pending: within their time to live, and past it.
SELECT count(*) FILTER (WHERE expires_at > :now), count(*) FILTER (WHERE expires_at <= :now)
FROM reservations WHERE state = 'pending';

-- name: find_forgettable_effects
-- Records of the effects API whose window has passed, the longest ago first.
SELECT r.effect_id FROM reservations AS r WHERE r.forget_at <= :now ORDER BY r.forget_at LIMIT :limit;
