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
