-- The journal.

-- name: append_journal
INSERT INTO journal (flow_id, work_id, at, events)
SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL;

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
