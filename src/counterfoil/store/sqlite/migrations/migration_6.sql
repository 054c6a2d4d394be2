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
