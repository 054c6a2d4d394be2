-- Reservations of the effects API, and the fence floors of keys that were forgotten.

-- name: load_reservations
-- Some keys of tools, each with its reservation or outcome.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited, r.audit
FROM reservations AS r WHERE r.effect_id = ANY($1::text[]);

-- name: load_fences
-- The fence floors of some buckets.
SELECT f.bucket, f.fence FROM fence_floors AS f WHERE f.bucket = ANY($1::text[]);

-- name: put_reservations
-- A key of a tool with its reservation or outcome, new or changed.
INSERT INTO reservations (
    effect_id, tool, effect_key, effect_class, state, fence, holder, reserved_at, window_ms, arguments_digest,
    expires_at, outcome, recorded_at, forget_at, hits, audited, audit
)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::bigint[],
    $9::bigint[], $10::text[], $11::bigint[], $12::text[], $13::bigint[], $14::bigint[], $15::bigint[],
    $16::bigint[], $17::text[]
)
ON CONFLICT (effect_id) DO UPDATE SET
    tool = excluded.tool, effect_key = excluded.effect_key, effect_class = excluded.effect_class,
    state = excluded.state, fence = excluded.fence, holder = excluded.holder, reserved_at = excluded.reserved_at,
    window_ms = excluded.window_ms, arguments_digest = excluded.arguments_digest, expires_at = excluded.expires_at,
    outcome = excluded.outcome, recorded_at = excluded.recorded_at, forget_at = excluded.forget_at,
    hits = excluded.hits, audited = excluded.audited, audit = excluded.audit;

-- name: hit_reservations
-- A recorded outcome was given to a caller.
UPDATE reservations SET hits = change.hits, audited = change.audited, audit = change.audit
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[]) AS change (effect_id, hits, audited, audit)
WHERE reservations.effect_id = ANY(ARRAY[change.effect_id]) AND reservations.state <> 'pending';

-- name: put_fences
-- A fence floor only rises, whichever batch writes last: no lock is needed.
INSERT INTO fence_floors (bucket, fence)
SELECT * FROM unnest($1::text[], $2::bigint[])
ON CONFLICT (bucket) DO UPDATE SET fence = greatest(fence_floors.fence, excluded.fence);

-- name: delete_reservations
DELETE FROM reservations WHERE effect_id = ANY($1::text[]);

-- name: get_effect
-- The record of one key, unless it was freed or is past its window.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited, r.audit
FROM reservations AS r
WHERE r.effect_id = :effect_id AND r.state <> 'free' AND (r.forget_at IS NULL OR r.forget_at > :now::bigint);

-- name: list_effects
-- The records of the effects API by tool and key, in a range that is never open: see engine/queries/reservation_queries.py.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited
FROM reservations AS r
WHERE r.state <> 'free' AND (:state::text IS NULL OR r.state = :state)
    AND (r.forget_at IS NULL OR r.forget_at > :now::bigint)
    AND (r.tool, r.effect_key) > (:after_tool::text, :after_key::text) AND r.tool <= :last_tool::text
ORDER BY r.tool, r.effect_key LIMIT :limit;

-- name: list_pending_effects
-- The same of what is pending, which an index of its own finds.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited
FROM reservations AS r
WHERE r.state = 'pending'
    AND (r.forget_at IS NULL OR r.forget_at > :now::bigint)
    AND (r.tool, r.effect_key) > (:after_tool::text, :after_key::text) AND r.tool <= :last_tool::text
ORDER BY r.tool, r.effect_key LIMIT :limit;

-- name: list_failed_effects
-- The same of recorded failures.
SELECT
    r.effect_id, r.tool, r.effect_key, r.effect_class, r.state, r.fence, r.holder, r.reserved_at, r.window_ms,
    r.arguments_digest, r.expires_at, r.outcome, r.recorded_at, r.forget_at, r.hits, r.audited
FROM reservations AS r
WHERE r.state = 'complete-failed'
    AND (r.forget_at IS NULL OR r.forget_at > :now::bigint)
    AND (r.tool, r.effect_key) > (:after_tool::text, :after_key::text) AND r.tool <= :last_tool::text
ORDER BY r.tool, r.effect_key LIMIT :limit;

-- name: pending_effects
-- How many reservations are pending: within their time to live, and past it.
SELECT count(*) FILTER (WHERE expires_at > :now::bigint), count(*) FILTER (WHERE expires_at <= :now::bigint)
FROM reservations WHERE state = 'pending';

-- name: find_forgettable_effects
-- Records of the effects API whose window has passed, the longest ago first.
SELECT r.effect_id FROM reservations AS r WHERE r.forget_at <= :now ORDER BY r.forget_at LIMIT :limit;
