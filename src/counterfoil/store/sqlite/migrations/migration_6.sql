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
