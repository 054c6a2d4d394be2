"""Which receipt secret signs: one process at a time serves the file, so the others have ended when it begins."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_BEGIN = """
    INSERT INTO receipt_checks (check_value, signs_from, signs_until)
    VALUES (:check, CASE WHEN EXISTS (SELECT 1 FROM receipt_checks) THEN :now ELSE 0 END, NULL)
    ON CONFLICT (check_value) DO UPDATE SET signs_until = NULL
"""
"""The first one that is ever noted has signed what a database of an earlier version holds."""
_END = "UPDATE receipt_checks SET signs_until = :now WHERE check_value <> :check AND signs_until IS NULL"


def note_receipt_secret(connection: sqlite3.Connection, check: str, dropped: Sequence[str], now: int) -> None:
    """See store/protocol.py; in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_BEGIN, {"check": check, "now": now})
        connection.execute(_END, {"check": check, "now": now})
        connection.executemany("DELETE FROM receipt_checks WHERE check_value = ?", [(each,) for each in dropped])
        connection.execute("COMMIT")
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise
