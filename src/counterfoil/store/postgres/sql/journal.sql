-- The journal.

-- name: append_journal
INSERT INTO journal (flow_id, work_id, at, events)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
RETURNING seq;

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
