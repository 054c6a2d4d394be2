-- Which secrets have signed receipts, told by a keyed digest (never the secret itself), and in which time: work that was
-- sent then needs them. The one that signs now has no end.
CREATE TABLE receipt_checks (
    check_value TEXT PRIMARY KEY,
    signs_from  INTEGER NOT NULL,
    signs_until INTEGER
) STRICT, WITHOUT ROWID;
