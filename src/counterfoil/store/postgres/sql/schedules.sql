-- Schedules.

-- name: load_schedules
-- Schedules by id.
SELECT
    s.schedule_id, s.cron, s.timezone, s.every_ms, s.flow, s.catch_up, s.enabled, s.anchor_at, s.next_at, s.last_at,
    s.last_flow_id, s.last_error, s.created_at, s.updated_at
FROM schedules AS s WHERE s.schedule_id = ANY($1::text[]);

-- name: find_due_schedules
-- Schedules whose next tick has come, the longest due first. Their own rows are locked: they belong to no flow.
SELECT schedule_id FROM schedules WHERE next_at <= :now ORDER BY next_at LIMIT :limit FOR UPDATE SKIP LOCKED;

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

-- name: next_schedule
-- When the next tick of any schedule is due.
SELECT min(next_at) FROM schedules WHERE next_at IS NOT NULL;

-- name: get_schedule
SELECT schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
    last_error, created_at, updated_at
FROM schedules WHERE schedule_id = :schedule_id;

-- name: list_schedules
-- By id, behind the one that the last page ended with.
SELECT schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
    last_error, created_at, updated_at
FROM schedules WHERE schedule_id > coalesce(:after::text, '') ORDER BY schedule_id LIMIT :limit;
