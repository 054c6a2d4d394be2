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
