"""A database with a very large number of rows: one real flow, made by the engine, and copies of what it left."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "


def copy_waiting(database: Path, count: int, prefix: str, **changed: object) -> None:
    """Copy the oldest flow ``count`` times under new ids; ``changed`` sets columns of the copies' work items."""
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        (flow_id,) = connection.execute("SELECT flow_id FROM flows ORDER BY ordinal LIMIT 1").fetchone()
        connection.execute("BEGIN")
        for table in ("flows", "flow_inputs", "flow_steps", "work", "journal"):
            _copy(connection, table, flow_id, count, prefix, changed if table == "work" else {})
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("ANALYZE")
    finally:
        connection.close()


def _copy(
    connection: sqlite3.Connection, table: str, flow_id: str, count: int, prefix: str, changed: dict[str, object]
) -> None:
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    columns = [column for column in columns if column not in ("ordinal", "seq")]
    made = {
        "flow_id": ":prefix || printf('%08d', n.i)",
        "work_id": "CASE WHEN t.work_id IS NULL THEN NULL ELSE :prefix || 'w' || printf('%08d', n.i) END",
    }
    values = [f":{column}" if column in changed else made.get(column, f"t.{column}") for column in columns]
    connection.execute(
        f"{_NUMBERS} INSERT INTO {table} ({', '.join(columns)}) "
        f"SELECT {', '.join(values)} FROM n CROSS JOIN {table} AS t WHERE t.flow_id = :flow",
        {"count": count, "prefix": prefix, "flow": flow_id, **changed},
    )


def copy_results(database: Path, count: int, *, expired: bool = False) -> None:
    """Copy a recorded result ``count`` times, under keys as random as real ones; ``expired``: their windows passed.

    Expired copies have distinct times, so that they are forgotten in an order that their keys do not follow.
    """
    made = {"dedup_id": "lower(hex(randomblob(32)))", "idempotency_key": "lower(hex(randomblob(32)))"}
    if expired:
        made["expires_at"] = "n.i"
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(dedup_records)")]
        values = [made.get(column, f"t.{column}") for column in columns]
        connection.execute(
            f"{_NUMBERS} INSERT INTO dedup_records ({', '.join(columns)}) SELECT {', '.join(values)} "
            "FROM n CROSS JOIN (SELECT * FROM dedup_records WHERE state = 'success' LIMIT 1) AS t",
            {"count": count},
        )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("ANALYZE")
    finally:
        connection.close()
