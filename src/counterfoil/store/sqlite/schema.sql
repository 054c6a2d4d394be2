-- Schema of the embedded store. Times are milliseconds since 1970 (UTC). JSON is kept as text.
-- Partial indexes hold only what is open or due: what has ended costs no sweep anything.

-- Step definitions by content. Immutable: a flow keeps the version that it was started with.
CREATE TABLE step_versions (
    version    TEXT PRIMARY KEY,
    step_id    TEXT NOT NULL,
    definition TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The register: which version of a step new flows use.
CREATE TABLE steps (
    step_id    TEXT PRIMARY KEY,
    version    TEXT NOT NULL REFERENCES step_versions (version),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How often the register has changed: one row. A batch that has seen the register at this revision need not read it again.
CREATE TABLE register (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    revision INTEGER NOT NULL
) STRICT;
INSERT INTO register (only_one, revision) VALUES (1, 0);

-- Plans by content. Immutable, and shared by all flows that were planned alike.
CREATE TABLE plans (
    plan_id  TEXT PRIMARY KEY,
    document TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- active -> completed | failed | cancelled | compensating; compensating -> failed | cancelled; what has failed or was
-- cancelled -> active by redrive
CREATE TABLE flows (
    ordinal     INTEGER PRIMARY KEY,
    flow_id     TEXT NOT NULL UNIQUE,
    status      TEXT NOT NULL CHECK (status IN ('active', 'compensating', 'completed', 'failed', 'cancelled')),
    created_at  INTEGER NOT NULL,
    open_steps  INTEGER NOT NULL CHECK (open_steps >= 0),
    error       TEXT,
    finished_at INTEGER,
    plan        TEXT,
    parent      TEXT,
    deadline_at INTEGER,
    compensation TEXT,
    redrives    INTEGER NOT NULL DEFAULT 0,
    pruned_at   INTEGER
) STRICT;
CREATE INDEX flows_not_completed ON flows (status, ordinal) WHERE status <> 'completed';
CREATE INDEX flows_deadline ON flows (deadline_at) WHERE deadline_at IS NOT NULL;

-- What a flow was started with: apart from its state, so that a change of state does not rewrite it.
CREATE TABLE flow_inputs (
    flow_id  TEXT PRIMARY KEY,
    goals    TEXT NOT NULL,
    init     TEXT NOT NULL,
    metadata TEXT NOT NULL,
    labels   TEXT NOT NULL,
    options  TEXT NOT NULL DEFAULT '{}'
) STRICT;

CREATE TABLE flow_labels (
    label   TEXT NOT NULL,
    flow_id TEXT NOT NULL,
    PRIMARY KEY (label, flow_id)
) STRICT, WITHOUT ROWID;

-- pending -> active | skipped | cancelled; active -> completed | failed | cancelled; what has ended -> pending by redrive
CREATE TABLE flow_steps (
    flow_id      TEXT NOT NULL,
    step_id      TEXT NOT NULL,
    version      TEXT NOT NULL,
    status       TEXT NOT NULL
        CHECK (status IN ('pending', 'active', 'completed', 'failed', 'skipped', 'cancelled')),
    goal         INTEGER NOT NULL,
    items        INTEGER NOT NULL,
    open_items   INTEGER NOT NULL CHECK (open_items >= 0),
    failed_items INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER,
    outputs      TEXT,
    error        TEXT,
    ready_at     INTEGER,
    due_at       INTEGER,
    released     INTEGER,
    waiting_items INTEGER NOT NULL DEFAULT 0,
    redrives     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (flow_id, step_id)
) STRICT, WITHOUT ROWID;
-- Steps that wait for an optional input, and how long yet.
CREATE INDEX flow_steps_due ON flow_steps (due_at) WHERE due_at IS NOT NULL;

-- The moves of a work item: see the guard in sql/work.sql (update_work) and domain/states.py.
CREATE TABLE work (
    ordinal         INTEGER PRIMARY KEY,
    work_id         TEXT NOT NULL UNIQUE,
    flow_id         TEXT NOT NULL,
    step_id         TEXT NOT NULL,
    item            INTEGER NOT NULL,
    version         TEXT NOT NULL,
    status          TEXT NOT NULL CHECK (
        status IN ('pending', 'held', 'active', 'not_completed', 'succeeded', 'failed', 'cancelled')
    ),
    attempt         INTEGER NOT NULL CHECK (attempt >= 0),
    idempotency_key TEXT NOT NULL,
    lane            TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    due_at          INTEGER,
    deadline_at     INTEGER,
    owner           TEXT,
    first_sent_at   INTEGER,
    sent_at         INTEGER,
    acknowledged_at INTEGER,
    progress        TEXT,
    message         TEXT,
    hold            TEXT,
    result          TEXT,
    error           TEXT,
    recorded_at     INTEGER,
    arguments       TEXT,
    redrive_of      TEXT,
    undoes          TEXT,
    child_flow_id   TEXT
) STRICT;
CREATE INDEX work_of_flow ON work (flow_id, step_id, item);
-- What may be sent, lane by lane, the longest due first.
CREATE INDEX work_claimable ON work (lane, due_at, status)
WHERE status IN ('pending', 'not_completed') AND due_at IS NOT NULL;
-- What is out, by step: how many (parallelism) and since when (the oldest one waiting). What agents run is not out.
CREATE INDEX work_waiting ON work (step_id, sent_at) WHERE status = 'active' AND version <> 'gate';
-- Whose clock runs out next.
CREATE INDEX work_due ON work (due_at) WHERE status = 'active';
-- What is being sent at this moment, and by which node.
CREATE INDEX work_sending ON work (owner) WHERE owner IS NOT NULL;
-- What has failed, by step: to be found and redriven.
CREATE INDEX work_failed ON work (step_id, recorded_at) WHERE status = 'failed';

-- Append-only: an event for every change, in the transaction that made it. A row is an entry: consecutive events of one
-- flow, and of at most one work item, as a JSON array (see store/journal.py).
CREATE TABLE journal (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    flow_id TEXT NOT NULL,
    work_id TEXT,
    at      INTEGER NOT NULL,
    events  TEXT NOT NULL
) STRICT;
CREATE INDEX journal_of_flow ON journal (flow_id, seq);

-- Cancellations that workers are still to be told of.
CREATE TABLE cancel_calls (
    call_id TEXT PRIMARY KEY,
    flow_id TEXT NOT NULL,
    step_id TEXT NOT NULL,
    work_id TEXT NOT NULL,
    url     TEXT NOT NULL,
    body    TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    due_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX cancel_calls_due ON cancel_calls (due_at);

-- When flows start by themselves. The next tick, which is null while a schedule is paused, moves on in the transaction
-- that starts the flows of the present one.
CREATE TABLE schedules (
    schedule_id  TEXT PRIMARY KEY,
    cron         TEXT,
    timezone     TEXT,
    every_ms     INTEGER,
    flow         TEXT NOT NULL,
    catch_up     TEXT NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    enabled      INTEGER NOT NULL,
    anchor_at    INTEGER NOT NULL,
    next_at      INTEGER,
    last_at      INTEGER,
    last_flow_id TEXT,
    last_error   TEXT,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    CHECK ((cron IS NULL) <> (every_ms IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
-- When each step with a rate limit was sent last: the first time, then distances, as a JSON array. One row a step, of
-- at most 10,000 times; `most` is the largest number of them that one of its definitions had to count.
CREATE TABLE step_rates (
    step_id TEXT PRIMARY KEY,
    most    INTEGER NOT NULL,
    sent    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What the gate knows of a step that an agent runs itself, beside the step and its work: how often it was asked, what it
-- said last (decision), what it will say to the same question (standing), and which agent has claimed it.
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

-- How often policies and subscriptions have changed: one row. A batch that has seen them at this revision does not read them again.
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

-- Which subscribers are told of which events.
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

-- Which secrets have signed receipts, told by a keyed digest (never the secret itself), and in which time: work that was
-- sent then needs them. The one that signs now has no end.
CREATE TABLE receipt_checks (
    check_value TEXT PRIMARY KEY,
    signs_from  INTEGER NOT NULL,
    signs_until INTEGER
) STRICT, WITHOUT ROWID;

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
    body        TEXT,
    headers     TEXT
) STRICT;
CREATE INDEX callbacks_by_time ON callbacks (at);
CREATE INDEX callbacks_of_flow ON callbacks (flow_id, at) WHERE flow_id IS NOT NULL;
