-- Callbacks: what arrived at a webhook, heartbeat or hook URL and was not accepted. What was accepted is in the journal.

-- name: load_callbacks
SELECT
    c.callback_id, c.at, c.kind, c.verdict, c.status, c.flow_id, c.step_id, c.work_id, c.attempt,
    c.size, c.digest, c.source, c.trace_id, c.body, c.headers
FROM callbacks AS c WHERE c.callback_id = ANY($1::text[]);

-- name: put_callbacks
-- A callback. It is written once; only a commit whose outcome was unknown is made again.
INSERT INTO callbacks (
    callback_id, at, kind, verdict, status, flow_id, step_id, work_id, attempt,
    size, digest, source, trace_id, body, headers
)
SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::text[],
    $9::integer[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[]
)
ON CONFLICT (callback_id) DO UPDATE SET
    at = excluded.at, kind = excluded.kind, verdict = excluded.verdict, status = excluded.status,
    flow_id = excluded.flow_id, step_id = excluded.step_id, work_id = excluded.work_id, attempt = excluded.attempt,
    size = excluded.size, digest = excluded.digest, source = excluded.source, trace_id = excluded.trace_id,
    body = excluded.body, headers = excluded.headers;

-- name: delete_callbacks
DELETE FROM callbacks WHERE callback_id = ANY($1::text[]);

-- name: find_old_callbacks
-- Callbacks that arrived by the cutoff, oldest first.
SELECT c.callback_id FROM callbacks AS c WHERE c.at <= :cutoff ORDER BY c.at LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: find_surplus_callbacks
-- The oldest callbacks, as far as there are more than :most: numbers have no gaps but those of callbacks that are gone.
SELECT c.callback_id FROM callbacks AS c
WHERE c.ordinal <= (SELECT max(ordinal) FROM callbacks) - :most::bigint
ORDER BY c.ordinal LIMIT :limit FOR UPDATE SKIP LOCKED;

-- name: next_old_callback
SELECT min(at) FROM callbacks;

-- name: work_of_callbacks
-- The flow, step and attempt of some work items.
SELECT w.work_id, w.flow_id, w.step_id, w.attempt
FROM work AS w WHERE w.work_id = ANY(ARRAY(SELECT jsonb_array_elements_text(:work::jsonb)));

-- name: versions_of_callbacks
-- The versions of some steps of flows.
SELECT s.flow_id, s.step_id, s.version
FROM jsonb_array_elements(:steps::jsonb) AS wanted (item)
JOIN flow_steps AS s ON s.flow_id = wanted.item ->> 0 AND s.step_id = wanted.item ->> 1;

-- name: get_callback
SELECT
    callback_id, at, kind, verdict, status, flow_id, step_id, work_id, attempt,
    size, digest, source, trace_id, body, headers
FROM callbacks WHERE callback_id = :callback_id;

-- name: list_callbacks
-- Callbacks that were not accepted, newest first. Each filter is off while its parameter is null.
SELECT c.ordinal,
    c.callback_id, c.at, c.kind, c.verdict, c.status, c.flow_id, c.step_id, c.work_id, c.attempt,
    c.size, c.digest, c.source, c.trace_id, c.body, c.headers
FROM callbacks AS c
WHERE c.verdict <> 'accepted'
    AND (:before_at::bigint IS NULL OR (c.at, c.ordinal) < (:before_at::bigint, :before_ordinal::bigint))
    AND (:flow_id::text IS NULL OR c.flow_id = :flow_id::text)
    AND (:step_id::text IS NULL OR c.step_id = :step_id::text)
    AND (:work_id::text IS NULL OR c.work_id = :work_id::text)
    AND (:kind::text IS NULL OR c.kind = :kind::text)
    AND (:verdict::text IS NULL OR c.verdict = :verdict::text)
    AND (:since::bigint IS NULL OR c.at >= :since::bigint)
    AND (:until::bigint IS NULL OR c.at < :until::bigint)
ORDER BY c.at DESC, c.ordinal DESC LIMIT :limit::bigint;

-- name: accepted_callbacks
-- What was kept of accepted callbacks, each given as its flow and time; in the order in which they were recorded.
SELECT
    c.callback_id, c.at, c.kind, c.verdict, c.status, c.flow_id, c.step_id, c.work_id, c.attempt,
    c.size, c.digest, c.source, c.trace_id, c.body, c.headers
FROM jsonb_array_elements(:wanted::jsonb) AS wanted (item)
JOIN callbacks AS c ON c.flow_id = ANY(ARRAY[wanted.item ->> 0]) AND c.at = (wanted.item ->> 1)::bigint
WHERE c.verdict = 'accepted' ORDER BY c.ordinal;

-- name: callbacks_in_journal
-- Entries of the journal, newest first, down from :before; of those that hold no accepted callback, the events are null.
SELECT seq, flow_id, work_id, at,
    CASE WHEN events LIKE '%"via":"webhook"%' OR events LIKE '%["work_heartbeat",%'
        OR events LIKE '%["hook_received",%' OR events LIKE '%"via":"hook"%' THEN events END
FROM journal WHERE seq <= :before::bigint ORDER BY seq DESC LIMIT :limit;

-- name: callbacks_in_journal_of_flow
-- The same for one flow, and for one work item if it is given.
SELECT seq, flow_id, work_id, at,
    CASE WHEN (:work_id::text IS NULL OR work_id = :work_id::text)
        AND (
            events LIKE '%"via":"webhook"%' OR events LIKE '%["work_heartbeat",%'
            OR events LIKE '%["hook_received",%' OR events LIKE '%"via":"hook"%'
        ) THEN events END
FROM journal WHERE flow_id = :flow_id AND seq <= :before::bigint ORDER BY seq DESC LIMIT :limit;

-- name: journal_entry
SELECT seq, flow_id, work_id, at, events FROM journal WHERE seq = :seq;

-- name: journal_entry_from
-- The first entry from a number on, and its time.
SELECT seq, at FROM journal WHERE seq >= :seq ORDER BY seq LIMIT 1;

-- name: hook_tokens_of_callback
-- The tokens of the hooks of a step that have not ended, as digests.
SELECT DISTINCT token_id FROM hooks WHERE flow_id = :flow_id AND step_id = :step_id AND status <> 'ended';

-- name: hook_token_of_work
-- The token of the hook of a work item, as a digest; null: its hook does not wait.
SELECT h.token_id FROM work AS w
LEFT JOIN hooks AS h ON h.flow_id = w.flow_id AND h.work_id = w.work_id AND h.status = 'waiting'
WHERE w.work_id = :work_id;
