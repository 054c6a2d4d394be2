-- Which secrets have signed receipts, told by a keyed digest (never the secret itself), and in which time: work that was
-- sent then needs them. A node moves the end of the one that it signs with on while it lives.
CREATE TABLE receipt_checks (
    check_value TEXT COLLATE "C" PRIMARY KEY,
    signs_from  BIGINT NOT NULL,
    signs_until BIGINT
);
