-- Work items whose outcome is, or was, unknown. hold: it waits in the reconciliation queue. due_at: status_url is asked.
CREATE TABLE reconciliations (
    work_id     TEXT PRIMARY KEY,
    flow_id     TEXT NOT NULL,
    step_id     TEXT NOT NULL,
    hold        TEXT,
    cause       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    due_at      INTEGER,
    probes      INTEGER NOT NULL,
    probed_at   INTEGER,
    probe_state TEXT,
    granted     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reconciliations_of_flow ON reconciliations (flow_id);
CREATE INDEX reconciliations_held ON reconciliations (since, work_id) WHERE hold IS NOT NULL;
CREATE INDEX reconciliations_due ON reconciliations (due_at) WHERE due_at IS NOT NULL;

-- Keys that work items share: which item owns the key, and later its result, which is forgotten after expires_at.
-- With rowid: keys are digests, and a key in a small index of its own costs a smaller random page than a whole row.
CREATE TABLE dedup_records (
    dedup_id        TEXT PRIMARY KEY,
    step_id         TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    state           TEXT NOT NULL,
    work_id         TEXT,
    flow_id         TEXT,
    outcome         TEXT,
    recorded_at     INTEGER,
    expires_at      INTEGER,
    waiting         INTEGER NOT NULL,
    wake_at         INTEGER
) STRICT;
CREATE INDEX dedup_records_expiring ON dedup_records (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX dedup_records_waking ON dedup_records (wake_at) WHERE wake_at IS NOT NULL;

-- Work items that wait for a key, in the order in which they came.
CREATE TABLE dedup_waiters (
    work_id  TEXT PRIMARY KEY,
    flow_id  TEXT NOT NULL,
    dedup_id TEXT NOT NULL,
    since    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_waiters_of_key ON dedup_waiters (dedup_id, since, work_id);
CREATE INDEX dedup_waiters_of_flow ON dedup_waiters (flow_id);
