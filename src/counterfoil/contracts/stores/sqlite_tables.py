"""The tables of the embedded dedup store, and its statements.

``counterfoil_effects`` has a row for each (tool, key), ``counterfoil_effect_audit`` the latest entries of their trails,
and ``counterfoil_effect_floor`` the highest fence that was ever deleted: no new entry repeats one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from counterfoil.contracts.stores.batches import AuditLine, EffectId, StoreOperation, decide, effects_of
from counterfoil.contracts.stores.protocol import EffectsListed, ShownEffect, StoredAudit
from counterfoil.contracts.stores.rows import entry_columns, entry_of
from counterfoil.domain.effects.reservations import AuditType, EffectEntry, EffectState

FORGET_PAUSE_MS = 1_000
FORGET_BATCH = 64
LONGEST_TRAIL = 1_000
"""Entries of one audit trail: of a key that is asked for very often, the oldest are dropped."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counterfoil_effects (
    id INTEGER PRIMARY KEY,
    tool TEXT NOT NULL,
    key TEXT NOT NULL,
    class TEXT NOT NULL,
    state TEXT NOT NULL,
    fence INTEGER NOT NULL,
    holder TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    window_ms INTEGER,
    arguments_digest TEXT,
    result TEXT,
    error TEXT,
    recorded_at INTEGER,
    forget_at INTEGER,
    UNIQUE (tool, key)
) STRICT;
CREATE INDEX IF NOT EXISTS counterfoil_effects_pending ON counterfoil_effects (id) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS counterfoil_effects_forgotten ON counterfoil_effects (forget_at)
    WHERE forget_at IS NOT NULL AND state <> 'pending';
CREATE INDEX IF NOT EXISTS counterfoil_effects_lapsed ON counterfoil_effects (forget_at)
    WHERE forget_at IS NOT NULL AND state = 'pending';
CREATE TABLE IF NOT EXISTS counterfoil_effect_audit (
    effect_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    holder TEXT NOT NULL,
    note TEXT,
    PRIMARY KEY (effect_id, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counterfoil_effect_floor (only INTEGER PRIMARY KEY CHECK (only = 1), fence INTEGER NOT NULL)
    STRICT;
INSERT OR IGNORE INTO counterfoil_effect_floor (only, fence) VALUES (1, 0);
"""
_COLUMNS = (
    "tool, key, class, state, fence, holder, expires_at, window_ms, arguments_digest, result, error, recorded_at, "
    "forget_at"
)
_LOAD = f"SELECT id, {_COLUMNS} FROM counterfoil_effects WHERE tool = ? AND key = ?"  # noqa: S608 (names of columns)
_INSERT = f"INSERT INTO counterfoil_effects (id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_UPDATE = """
    UPDATE counterfoil_effects SET class = ?, state = ?, fence = ?, holder = ?, expires_at = ?, window_ms = ?,
        arguments_digest = ?, result = ?, error = ?, recorded_at = ?, forget_at = ?
    WHERE id = ?
"""
_AUDIT = """
    INSERT INTO counterfoil_effect_audit (effect_id, number, at, type, holder, note)
    SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4, ?5 FROM counterfoil_effect_audit WHERE effect_id = ?1
"""
_TRIM = """
    DELETE FROM counterfoil_effect_audit WHERE effect_id = ?1
        AND number <= (SELECT max(number) FROM counterfoil_effect_audit WHERE effect_id = ?1) - ?2
"""
_FORGET = """
    DELETE FROM counterfoil_effects WHERE id IN (
        SELECT id FROM counterfoil_effects WHERE forget_at <= ?1 AND forget_at IS NOT NULL AND state <> 'pending'
        UNION ALL
        SELECT id FROM counterfoil_effects WHERE forget_at <= ?1 AND forget_at IS NOT NULL AND state = 'pending'
        LIMIT ?2
    ) RETURNING id, fence
"""
_LIST = f"""
    SELECT id, {_COLUMNS} FROM counterfoil_effects
    WHERE id > ? AND state <> 'free' AND (forget_at IS NULL OR forget_at > ?)
"""  # noqa: S608 (names of columns)


class ForgettingPace:
    """When the next entries are looked for that are past their window: once a second, or at once after a full batch."""

    def __init__(self) -> None:
        self._next = 0

    def is_due(self, now: int) -> bool:
        return now >= self._next or now < self._next - FORGET_PAUSE_MS

    def swept(self, count: int, now: int) -> None:
        self._next = now if count >= FORGET_BATCH else now + FORGET_PAUSE_MS


def connect(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open the file and create what it lacks. Every commit is flushed before it counts."""
    uri = f"file:{quote(str(path))}?mode=rwc"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_timeout, cached_statements=64)
    try:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'counterfoil_effect_floor'")
        if found.fetchall() == [(0,)]:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def commit(
    connection: sqlite3.Connection, operations: Sequence[StoreOperation], now: int, pace: ForgettingPace
) -> list[Any]:
    """Decide and write the operations in one transaction; returns their answers after the commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        ids, entries = _load(connection, effects_of(operations))
        [(floor,)] = connection.execute("SELECT fence FROM counterfoil_effect_floor").fetchall()
        decided = decide(operations, entries, now, floor)
        _write(connection, ids, decided.changed)
        _write_audit(connection, ids, decided.audit)
        if pace.is_due(now):
            pace.swept(_forget(connection, now, FORGET_BATCH), now)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return decided.answers


def show(connection: sqlite3.Connection, effect: EffectId, now: int) -> ShownEffect | None:
    connection.execute("BEGIN")
    try:
        ids, entries = _load(connection, [effect])
        entry = entries.get(effect)
        if entry is None or not entry.is_known(now):
            return None
        trail = connection.execute(
            "SELECT at, type, holder, note FROM counterfoil_effect_audit WHERE effect_id = ? ORDER BY number",
            (ids[effect],),
        )
        return ShownEffect.of(entry, tuple(StoredAudit(*row) for row in trail))
    finally:
        connection.execute("ROLLBACK")


def list_page(
    connection: sqlite3.Connection,
    tool: str | None,
    state: EffectState | None,
    cursor: str | None,
    limit: int,
    now: int,
) -> EffectsListed:
    sql, values = _LIST, [int(cursor or 0), now]
    if state is not None:
        sql += f" AND state = '{EffectState(state).value}'"  # a literal, so that the partial index is used
    named: list[Any] = []
    if tool is not None:
        sql, named = f"{sql} AND tool = ?", [tool]
    rows = connection.execute(f"{sql} ORDER BY id LIMIT ?", [*values, *named, limit + 1]).fetchall()
    page = rows[:limit]
    return EffectsListed(
        tuple(ShownEffect.of(entry_of(row[1:])) for row in page), str(page[-1][0]) if len(rows) > limit else None
    )


def forget_apart(connection: sqlite3.Connection, now: int, limit: int) -> int:
    """The same as the writer does by the way, in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        count = _forget(connection, now, limit)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return count


def _load(
    connection: sqlite3.Connection, effects: Iterable[EffectId]
) -> tuple[dict[EffectId, int], dict[EffectId, EffectEntry]]:
    ids: dict[EffectId, int] = {}
    entries: dict[EffectId, EffectEntry] = {}
    for effect in effects:
        for row in connection.execute(_LOAD, effect).fetchall():
            ids[effect], entries[effect] = row[0], entry_of(row[1:])
    return ids, entries


def _write(connection: sqlite3.Connection, ids: dict[EffectId, int], changed: dict[EffectId, EffectEntry]) -> None:
    """Insert or update; ``ids`` gets those of new rows. The transaction has the file to itself, so ids are counted."""
    updated = [(*entry_columns(entry), ids[effect]) for effect, entry in changed.items() if effect in ids]
    if updated:
        connection.executemany(_UPDATE, updated)
    new = [effect for effect in changed if effect not in ids]
    if new:
        [(last,)] = connection.execute("SELECT coalesce(max(id), 0) FROM counterfoil_effects").fetchall()
        ids.update((effect, number) for number, effect in enumerate(new, last + 1))
        connection.executemany(_INSERT, [(ids[effect], *effect, *entry_columns(changed[effect])) for effect in new])


def _write_audit(connection: sqlite3.Connection, ids: dict[EffectId, int], lines: Sequence[AuditLine]) -> None:
    if not lines:
        return
    connection.executemany(
        _AUDIT, [(ids[line.effect], line.at, line.type.value, line.holder, line.note) for line in lines]
    )
    asked = {ids[line.effect] for line in lines if line.type is AuditType.DEDUP_HIT}
    if asked:
        connection.executemany(_TRIM, [(effect_id, LONGEST_TRAIL) for effect_id in asked])


def _forget(connection: sqlite3.Connection, now: int, limit: int) -> int:
    deleted = connection.execute(_FORGET, (now, limit)).fetchall()
    if deleted:
        connection.executemany(
            "DELETE FROM counterfoil_effect_audit WHERE effect_id = ?", [(effect_id,) for effect_id, _ in deleted]
        )
        highest = max(fence for _, fence in deleted)
        connection.execute("UPDATE counterfoil_effect_floor SET fence = max(fence, ?)", (highest,))
    return len(deleted)
