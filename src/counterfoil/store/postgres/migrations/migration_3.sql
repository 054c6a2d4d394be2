-- What is open gets tables of its own, so that ending a flow or an item changes no index of the tables that keep it; and
-- the checks go, whose text was read anew in every statement.

-- The flows that have not completed, to be listed by their status. Kept in step by the statements that write flows.
CREATE TABLE open_flows (
    flow_id TEXT COLLATE "C" PRIMARY KEY,
    status  TEXT NOT NULL,
    ordinal BIGINT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX open_flows_of_status ON open_flows (status, ordinal);

-- Work of which something may still come: all that is neither done nor cancelled, with what searches ask for. Kept in
-- step by the statements that write work.
CREATE TABLE open_work (
    work_id     TEXT COLLATE "C" PRIMARY KEY,
    flow_id     TEXT COLLATE "C" NOT NULL,
    step_id     TEXT COLLATE "C" NOT NULL,
    version     TEXT COLLATE "C" NOT NULL,
    lane        TEXT COLLATE "C" NOT NULL,
    status      TEXT NOT NULL,
    due_at      BIGINT,
    sent_at     BIGINT,
    owner       TEXT COLLATE "C",
    recorded_at BIGINT,
    ordinal     BIGINT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- What may be sent, lane by lane, the longest due first.
CREATE INDEX open_work_claimable ON open_work (lane, due_at)
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL;
-- What is out, by step: how many (parallelism) and since when (the oldest one waiting). What agents run is not out.
CREATE INDEX open_work_waiting ON open_work (step_id, sent_at) WHERE status = 'active' AND version <> 'gate';
-- Whose clock runs out next.
CREATE INDEX open_work_due ON open_work (due_at) WHERE status = 'active';
-- What is being sent at this moment, and by which node.
CREATE INDEX open_work_sending ON open_work (owner) WHERE owner IS NOT NULL;
-- What has failed, by step: to be found and redriven.
CREATE INDEX open_work_failed ON open_work (step_id, recorded_at) WHERE status = 'failed';
-- Steps that agents were let run, and of which nothing was reported yet.
CREATE INDEX open_work_gated ON open_work (ordinal) WHERE version = 'gate' AND status IN ('active', 'not_completed');
-- What waits for an approval.
CREATE INDEX open_work_held ON open_work (ordinal) WHERE status = 'held';

INSERT INTO open_flows (flow_id, status, ordinal)
SELECT flow_id, status, ordinal FROM flows WHERE status <> 'completed';
INSERT INTO open_work (
    work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal
)
SELECT work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal
FROM work WHERE status NOT IN ('succeeded', 'cancelled');

DROP INDEX flows_not_completed, work_claimable, work_waiting, work_due, work_sending, work_failed, work_gated, work_held;
ALTER TABLE flows DROP CONSTRAINT flows_status_check, DROP CONSTRAINT flows_open_steps_check, SET (fillfactor = 60);
ALTER TABLE flow_steps DROP CONSTRAINT flow_steps_status_check, DROP CONSTRAINT flow_steps_open_items_check;
ALTER TABLE work DROP CONSTRAINT work_status_check, DROP CONSTRAINT work_attempt_check, SET (fillfactor = 60);
ANALYZE flows, work, open_flows, open_work;
