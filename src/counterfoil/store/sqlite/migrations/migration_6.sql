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
