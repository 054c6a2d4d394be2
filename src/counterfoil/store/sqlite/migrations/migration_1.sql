-- From version 1 to 2: a row of the journal, which was one event, becomes an entry, which holds a run of them.
-- Each old row becomes an entry with its one event, under its old number. Its data is not parsed but copied as it
-- stands: so every digit stays, and a journal that somebody has damaged does not keep anybody from migrating it.

ALTER TABLE journal RENAME TO journal_of_events;
DROP INDEX journal_of_flow;

CREATE TABLE journal (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    flow_id TEXT NOT NULL,
    work_id TEXT,
    at      INTEGER NOT NULL,
    events  TEXT NOT NULL
) STRICT;

INSERT INTO journal (seq, flow_id, work_id, at, events)
SELECT seq, flow_id, work_id, at,
    '[[' || json_quote(type) || ',' || json_quote(step_id) || ',' || (work_id IS NOT NULL) || ','
    || json_quote(attempt) || ',' || data || ']]'
FROM journal_of_events ORDER BY seq;

-- New entries are numbered behind all that there ever were, also behind those that are gone.
DELETE FROM sqlite_sequence WHERE name = 'journal';
INSERT INTO sqlite_sequence (name, seq) SELECT 'journal', seq FROM sqlite_sequence WHERE name = 'journal_of_events';

DROP TABLE journal_of_events;
CREATE INDEX journal_of_flow ON journal (flow_id, seq);
