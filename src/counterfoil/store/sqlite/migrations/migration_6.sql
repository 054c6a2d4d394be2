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
