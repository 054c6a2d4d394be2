-- The gate: what it knows of each step, approvals, keys across workflows, policies and who is told of what.

-- What the gate knows of a step that an agent runs itself, beside the step and its work: how often it was asked, what it
-- said last (decision), what it will say to the same question (standing), and who has claimed it.
CREATE TABLE gates (
    flow_id           TEXT NOT NULL,
    step_id           TEXT NOT NULL,
    work_id           TEXT NOT NULL,
    idempotency_key   TEXT NOT NULL,
    gate_count        INTEGER NOT NULL CHECK (gate_count > 0),
    completion_count  INTEGER NOT NULL,
    first_at          INTEGER NOT NULL,
    last_at           INTEGER NOT NULL,
    decision          TEXT NOT NULL CHECK (decision IN ('allow', 'block', 'require_approval')),
    standing          TEXT NOT NULL CHECK (standing IN ('allow', 'block', 'require_approval')),
    decision_id       TEXT NOT NULL,
    input_digest      TEXT NOT NULL,
    approval_id       TEXT,
    holder            TEXT,
    completed_at      INTEGER,
    completed_work_id TEXT,
    facts             TEXT NOT NULL,
    PRIMARY KEY (flow_id, step_id)
) STRICT, WITHOUT ROWID;

-- pending -> approved | rejected | expired | void
CREATE TABLE approvals (
    ordinal            INTEGER PRIMARY KEY,
    approval_id        TEXT NOT NULL UNIQUE,
    flow_id            TEXT NOT NULL,
    step_id            TEXT NOT NULL,
    work_id            TEXT NOT NULL,
    attempt            INTEGER NOT NULL,
    digest             TEXT NOT NULL,
    status             TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'rejected', 'expired', 'void')),
    requested_at       INTEGER NOT NULL,
    expires_at         INTEGER NOT NULL,
    approvals          INTEGER NOT NULL,
    separate_requester INTEGER NOT NULL,
    severity           TEXT NOT NULL,
    requester          TEXT,
    reason             TEXT,
    policies           TEXT NOT NULL,
    arguments          TEXT,
    reviews            TEXT NOT NULL,
    decided_at         INTEGER
) STRICT;
CREATE INDEX approvals_of_flow ON approvals (flow_id);
-- What waits for people, and how long yet.
CREATE INDEX approvals_pending ON approvals (expires_at) WHERE status = 'pending';

-- Which workflow, or which step of one, a key of the caller's belongs to: key_id is a digest of the kind and the key.
CREATE TABLE key_owners (
    key_id     TEXT PRIMARY KEY,
    flow_id    TEXT NOT NULL,
    step_id    TEXT,
    digest     TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX key_owners_of_flow ON key_owners (flow_id);

-- How often policies and subscriptions have changed: one row. Who has seen them at this revision need not read them again.
CREATE TABLE controls (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO controls (only_one, revision) VALUES (1, 0);

-- Policies as they are now; a definition that is null was deleted.
CREATE TABLE policies (
    policy_id  TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    definition TEXT,
    source     TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Policies as they ever were.
CREATE TABLE policy_versions (
    policy_id  TEXT NOT NULL,
    version    INTEGER NOT NULL,
    definition TEXT,
    source     TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    at         INTEGER NOT NULL,
    PRIMARY KEY (policy_id, version)
) STRICT, WITHOUT ROWID;

-- Who is told of what happens.
CREATE TABLE subscriptions (
    subscription_id TEXT PRIMARY KEY,
    definition      TEXT NOT NULL,
    note            TEXT,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What subscribers are still to be told, written in the transaction of the event; due_at is null for what was given up.
CREATE TABLE deliveries (
    ordinal         INTEGER PRIMARY KEY,
    delivery_id     TEXT NOT NULL UNIQUE,
    subscription_id TEXT NOT NULL,
    flow_id         TEXT NOT NULL,
    type            TEXT NOT NULL,
    body            TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    due_at          INTEGER,
    note            TEXT,
    created_at      INTEGER NOT NULL
) STRICT;
CREATE INDEX deliveries_due ON deliveries (subscription_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX deliveries_of_subscription ON deliveries (subscription_id, ordinal);
CREATE INDEX deliveries_of_flow ON deliveries (flow_id);

-- Workflows, the newest first: flows that an agent runs itself.
CREATE INDEX flows_cooperative ON flows (ordinal) WHERE plan = 'cooperative';
-- Steps that agents were let run, and of which nothing was reported yet.
CREATE INDEX work_gated ON work (ordinal) WHERE version = 'gate' AND status IN ('active', 'not_completed');
-- What waits for an approval.
CREATE INDEX work_held ON work (ordinal) WHERE status = 'held';
-- What is out, by step: what agents run is not.
DROP INDEX work_waiting;
CREATE INDEX work_waiting ON work (step_id, sent_at) WHERE status = 'active' AND version <> 'gate';
