"""Databases as engines of earlier times left them.

Before flows were planned (SQLite of version 2, PostgreSQL of version 1; commit bc3b55b): two steps a and b, each flow
named after what became of it. ``done`` and ``quiet`` completed, the latter without outputs; of ``failed``, a completed
and b failed; ``cancelled``; of ``half``, a completed and b is out; ``waiting`` waits for its second attempt; ``open``
is out.

Before there was a gate (SQLite of version 3, PostgreSQL of version 2; commit 1507d16): see test_gate_migration.py.

Before what is open had tables of its own (PostgreSQL of version 3; commit 0944ef8): what the tests of the doctor fill a
database with, so work in every state, of agents and driven.

Before there were effect policies (both of version 5; commit acb4bbb): see test_effects.py of the migrations.

Before there were hooks, run keys and reservations (both of version 6; commit 497e8f0): see test_hooks.py of the
migrations.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.store.records import NOW
from tests.store.schemas import Database, PostgresDatabase, SqliteDatabase


@dataclass(frozen=True)
class Era:
    """A time, by the schema versions that it had; its schemas and rows are in a directory of its name."""

    name: str
    sqlite: int
    postgresql: int

    def read(self, file: str) -> str:
        return (Path(__file__).with_name(self.name) / file).read_text(encoding="utf-8")


BEFORE_PLANS = Era("before_plans", sqlite=2, postgresql=1)
BEFORE_GATE = Era("before_gate", sqlite=3, postgresql=2)
BEFORE_OPEN = Era("before_open", sqlite=4, postgresql=3)
BEFORE_EFFECTS = Era("before_effects", sqlite=5, postgresql=5)
BEFORE_HOOKS = Era("before_hooks", sqlite=6, postgresql=6)

OPENED = """
INSERT INTO open_flows (flow_id, status, ordinal)
SELECT flow_id, status, ordinal FROM flows WHERE status <> 'completed';
INSERT INTO open_work (work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal)
SELECT work_id, flow_id, step_id, version, lane, status, due_at, sent_at, owner, recorded_at, ordinal
FROM work WHERE status NOT IN ('succeeded', 'cancelled');
"""
"""What PostgreSQL has besides the rows that both stores have: what is open, in tables of its own."""

WORK = {"half": "w8", "waiting": "w9", "open": "w10", "failed": "w5"}
"""The work item of each flow that is not complete."""
NASTY = "\x00 \u2028 \U0001f600 \" \\u0000 '"
OUTPUTS: dict[str, dict[str, Any]] = {
    "done": {"x": 1, "y": [{}], "amount": 98765432109876543210, "text": NASTY, "tiny": 1e-7, "zero": -0.0},
    "quiet": {},
    "failed": {"kept": True},
    "cancelled": {},
    "half": {"first": NASTY},
    "waiting": {},
    "open": {},
}
"""What each flow showed then."""


def old_rows(era: Era, *, numbered: bool) -> dict[str, tuple[list[str], list[list[Any]]]]:
    """Columns and rows by table; ``numbered``: with those columns that PostgreSQL counts by itself."""
    found = {}
    for name, table in json.loads(era.read("rows.json")).items():
        own = [place for place, column in enumerate(table["columns"]) if numbered or column not in ("ordinal", "seq")]
        rows = sorted(table["rows"], key=lambda row: row[0] if isinstance(row[0], int) else 0)
        found[name] = ([table["columns"][place] for place in own], [[row[place] for place in own] for row in rows])
    return found


async def fill_old(database: Database, era: Era = BEFORE_PLANS) -> None:
    """Make an empty database what the engine of that time left behind."""
    if isinstance(database, SqliteDatabase):
        await database.migrate(NOW - 1, era.sqlite, {}, era.read("sqlite.sql"))
        database.connection.execute("BEGIN")
        for table, (columns, rows) in old_rows(era, numbered=True).items():
            marks = ", ".join("?" * len(columns))
            statement = f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
            database.connection.executemany(statement, rows)
        database.connection.execute("COMMIT")
        return
    assert isinstance(database, PostgresDatabase)
    await database.migrate(NOW - 1, era.postgresql, {}, era.read("postgresql.sql"))
    for table, (columns, rows) in old_rows(era, numbered=False).items():
        if table in ("register", "controls"):  # one row that is there from the beginning
            await database.connection.execute(f"DELETE FROM {table}")
        marks = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        truths = {
            place
            for place, column in enumerate(columns)
            if column in ("goal", "enabled", "only_one", "separate_requester")
        }
        truths = set() if table == "controls" else truths
        taken = [tuple(bool(value) if place in truths else value for place, value in enumerate(row)) for row in rows]
        await database.connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", taken)
    if era.postgresql > BEFORE_OPEN.postgresql:
        await database.connection.execute(OPENED)
