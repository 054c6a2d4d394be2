"""A kind of record costs its declaration, its SQL and its table: this one is declared here, and nothing else knows it.

It is loaded, drafted, rolled back, written, locked, pruned and copied as every other kind is, on both stores.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError, UnknownWork
from counterfoil.domain.states import FlowStatus
from counterfoil.engine.flows.prune import Prune
from counterfoil.store.kinds.columns import Columns
from counterfoil.store.kinds.declared import KINDS, Kinds
from counterfoil.store.kinds.kind import Lock, of_flow, plain_kind
from counterfoil.store.maintenance.copying import open_source
from counterfoil.store.postgres import statements as postgresql
from counterfoil.store.protocol import Store
from counterfoil.store.sqlite import transaction as sqlite
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.store.backends import NewConnection, are_waiting, batch_of, load, place_of, write
from tests.store.records import NOW, flow_record, new_records


class Mood(StrEnum):
    CALM = "calm"
    CROSS = "cross"


@dataclass(frozen=True, slots=True)
class Note:
    note_id: str
    flow_id: str
    mood: Mood
    pinned: bool
    words: dict[str, Any] | None = None
    at: int | None = None


NOTES = plain_kind(
    "example_notes",
    Columns(Note),
    "note_id",
    lock=Lock(9, "lock_example_notes"),
    prune=(of_flow("example_notes"),),
)

TABLES = {
    "sqlite": """CREATE TABLE example_notes (note_id TEXT PRIMARY KEY, flow_id TEXT NOT NULL, mood TEXT NOT NULL,
        pinned INTEGER NOT NULL, words TEXT, at INTEGER) STRICT""",
    "postgresql": """CREATE TABLE example_notes (note_id text PRIMARY KEY, flow_id text NOT NULL, mood text NOT NULL,
        pinned boolean NOT NULL, words text, at bigint)""",
}
CHANGED = "mood = excluded.mood, pinned = excluded.pinned, words = excluded.words, at = excluded.at"
QUERIES = {
    "sqlite": {
        "load_example_notes": """SELECT json_group_array(json_array(
                n.note_id, n.flow_id, n.mood, n.pinned, n.words, n.at
            )) FROM json_each(?) AS wanted CROSS JOIN example_notes AS n ON n.note_id = wanted.value""",
        "put_example_notes": f"""INSERT INTO example_notes (note_id, flow_id, mood, pinned, words, at)
            SELECT * FROM (VALUES :rows) WHERE column1 IS NOT NULL ON CONFLICT (note_id) DO UPDATE SET {CHANGED}""",
        "delete_example_notes": "DELETE FROM example_notes WHERE note_id IN (VALUES :rows)",
        "prune_example_notes": "DELETE FROM example_notes WHERE flow_id IN (VALUES :rows)",
    },
    "postgresql": {
        "load_example_notes": """SELECT n.note_id, n.flow_id, n.mood, n.pinned, n.words, n.at
            FROM example_notes AS n WHERE n.note_id = ANY($1::text[])""",
        "put_example_notes": f"""INSERT INTO example_notes (note_id, flow_id, mood, pinned, words, at) SELECT * FROM
            unnest($1::text[], $2::text[], $3::text[], $4::boolean[], $5::text[], $6::bigint[])
            ON CONFLICT (note_id) DO UPDATE SET {CHANGED}""",
        "delete_example_notes": "DELETE FROM example_notes WHERE note_id = ANY($1::text[])",
        "prune_example_notes": "DELETE FROM example_notes WHERE flow_id = ANY($1::text[])",
        "lock_example_notes": """SELECT n.note_id FROM example_notes AS n WHERE n.note_id = ANY($1::text[])
            ORDER BY n.note_id FOR UPDATE""",
    },
}
LOADED_BY = {"sqlite": sqlite.QUERIES, "postgresql": postgresql.QUERIES}


@pytest.fixture(autouse=True)
def declared(backend: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    by_hand(place_of(store), TABLES[backend])
    for name, text in QUERIES[backend].items():
        monkeypatch.setitem(postgresql.COORDINATION if name.startswith("lock_") else LOADED_BY[backend], name, text)
    KINDS.declare(NOTES)
    yield
    KINDS.withdraw(NOTES)


@dataclass
class Put:
    """Put a note, or take it out; ``error``: then refuse."""

    note: Note | None
    note_id: str
    error: CounterfoilError | None = None

    def needs(self, needs: ReadSet) -> None:
        needs.example_notes.add(self.note_id)

    def decide(self, unit: UnitOfWork, now: int) -> Note | None:
        """What was there before."""
        before = unit.records(NOTES).get(self.note_id)
        unit.records(NOTES).put(self.note_id, self.note)
        if self.error is not None:
            raise self.error
        return before


FIRST = Note("a", "flow", Mood.CROSS, pinned=True, words={"n": [1, None]}, at=NOW)
SECOND = Note("b", "other", Mood.CALM, pinned=False)


async def run(store: Store, *commands: Any) -> list[Any]:
    answers: list[Any] = []
    batch = batch_of(*commands, answers=answers)
    await store.execute(batch)
    batch.answer()
    return answers


async def notes(store: Store, *keys: str) -> list[Note | None]:
    unit = await load(store, ReadSet(example_notes=set(keys)))
    return [unit.records(NOTES).get(key) for key in keys]


async def test_it_is_written_and_loaded(store: Store) -> None:
    assert await run(store, Put(FIRST, "a"), Put(SECOND, "b")) == [None, None]
    assert await notes(store, "a", "b", "c") == [FIRST, SECOND, None]
    changed = replace(FIRST, mood=Mood.CALM, words=None)
    assert await run(store, Put(changed, "a"), Put(None, "b")) == [FIRST, SECOND]
    assert await notes(store, "a", "b") == [changed, None]


async def test_it_is_seen_by_the_next_command_and_a_refused_one_leaves_no_trace(store: Store) -> None:
    changed = replace(FIRST, mood=Mood.CALM)
    answers = await run(
        store,
        Put(FIRST, "a"),
        Put(None, "a", UnknownWork()),
        Put(SECOND, "b", UnknownWork()),
        Put(changed, "a"),
    )
    assert [getattr(answer, "code", answer) for answer in answers] == [None, UnknownWork.code, UnknownWork.code, FIRST]
    assert await notes(store, "a", "b") == [changed, None]


async def test_it_goes_with_its_flow(store: Store) -> None:
    await write(store, new_records(flow_record(FlowStatus.FAILED, finished_at=NOW, open_steps=0)))
    await run(store, Put(FIRST, "a"), Put(SECOND, "b"))
    prune = Prune("flow", None, cutoff=NOW, payloads=False)
    assert await run(store, Put(replace(FIRST, pinned=False), "a"), prune) == [FIRST, False], "changed in this batch"
    assert await run(store, prune) == [True]
    assert await notes(store, "a", "b") == [None, SECOND]


@pytest.mark.sqlite_only
async def test_it_is_copied(store: Store, tmp_path: Path) -> None:
    await run(store, Put(FIRST, "a"))
    await store.close()
    with open_source(tmp_path / "counterfoil.db") as source:
        [table] = [table for table in source.tables if table.name == "example_notes"]
        assert (table.columns, table.key, table.rows) == (NOTES.loads[0].columns, ("note_id",), 1)


@pytest.mark.postgresql_only
async def test_it_is_locked_before_it_is_read(store: Store, new_connection: NewConnection) -> None:
    await run(store, Put(FIRST, "a"))
    other = await new_connection()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("UPDATE example_notes SET mood = 'calm' WHERE note_id = 'a'")
    waiting = asyncio.create_task(run(store, Put(None, "a")))
    eye = await new_connection()
    await eventually(lambda: are_waiting(eye, 1))
    await transaction.commit()
    assert await waiting == [replace(FIRST, mood=Mood.CALM)]


async def test_a_read_set_refuses_what_no_kind_declares(store: Store) -> None:
    assert ReadSet().example_notes == set()
    with pytest.raises(AttributeError):
        _ = ReadSet().undeclared_notes
    KINDS.withdraw(NOTES)
    with contextlib.ExitStack() as stack:
        stack.callback(KINDS.declare, NOTES)
        with pytest.raises(AttributeError):
            _ = ReadSet().example_notes


def test_two_kinds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        Kinds([NOTES, plain_kind("example_notes", Columns(Note), "note_id")])
