"""The tables of the dedup store on PostgreSQL, and its statements. They mean what those of ``sqlite_tables`` mean.

Locks are taken in two phases, each in the order of tool and key: first empty rows for the keys that have none, then all
rows of the batch. So transactions of several processes never wait for each other in a circle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from counterfoil.contracts.stores.batches import BatchDecided, EffectId, Reserving, StoreOperation, decide, effects_of
from counterfoil.contracts.stores.protocol import PAGE, EffectsListed, ShownEffect, StoredAudit
from counterfoil.contracts.stores.rows import entry_columns, entry_of
from counterfoil.contracts.stores.sqlite_tables import FORGET_BATCH, LONGEST_TRAIL, ForgettingPace
from counterfoil.domain.effects.reservations import AuditType, EffectState
from counterfoil.domain.time import Clock

if TYPE_CHECKING:
    import asyncpg

    AnyConnection = asyncpg.Connection[asyncpg.Record]

MOST_TRIES = 5
"""How often a batch is decided again because a row was forgotten between the two phases of its locks."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DATABASE_TIME = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_COLUMNS = (
    "tool, key, class, state, fence, holder, expires_at, window_ms, arguments_digest, result, error, recorded_at, "
    "forget_at"
)
_CREATE = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.effects (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tool text NOT NULL,
    key text NOT NULL,
    class text NOT NULL,
    state text NOT NULL,
    fence bigint NOT NULL,
    holder text NOT NULL,
    expires_at bigint NOT NULL,
    window_ms bigint,
    arguments_digest text,
    result text,
    error text,
    recorded_at bigint,
    forget_at bigint,
    UNIQUE (tool, key)
);
CREATE INDEX IF NOT EXISTS effects_pending ON {schema}.effects (id) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS effects_forgotten ON {schema}.effects (forget_at) WHERE forget_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS {schema}.effect_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    effect_id bigint NOT NULL,
    at bigint NOT NULL,
    type text NOT NULL,
    holder text NOT NULL,
    note text
);
CREATE INDEX IF NOT EXISTS effect_audit_of_effect ON {schema}.effect_audit (effect_id, id);
CREATE TABLE IF NOT EXISTS {schema}.effect_floor (only_row boolean PRIMARY KEY CHECK (only_row), fence bigint NOT NULL);
INSERT INTO {schema}.effect_floor VALUES (true, 0) ON CONFLICT DO NOTHING;
"""
_PROVIDE = """
INSERT INTO {schema}.effects (tool, key, class, state, fence, holder, expires_at)
SELECT tool, key, 'write-idempotent', 'free', 0, '', 0
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (tool, key, place) ORDER BY place
ON CONFLICT DO NOTHING
"""
_LOCK = """
SELECT e.id, e.tool, e.key, e.class, e.state, e.fence, e.holder, e.expires_at, e.window_ms, e.arguments_digest,
    e.result, e.error, e.recorded_at, e.forget_at
FROM {schema}.effects e
JOIN unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted (tool, key, place)
    ON e.tool = wanted.tool AND e.key = wanted.key
ORDER BY wanted.place FOR UPDATE OF e
"""
_UPDATE = """
UPDATE {schema}.effects e SET class = c.class, state = c.state, fence = c.fence, holder = c.holder,
    expires_at = c.expires_at, window_ms = c.window_ms, arguments_digest = c.arguments_digest, result = c.result,
    error = c.error, recorded_at = c.recorded_at, forget_at = c.forget_at
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
    $9::text[], $10::text[], $11::bigint[], $12::bigint[])
    AS c (id, class, state, fence, holder, expires_at, window_ms, arguments_digest, result, error, recorded_at,
        forget_at)
WHERE e.id = c.id
"""
_AUDIT = """
INSERT INTO {schema}.effect_audit (effect_id, at, type, holder, note)
SELECT effect_id, at, type, holder, note
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[]) WITH ORDINALITY
    AS line (effect_id, at, type, holder, note, place) ORDER BY place
"""
_TRIM = """
DELETE FROM {schema}.effect_audit a USING unnest($1::bigint[]) AS asked (effect_id)
WHERE a.effect_id = asked.effect_id AND a.id <= (
    SELECT b.id FROM {schema}.effect_audit b WHERE b.effect_id = asked.effect_id ORDER BY b.id DESC OFFSET $2 LIMIT 1)
"""
_FORGET = """
WITH gone AS (
    DELETE FROM {schema}.effects WHERE id IN (
        SELECT id FROM {schema}.effects WHERE forget_at <= $1 ORDER BY forget_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING id, fence
), trails AS (
    DELETE FROM {schema}.effect_audit WHERE effect_id IN (SELECT id FROM gone)
), raised AS (
    UPDATE {schema}.effect_floor SET fence = greatest(fence, (SELECT max(fence) FROM gone))
    WHERE fence < (SELECT max(fence) FROM gone)
)
SELECT count(*) FROM gone
"""


class _RowForgotten(Exception):
    """A row was deleted between the two phases: the batch begins again."""


class PostgresTables:
    def __init__(self, schema: str, clock: Clock | None) -> None:
        if not _NAME.fullmatch(schema):
            raise ValueError("the schema must be a plain name of small letters, digits and underscores")
        self._schema = schema
        self._clock = clock
        self._pace = ForgettingPace()

    def _sql(self, text: str) -> str:
        return text.replace("{schema}", self._schema)

    async def create(self, connection: AnyConnection) -> None:
        """Create the tables if they are missing; processes that do so at once wait for each other."""
        if await connection.fetchval("SELECT to_regclass($1)", f"{self._schema}.effect_floor") is not None:
            return
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", f"counterfoil {self._schema}")
            await connection.execute(self._sql(_CREATE))

    async def commit(self, connection: AnyConnection, operations: Sequence[StoreOperation]) -> list[Any]:
        """Decide and write the operations in one transaction; returns their answers after the commit."""
        for _ in range(MOST_TRIES):
            try:
                async with connection.transaction():
                    decided, now = await self._decide(connection, operations)
                break
            except _RowForgotten:
                continue
        else:
            raise TimeoutError("rows of this batch are forgotten again and again")
        if self._pace.is_due(now):
            self._pace.swept(await self._forget(connection, now, FORGET_BATCH), now)
        return decided.answers

    async def _decide(
        self, connection: AnyConnection, operations: Sequence[StoreOperation]
    ) -> tuple[BatchDecided, int]:
        reserved = effects_of(operation for operation in operations if isinstance(operation, Reserving))
        if reserved:
            await connection.execute(self._sql(_PROVIDE), *_columns(reserved, 2))
        rows = await connection.fetch(self._sql(_LOCK), *_columns(effects_of(operations), 2))
        ids = {(row[1], row[2]): int(row[0]) for row in rows}
        if not ids.keys() >= set(reserved):
            raise _RowForgotten
        loaded = {(row[1], row[2]): entry_of(tuple(row)[1:]) for row in rows}
        now, floor = await self._now_and_floor(connection)
        decided = decide(operations, loaded, now, floor)
        if decided.changed:
            values = [(ids[effect], *entry_columns(entry)) for effect, entry in decided.changed.items()]
            await connection.execute(self._sql(_UPDATE), *_columns(values, 12))
        if decided.audit:
            lines = [(ids[line.effect], line.at, line.type.value, line.holder, line.note) for line in decided.audit]
            await connection.execute(self._sql(_AUDIT), *_columns(lines, 5))
        asked = {ids[line.effect] for line in decided.audit if line.type is AuditType.DEDUP_HIT}
        if asked:
            await connection.execute(self._sql(_TRIM), sorted(asked), LONGEST_TRAIL)
        return decided, now

    async def _now_and_floor(self, connection: AnyConnection) -> tuple[int, int]:
        """After the locks are taken: what was forgotten before has raised the floor by now."""
        row = await connection.fetchrow(self._sql(f"SELECT {_DATABASE_TIME}, fence FROM {{schema}}.effect_floor"))  # noqa: S608
        assert row is not None, "the floor is a row of the schema"
        return (self._clock() if self._clock else int(row[0])), int(row[1])

    async def _now(self, connection: AnyConnection) -> int:
        return self._clock() if self._clock else int(await connection.fetchval(f"SELECT {_DATABASE_TIME}"))

    async def show(self, connection: AnyConnection, effect: EffectId) -> ShownEffect | None:
        query = f"SELECT id, {_COLUMNS} FROM {{schema}}.effects WHERE tool = $1 AND key = $2"  # noqa: S608 (names)
        row = await connection.fetchrow(self._sql(query), *effect)
        entry = None if row is None else entry_of(tuple(row)[1:])
        if row is None or entry is None or not entry.is_known(await self._now(connection)):
            return None
        trail = await connection.fetch(
            self._sql("SELECT at, type, holder, note FROM {schema}.effect_audit WHERE effect_id = $1 ORDER BY id"),
            row[0],
        )
        return ShownEffect.of(entry, tuple(StoredAudit(*line) for line in trail))

    async def list_page(
        self,
        connection: AnyConnection,
        tool: str | None,
        state: EffectState | None,
        cursor: str | None,
        limit: int = PAGE,
    ) -> EffectsListed:
        values: list[Any] = [int(cursor or 0), await self._now(connection), limit + 1]
        query = (
            f"SELECT id, {_COLUMNS} FROM {{schema}}.effects "  # noqa: S608 (names of columns, and a literal state)
            "WHERE id > $1 AND state <> 'free' AND (forget_at IS NULL OR forget_at > $2)"
        )
        if state is not None:
            query += f" AND state = '{EffectState(state).value}'"
        if tool is not None:
            query, values = f"{query} AND tool = $4", [*values, tool]
        rows = await connection.fetch(self._sql(f"{query} ORDER BY id LIMIT $3"), *values)
        page = rows[:limit]
        return EffectsListed(
            tuple(ShownEffect.of(entry_of(tuple(row)[1:])) for row in page),
            str(page[-1][0]) if len(rows) > limit else None,
        )

    async def forget(self, connection: AnyConnection, limit: int) -> int:
        return await self._forget(connection, await self._now(connection), limit)

    async def _forget(self, connection: AnyConnection, now: int, limit: int) -> int:
        return int(await connection.fetchval(self._sql(_FORGET), now, limit))


def _columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    return [[row[place] for row in rows] for place in range(width)]
