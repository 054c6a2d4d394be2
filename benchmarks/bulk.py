"""Three ways to write many rows with SQLite from Python, each against the one that the store uses."""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from counterfoil.store.sqlite.migrations import fresh_schema

ROWS = 64
BATCHES = 200
COLUMNS = "INSERT INTO journal (flow_id, work_id, at, events)"
EVENTS = '[["work_succeeded","step",1,1,{"outputs":{"key":"value"}}],["step_completed","step",0,null,{}]]'
ROW = ("f" * 32, "w" * 32, 1_794_840_000_000, EVENTS)
PLACES = "(?, ?, ?, ?)"
BY_VALUES = f"{COLUMNS} VALUES {', '.join([PLACES] * ROWS)}"
BY_JSON = f"{COLUMNS} SELECT {', '.join(f'value ->> {n}' for n in range(4))} FROM json_each(?)"

Way = Callable[[sqlite3.Connection, list[tuple[object, ...]]], object]
WAYS: dict[str, Way] = {
    "VALUES": lambda c, rows: c.execute(BY_VALUES, [value for row in rows for value in row]),
    "executemany": lambda c, rows: c.executemany(f"{COLUMNS} VALUES {PLACES}", rows),
    "json_each": lambda c, rows: c.execute(BY_JSON, (orjson.dumps(rows).decode(),)),
}


def rate_over_values(rounds: int) -> dict[str, float]:
    """Rows/s of each way over that of ``VALUES``, as the median of several rounds."""
    ratios: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        seconds = {name: _seconds(way) for name, way in WAYS.items()}
        for name in WAYS:
            ratios[name].append(seconds["VALUES"] / seconds[name])
    return {name: statistics.median(found) for name, found in ratios.items()}


def _seconds(way: Way) -> float:
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as directory:
        connection = sqlite3.connect(Path(directory, "bulk.db"), isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.executescript(fresh_schema())
            spent = 0.0
            for _ in range(BATCHES):
                connection.execute("BEGIN")
                started = time.perf_counter()
                way(connection, [ROW] * ROWS)
                spent += time.perf_counter() - started
                connection.execute("COMMIT")
            return spent
        finally:
            connection.close()
