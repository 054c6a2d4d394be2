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
