-- Schema of the shared store. Times are milliseconds since 1970 (UTC). JSON is kept as text, exactly as it was written.
-- Ids sort by their bytes (COLLATE "C"), as in the embedded store. What is open or due is found in tables of its own
-- (open_flows, open_work): what has ended costs no sweep anything, and ending it changes no index of the tables that keep
-- it, for none of these holds what changes. They leave room for it: a new version of a row finds its place on the same
-- page. Nor have they checks, whose text PostgreSQL would read anew in every statement: what may become of a row stands in
-- sql/, and the doctor looks. What changes often asks for vacuum early: dead rows and index entries are what a
-- search for due work would have to step over.

-- Step definitions by content. Immutable: a flow keeps the version that it was started with.
CREATE TABLE step_versions (
    version    TEXT COLLATE "C" PRIMARY KEY,
    step_id    TEXT COLLATE "C" NOT NULL,
    definition TEXT NOT NULL
);

-- The register: which version of a step new flows use.
CREATE TABLE steps (
    step_id    TEXT COLLATE "C" PRIMARY KEY,
    version    TEXT COLLATE "C" NOT NULL REFERENCES step_versions (version),
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- How often the register has changed: one row. A batch that has seen the register at this revision need not read it again.
CREATE TABLE register (
    only_one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_one),
    revision BIGINT NOT NULL
);
INSERT INTO register (revision) VALUES (0);

-- Plans by content. Immutable, and shared by all flows that were planned alike.
CREATE TABLE plans (
    plan_id  TEXT COLLATE "C" PRIMARY KEY,
    document TEXT NOT NULL
);

-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled; what has failed or was
-- cancelled -> active by redrive
-- The lock of this row is the lock of the whole flow: a batch that changes anything of a flow holds it, and raises the revision.
CREATE TABLE flows (
    ordinal     BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    flow_id     TEXT COLLATE "C" PRIMARY KEY,
    status      TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    open_steps  INTEGER NOT NULL,
    error       TEXT,
    finished_at BIGINT,
    revision    BIGINT NOT NULL DEFAULT 0,
    plan        TEXT COLLATE "C",
    parent      TEXT,
    deadline_at BIGINT,
    compensation TEXT,
    redrives    INTEGER NOT NULL DEFAULT 0,
    pruned_at   BIGINT
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02, fillfactor = 60);
CREATE INDEX flows_deadline ON flows (deadline_at) WHERE deadline_at IS NOT NULL;

-- What a flow was started with: apart from its state, so that a change of state does not rewrite it.
CREATE TABLE flow_inputs (
    flow_id  TEXT COLLATE "C" PRIMARY KEY,
    goals    TEXT NOT NULL,
    init     TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels   TEXT NOT NULL,
    options  TEXT NOT NULL DEFAULT '{}'
);

CREATE TABLE flow_labels (
    label   TEXT COLLATE "C" NOT NULL,
    flow_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (label, flow_id)
);

-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; what has ended -> pending by redrive
CREATE TABLE flow_steps (
    flow_id      TEXT COLLATE "C" NOT NULL,
    step_id      TEXT COLLATE "C" NOT NULL,
    version      TEXT COLLATE "C" NOT NULL,
    status       TEXT NOT NULL,
    goal         BOOLEAN NOT NULL,
    items        INTEGER NOT NULL,
    open_items   INTEGER NOT NULL,
    failed_items INTEGER NOT NULL,
    started_at   BIGINT,
    finished_at  BIGINT,
    outputs      TEXT,
    error        TEXT,
    ready_at     BIGINT,
    due_at       BIGINT,
    released     INTEGER,
    waiting_items INTEGER NOT NULL DEFAULT 0,
    redrives     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (flow_id, step_id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
-- Steps that wait for an optional input, and how long yet.
CREATE INDEX flow_steps_due ON flow_steps (due_at) WHERE due_at IS NOT NULL;

-- The moves of a work item: see the guard in sql/work.sql (update_work) and domain/states.py.
CREATE TABLE work (
    ordinal         BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
    work_id         TEXT COLLATE "C" PRIMARY KEY,
    flow_id         TEXT COLLATE "C" NOT NULL,
    step_id         TEXT COLLATE "C" NOT NULL,
    item            INTEGER NOT NULL,
    version         TEXT COLLATE "C" NOT NULL,
    status          TEXT NOT NULL,
    attempt         INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    lane            TEXT COLLATE "C" NOT NULL,
    created_at      BIGINT NOT NULL,
    due_at          BIGINT,
    deadline_at     BIGINT,
    owner           TEXT COLLATE "C",
    first_sent_at   BIGINT,
    sent_at         BIGINT,
    acknowledged_at BIGINT,
    progress        TEXT,
    message         TEXT,
    hold            TEXT,
    result          TEXT,
    error           TEXT,
    recorded_at     BIGINT,
    arguments       TEXT,
    redrive_of      TEXT COLLATE "C",
    undoes          TEXT COLLATE "C",
    child_flow_id   TEXT COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02, fillfactor = 60);
CREATE INDEX work_of_flow ON work (flow_id, step_id, item);

-- Append-only: an event for every change, in the transaction that made it. A row is an entry: consecutive events of one
-- flow, and of at most one work item, as a JSON array (see store/journal.py). Numbers of one flow are in the order of its
-- commits (its row is locked when they are drawn); over all flows a transaction may commit behind one that drew later.
CREATE TABLE journal (
    seq     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    flow_id TEXT COLLATE "C" NOT NULL,
    work_id TEXT COLLATE "C",
    at      BIGINT NOT NULL,
    events  TEXT NOT NULL
);
CREATE INDEX journal_of_flow ON journal (flow_id, seq);

-- Cancellations that workers are still to be told of.
CREATE TABLE cancel_calls (
    call_id TEXT COLLATE "C" PRIMARY KEY,
    flow_id TEXT COLLATE "C" NOT NULL,
    step_id TEXT COLLATE "C" NOT NULL,
    work_id TEXT COLLATE "C" NOT NULL,
    url     TEXT NOT NULL,
    body    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    due_at  BIGINT NOT NULL
);
CREATE INDEX cancel_calls_due ON cancel_calls (due_at);

-- The nodes of this database. An expired lease cannot be renewed: its holder comes back under another id.
-- Leases are counted by the database's clock, so that the nodes' clocks need not agree on them.
CREATE TABLE nodes (
    node_id     TEXT COLLATE "C" PRIMARY KEY,
    joined_at   TIMESTAMPTZ NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

-- The secret that signs receipts, made by the first node, where the settings name none: at most one row.
CREATE TABLE receipt_secret (
    only_one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (only_one),
    secret   TEXT NOT NULL
);

-- When flows start by themselves. The next tick, which is null while a schedule is paused, moves on in the transaction
-- that starts the flows of the present one, under the lock of this row: each tick is fired by one node.
CREATE TABLE schedules (
    schedule_id  TEXT COLLATE "C" PRIMARY KEY,
    cron         TEXT,
    timezone     TEXT,
    every_ms     BIGINT,
    flow         TEXT NOT NULL,
    catch_up     TEXT NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    enabled      BOOLEAN NOT NULL,
    anchor_at    BIGINT NOT NULL,
    next_at      BIGINT,
    last_at      BIGINT,
    last_flow_id TEXT COLLATE "C",
    last_error   TEXT,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    CHECK ((cron IS NULL) <> (every_ms IS NULL))
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
-- When each step with a rate limit was sent last: the first time, then distances, as a JSON array. One row a step, of
-- at most 10,000 times; `most` is the largest number of them that one of its definitions had to count.
CREATE TABLE step_rates (
    step_id TEXT COLLATE "C" PRIMARY KEY,
    most    INTEGER NOT NULL,
    sent    TEXT NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- What the gate knows of a step that an agent runs itself, beside the step and its work: how often it was asked, what it
-- said last (decision), what it will say to the same question (standing), and which agent has claimed it.
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

-- How often policies and subscriptions have changed: one row. A batch that has seen them at this revision does not read them again.
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

-- Which subscribers are told of which events.
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

-- Which secrets have signed receipts, told by a keyed digest (never the secret itself), and in which time: work that was
-- sent then needs them. A node moves the end of the one that it signs with on while it lives.
CREATE TABLE receipt_checks (
    check_value TEXT COLLATE "C" PRIMARY KEY,
    signs_from  BIGINT NOT NULL,
    signs_until BIGINT
);

-- Work items whose outcome is, or was, unknown. hold: it waits in the reconciliation queue. due_at: status_url is asked.
CREATE TABLE reconciliations (
    work_id     TEXT COLLATE "C" PRIMARY KEY,
    flow_id     TEXT COLLATE "C" NOT NULL,
    step_id     TEXT COLLATE "C" NOT NULL,
    hold        TEXT,
    cause       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    since       BIGINT NOT NULL,
    due_at      BIGINT,
    probes      INTEGER NOT NULL,
    probed_at   BIGINT,
    probe_state TEXT,
    granted     INTEGER NOT NULL
);
CREATE INDEX reconciliations_of_flow ON reconciliations (flow_id);
CREATE INDEX reconciliations_held ON reconciliations (since, work_id) WHERE hold IS NOT NULL;
CREATE INDEX reconciliations_due ON reconciliations (due_at) WHERE due_at IS NOT NULL;

-- Keys that work items share: which item owns the key, and later its result, which is forgotten after expires_at.
CREATE TABLE dedup_records (
    dedup_id        TEXT COLLATE "C" PRIMARY KEY,
    step_id         TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT NOT NULL,
    state           TEXT NOT NULL,
    work_id         TEXT COLLATE "C",
    flow_id         TEXT COLLATE "C",
    outcome         TEXT,
    recorded_at     BIGINT,
    expires_at      BIGINT,
    waiting         INTEGER NOT NULL,
    wake_at         BIGINT
);
CREATE INDEX dedup_records_expiring ON dedup_records (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX dedup_records_waking ON dedup_records (wake_at) WHERE wake_at IS NOT NULL;

-- Work items that wait for a key, in the order in which they came.
CREATE TABLE dedup_waiters (
    work_id  TEXT COLLATE "C" PRIMARY KEY,
    flow_id  TEXT COLLATE "C" NOT NULL,
    dedup_id TEXT COLLATE "C" NOT NULL,
    since    BIGINT NOT NULL
);
CREATE INDEX dedup_waiters_of_key ON dedup_waiters (dedup_id, since, work_id);
CREATE INDEX dedup_waiters_of_flow ON dedup_waiters (flow_id);

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
    body        TEXT,
    headers     TEXT
);
CREATE INDEX callbacks_by_time ON callbacks (at, ordinal);
CREATE INDEX callbacks_of_flow ON callbacks (flow_id, at) WHERE flow_id IS NOT NULL;
