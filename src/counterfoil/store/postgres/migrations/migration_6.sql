-- run keys
-- Run keys: flows that were started with one. The flow with the highest claim has claimed its key last, and owns it for as
-- long as its state says so (domain/runs/ownership.py). No two claims on a key have the same number: of two batches that
-- both saw the key free, one fails.
CREATE TABLE keyed_flows (
    ordinal       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flow_id       TEXT COLLATE "C" NOT NULL UNIQUE,
    run_key       TEXT COLLATE "C" NOT NULL,
    claim         BIGINT NOT NULL,
    digest        TEXT NOT NULL,
    retain_ms     BIGINT NOT NULL,
    retain_failed BOOLEAN NOT NULL,
    UNIQUE (run_key, claim)
);
CREATE INDEX keyed_flows_of_key ON keyed_flows (run_key, ordinal);

-- hooks
-- Hooks: what hook steps wait for. expected: the step has not started; queued: another hook owns the token; waiting: it
-- owns the token. A token that the engine makes is in no column.
CREATE TABLE hooks (
    hook_id       TEXT COLLATE "C" PRIMARY KEY,
    flow_id       TEXT COLLATE "C" NOT NULL,
    step_id       TEXT COLLATE "C" NOT NULL,
    item          INTEGER NOT NULL,
    status        TEXT NOT NULL,
    token_id      TEXT COLLATE "C" NOT NULL,
    token         TEXT,
    collect       INTEGER NOT NULL,
    created_at    BIGINT NOT NULL,
    work_id       TEXT COLLATE "C",
    received      INTEGER NOT NULL,
    size          BIGINT NOT NULL,
    enough        BOOLEAN NOT NULL,
    registered_at BIGINT,
    deadline_at   BIGINT
);
CREATE INDEX hooks_of_flow ON hooks (flow_id);
-- What is looked for with a token while no hook owns it.
CREATE INDEX hooks_expected ON hooks (token_id, created_at, hook_id) WHERE status = 'expected';
-- Active hooks, the longest waiting first.
CREATE INDEX hooks_waiting ON hooks (registered_at, work_id) WHERE status = 'waiting';

-- Tokens that hooks own, one owner each, with the hooks that wait for them in order, as JSON. A token without an owner has
-- no row.
CREATE TABLE hook_tokens (
    token_id TEXT COLLATE "C" PRIMARY KEY,
    hook_id  TEXT COLLATE "C" NOT NULL,
    flow_id  TEXT COLLATE "C" NOT NULL,
    step_id  TEXT COLLATE "C" NOT NULL,
    work_id  TEXT COLLATE "C" NOT NULL,
    queue    TEXT NOT NULL,
    wake_at  BIGINT
);
CREATE INDEX hook_tokens_waking ON hook_tokens (wake_at) WHERE wake_at IS NOT NULL;

-- Payloads that hooks keep: of several to collect, and of those that came before the step started.
CREATE TABLE hook_payloads (
    payload_id TEXT COLLATE "C" PRIMARY KEY,
    flow_id    TEXT COLLATE "C" NOT NULL,
    payload    TEXT
);
CREATE INDEX hook_payloads_of_flow ON hook_payloads (flow_id);

-- Delivery ids that hooks have taken, by digests of hook and id, and of token and id.
CREATE TABLE hook_deliveries (
    delivery_key TEXT COLLATE "C" PRIMARY KEY,
    flow_id      TEXT COLLATE "C" NOT NULL,
    step_id      TEXT COLLATE "C" NOT NULL,
    hook_id      TEXT COLLATE "C" NOT NULL
);
CREATE INDEX hook_deliveries_of_flow ON hook_deliveries (flow_id);

-- Effects of tools: reservations of the effects API.

-- Effects of tools that run outside of flows: which caller may run one (pending), and later its outcome, which is forgotten
-- after forget_at. A row whose key was freed keeps its fence and audit as long.
CREATE TABLE reservations (
    effect_id        TEXT COLLATE "C" PRIMARY KEY,
    tool             TEXT COLLATE "C" NOT NULL,
    effect_key       TEXT COLLATE "C" NOT NULL,
    effect_class     TEXT NOT NULL,
    state            TEXT NOT NULL,
    fence            BIGINT NOT NULL,
    holder           TEXT NOT NULL,
    reserved_at      BIGINT NOT NULL,
    window_ms        BIGINT,
    arguments_digest TEXT,
    expires_at       BIGINT,
    outcome          TEXT,
    recorded_at      BIGINT,
    forget_at        BIGINT,
    hits             BIGINT NOT NULL,
    audited          BIGINT NOT NULL,
    audit            TEXT NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX reservations_of_key ON reservations (tool, effect_key);
CREATE INDEX reservations_pending ON reservations (tool, effect_key, expires_at) WHERE state = 'pending';
CREATE INDEX reservations_failed ON reservations (tool, effect_key) WHERE state = 'complete-failed';
-- What only a settlement can free, and since when it waits for one.
CREATE INDEX reservations_irreversible ON reservations (expires_at, effect_id)
WHERE state = 'pending' AND effect_class = 'irreversible';
CREATE INDEX reservations_forgetting ON reservations (forget_at) WHERE forget_at IS NOT NULL;

-- The highest fence of all forgotten keys whose ids begin alike: at most 65,536 rows, however many keys were forgotten.
CREATE TABLE fence_floors (
    bucket TEXT COLLATE "C" PRIMARY KEY,
    fence  BIGINT NOT NULL
);

-- Callbacks: requests to webhook, heartbeat and hook URLs that were not accepted, and what is kept of accepted ones besides
-- the journal. Unknown receipts have no work item.
CREATE TABLE callbacks (
    ordinal     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    callback_id TEXT COLLATE "C" NOT NULL UNIQUE,
    at          BIGINT NOT NULL,
    kind        TEXT NOT NULL,
    verdict     TEXT NOT NULL,
    status      INTEGER NOT NULL,
    flow_id     TEXT COLLATE "C",
    step_id     TEXT COLLATE "C",
    work_id     TEXT COLLATE "C",
    attempt     INTEGER,
    size        BIGINT,
    digest      TEXT,
    source      TEXT,
    trace_id    TEXT,
    body        TEXT
);
CREATE INDEX callbacks_by_time ON callbacks (at, ordinal);
CREATE INDEX callbacks_of_flow ON callbacks (flow_id, at) WHERE flow_id IS NOT NULL;
