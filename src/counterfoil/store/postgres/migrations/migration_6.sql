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
