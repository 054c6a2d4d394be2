-- The gate: what it knows of each step, approvals, keys across workflows, policies and who is told of what.

-- What the gate knows of a step that an agent runs itself, beside the step and its work: how often it was asked, what it
-- said last (decision), what it will say to the same question (standing), and who has claimed it.
CREATE TABLE gates (
    flow_id           TEXT COLLATE "C" NOT NULL,
    step_id           TEXT COLLATE "C" NOT NULL,
    work_id           TEXT COLLATE "C" NOT NULL,
    idempotency_key   TEXT NOT NULL,
    gate_count        INTEGER NOT NULL CHECK (gate_count > 0),
    completion_count  INTEGER NOT NULL,
    first_at          BIGINT NOT NULL,
    last_at           BIGINT NOT NULL,
    decision          TEXT NOT NULL CHECK (decision IN ('allow', 'block', 'require_approval')),
    standing          TEXT NOT NULL CHECK (standing IN ('allow', 'block', 'require_approval')),
    decision_id       TEXT COLLATE "C" NOT NULL,
    input_digest      TEXT NOT NULL,
    approval_id       TEXT COLLATE "C",
    holder            TEXT,
    completed_at      BIGINT,
    completed_work_id TEXT COLLATE "C",
    facts             TEXT NOT NULL,
    PRIMARY KEY (flow_id, step_id)
);

-- pending -> approved | rejected | expired | void
CREATE TABLE approvals (
    ordinal            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    approval_id        TEXT COLLATE "C" NOT NULL UNIQUE,
    flow_id            TEXT COLLATE "C" NOT NULL,
    step_id            TEXT COLLATE "C" NOT NULL,
    work_id            TEXT COLLATE "C" NOT NULL,
    attempt            INTEGER NOT NULL,
    digest             TEXT NOT NULL,
    status             TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'rejected', 'expired', 'void')),
    requested_at       BIGINT NOT NULL,
    expires_at         BIGINT NOT NULL,
    approvals          INTEGER NOT NULL,
    separate_requester BOOLEAN NOT NULL,
    severity           TEXT NOT NULL,
    requester          TEXT,
    reason             TEXT,
    policies           TEXT NOT NULL,
    arguments          TEXT,
    reviews            TEXT NOT NULL,
    decided_at         BIGINT
);
CREATE INDEX approvals_of_flow ON approvals (flow_id);
-- What waits for people, and how long yet.
CREATE INDEX approvals_pending ON approvals (expires_at) WHERE status = 'pending';

-- Which workflow, or which step of one, a key of the caller's belongs to: key_id is a digest of the kind and the key.
CREATE TABLE key_owners (
    key_id     TEXT COLLATE "C" PRIMARY KEY,
    flow_id    TEXT COLLATE "C" NOT NULL,
    step_id    TEXT COLLATE "C",
    digest     TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT
);
CREATE INDEX key_owners_of_flow ON key_owners (flow_id);

-- How often policies and subscriptions have changed: one row. Who has seen them at this revision need not read them again.
CREATE TABLE controls (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    revision BIGINT NOT NULL
);
INSERT INTO controls (only_one, revision) VALUES (1, 0);

-- Policies as they are now; a definition that is null was deleted.
CREATE TABLE policies (
    policy_id  TEXT COLLATE "C" PRIMARY KEY,
    version    INTEGER NOT NULL,
    definition TEXT,
    source     TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- Policies as they ever were.
CREATE TABLE policy_versions (
    policy_id  TEXT COLLATE "C" NOT NULL,
    version    INTEGER NOT NULL,
    definition TEXT,
    source     TEXT NOT NULL,
    changed_by TEXT NOT NULL,
    at         BIGINT NOT NULL,
    PRIMARY KEY (policy_id, version)
);

-- Who is told of what happens.
CREATE TABLE subscriptions (
    subscription_id TEXT COLLATE "C" PRIMARY KEY,
    definition      TEXT NOT NULL,
    note            TEXT,
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);

-- What subscribers are still to be told, written in the transaction of the event; due_at is null for what was given up.
CREATE TABLE deliveries (
    ordinal         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    delivery_id     TEXT COLLATE "C" NOT NULL UNIQUE,
    subscription_id TEXT COLLATE "C" NOT NULL,
    flow_id         TEXT COLLATE "C" NOT NULL,
    type            TEXT NOT NULL,
    body            TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    due_at          BIGINT,
    note            TEXT,
    created_at      BIGINT NOT NULL
);
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
