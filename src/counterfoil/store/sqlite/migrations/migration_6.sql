-- run keys
-- Run keys: flows that were started with one. The flow with the highest claim has claimed its key last, and owns it for as
-- long as its state says so (domain/runs/ownership.py). No two claims on a key have the same number: of two batches that
-- both saw the key free, one fails.
CREATE TABLE keyed_flows (
    ordinal       INTEGER PRIMARY KEY,
    flow_id       TEXT NOT NULL UNIQUE,
    run_key       TEXT NOT NULL,
    claim         INTEGER NOT NULL,
    digest        TEXT NOT NULL,
    retain_ms     INTEGER NOT NULL,
    retain_failed INTEGER NOT NULL,
    UNIQUE (run_key, claim)
) STRICT;
CREATE INDEX keyed_flows_of_key ON keyed_flows (run_key, ordinal);

-- hooks
-- Hooks: what hook steps wait for. expected: the step has not started; queued: another hook owns the token; waiting: it
-- owns the token. A token that the engine makes is in no column.
CREATE TABLE hooks (
    hook_id       TEXT PRIMARY KEY,
    flow_id       TEXT NOT NULL,
    step_id       TEXT NOT NULL,
    item          INTEGER NOT NULL,
    status        TEXT NOT NULL CHECK (status IN ('expected', 'queued', 'waiting', 'ended')),
    token_id      TEXT NOT NULL,
    token         TEXT,
    collect       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    work_id       TEXT,
    received      INTEGER NOT NULL,
    size          INTEGER NOT NULL,
    enough        INTEGER NOT NULL,
    registered_at INTEGER,
    deadline_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX hooks_of_flow ON hooks (flow_id);
-- What is looked for with a token while no hook owns it.
CREATE INDEX hooks_expected ON hooks (token_id, created_at, hook_id) WHERE status = 'expected';
-- Active hooks, the longest waiting first.
CREATE INDEX hooks_waiting ON hooks (registered_at, work_id) WHERE status = 'waiting';

-- Tokens that hooks own, one owner each, with the hooks that wait for them in order, as JSON. A token without an owner has
-- no row.
CREATE TABLE hook_tokens (
    token_id TEXT PRIMARY KEY,
    hook_id  TEXT NOT NULL,
    flow_id  TEXT NOT NULL,
    step_id  TEXT NOT NULL,
    work_id  TEXT NOT NULL,
    queue    TEXT NOT NULL,
    wake_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX hook_tokens_waking ON hook_tokens (wake_at) WHERE wake_at IS NOT NULL;

-- Payloads that hooks keep: of several to collect, and of those that came before the step started.
CREATE TABLE hook_payloads (
    payload_id TEXT PRIMARY KEY,
    flow_id    TEXT NOT NULL,
    payload    TEXT
) STRICT;
CREATE INDEX hook_payloads_of_flow ON hook_payloads (flow_id);

-- Delivery ids that hooks have taken, by digests of hook and id, and of token and id.
CREATE TABLE hook_deliveries (
    delivery_key TEXT PRIMARY KEY,
    flow_id      TEXT NOT NULL,
    step_id      TEXT NOT NULL,
    hook_id      TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX hook_deliveries_of_flow ON hook_deliveries (flow_id);

-- Effects of tools: reservations of the effects API.

-- Effects of tools that run outside of flows: which caller may run one (pending), and later its outcome, which is forgotten
-- after forget_at. A row whose key was freed keeps its fence and audit as long.
CREATE TABLE reservations (
    effect_id        TEXT PRIMARY KEY,
    tool             TEXT NOT NULL,
    effect_key       TEXT NOT NULL,
    effect_class     TEXT NOT NULL,
    state            TEXT NOT NULL,
    fence            INTEGER NOT NULL,
    holder           TEXT NOT NULL,
    reserved_at      INTEGER NOT NULL,
    window_ms        INTEGER,
    arguments_digest TEXT,
    expires_at       INTEGER,
    outcome          TEXT,
    recorded_at      INTEGER,
    forget_at        INTEGER,
    hits             INTEGER NOT NULL,
    audited          INTEGER NOT NULL,
    audit            TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX reservations_of_key ON reservations (tool, effect_key);
CREATE INDEX reservations_pending ON reservations (tool, effect_key, expires_at) WHERE state = 'pending';
CREATE INDEX reservations_failed ON reservations (tool, effect_key) WHERE state = 'complete-failed';
-- What only a settlement can free, and since when it waits for one.
CREATE INDEX reservations_irreversible ON reservations (expires_at, effect_id)
WHERE state = 'pending' AND effect_class = 'irreversible';
CREATE INDEX reservations_forgetting ON reservations (forget_at) WHERE forget_at IS NOT NULL;

-- The highest fence of all forgotten keys whose ids begin alike: at most 65,536 rows, however many keys were forgotten.
CREATE TABLE fence_floors (
    bucket TEXT PRIMARY KEY,
    fence  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Callbacks: requests to webhook, heartbeat and hook URLs that were not accepted, and what is kept of accepted ones besides
-- the journal. Unknown receipts have no work item.
CREATE TABLE callbacks (
    ordinal     INTEGER PRIMARY KEY,
    callback_id TEXT NOT NULL UNIQUE,
    at          INTEGER NOT NULL,
    kind        TEXT NOT NULL,
    verdict     TEXT NOT NULL,
    status      INTEGER NOT NULL,
    flow_id     TEXT,
    step_id     TEXT,
    work_id     TEXT,
    attempt     INTEGER,
    size        INTEGER,
    digest      TEXT,
    source      TEXT,
    trace_id    TEXT,
    body        TEXT
) STRICT;
CREATE INDEX callbacks_by_time ON callbacks (at);
CREATE INDEX callbacks_of_flow ON callbacks (flow_id, at) WHERE flow_id IS NOT NULL;
