"""What is true of the library's own stores beside the suite: group commit, forgetting, trails, creation, forks."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from counterfoil.contracts import PostgresDedupStore, SqliteDedupStore
from counterfoil.contracts.stores import sqlite_tables
from counterfoil.contracts.stores.postgres_tables import PostgresTables
from counterfoil.domain.effects.reservations import CompleteVerdict, EffectOutcome, ReserveVerdict
from counterfoil.testing import MovableClock
from tests.acceptance.processes import SOURCES, environment
from tests.contracts.test_stores import HOUR, TOOL, asking, succeeded
from tests.databases import NewDatabase

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "effects.db"


def rows(path: Path, table: str = "counterfoil_effects") -> int:
    connection = sqlite3.connect(path)
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    connection.close()
    return int(count)


async def test_concurrent_callers_share_a_transaction(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(connection: Any, operations: Any, *others: Any) -> Any:
        sizes.append(len(operations))
        return original(connection, operations, *others)

    original = sqlite_tables.commit
    monkeypatch.setattr(sqlite_tables, "commit", counted)
    async with SqliteDedupStore(path) as store:
        answers = await asyncio.gather(*(store.reserve(asking(f"k{number}")) for number in range(64)))
        await asyncio.gather(*(store.complete(TOOL, f"k{n}", 1, succeeded(n)) for n in range(64)))
    assert {answer.verdict for answer in answers} == {ReserveVerdict.GRANTED}
    assert sum(sizes) == 128
    assert len(sizes) <= 8


async def test_postgresql_commits_concurrent_callers_together(
    new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = PostgresTables.commit

    async def counted(self: PostgresTables, connection: Any, operations: Any) -> Any:
        sizes.append(len(operations))
        return await original(self, connection, operations)

    monkeypatch.setattr(PostgresTables, "commit", counted)
    async with PostgresDedupStore(new_database(empty=True)) as store:
        await asyncio.gather(*(store.reserve(asking(f"k{number}")) for number in range(64)))
    assert sum(sizes) == 64
    assert len(sizes) <= 4


async def test_one_operation_that_cannot_be_written_fails_alone(path: Path) -> None:
    async with SqliteDedupStore(path) as store:
        answers = await asyncio.gather(
            *(store.reserve(asking(key)) for key in ("a", "\ud800", "b")), return_exceptions=True
        )
    assert [getattr(answer, "verdict", None) for answer in answers] == [
        ReserveVerdict.GRANTED,
        None,
        ReserveVerdict.GRANTED,
    ]
    assert isinstance(answers[1], UnicodeError)


async def test_postgresql_one_operation_that_cannot_be_written_fails_alone(new_database: NewDatabase) -> None:
    async with PostgresDedupStore(new_database(empty=True)) as store:
        answers = await asyncio.gather(
            *(store.reserve(asking(key)) for key in ("a", "\0", "\ud800", "b")), return_exceptions=True
        )
    assert [getattr(answer, "verdict", None) for answer in answers] == [
        *(ReserveVerdict.GRANTED, None),
        *(None, ReserveVerdict.GRANTED),
    ]


async def test_forgetting_keeps_up_with_new_calls_and_is_bounded(path: Path) -> None:
    clock = MovableClock()
    async with SqliteDedupStore(path, clock=clock) as store:
        for batch in range(5):
            await asyncio.gather(*(store.reserve(asking(f"old{batch}-{n}")) for n in range(100)))
            await asyncio.gather(*(store.complete(TOOL, f"old{batch}-{n}", 1, succeeded()) for n in range(100)))
        assert rows(path) == 500
        clock.advance(milliseconds=HOUR + 1)
        left = [rows(path)]
        for number in range(10):
            await store.reserve(asking(f"new{number}"))
            left.append(rows(path))
    assert left[-1] == 10
    assert rows(path, "counterfoil_effect_audit") == 10
    assert max(before - after for before, after in itertools.pairwise(left)) <= sqlite_tables.FORGET_BATCH


async def test_postgresql_forgets_by_the_way_too(new_database: NewDatabase) -> None:
    dsn, clock = new_database(empty=True), MovableClock()
    async with PostgresDedupStore(dsn, clock=clock) as store:
        await asyncio.gather(*(store.reserve(asking(f"old{n}")) for n in range(100)))
        await asyncio.gather(*(store.complete(TOOL, f"old{n}", 1, succeeded()) for n in range(100)))
        clock.advance(milliseconds=HOUR + 1)
        for number in range(4):
            await store.reserve(asking(f"new{number}"))
        await store.show(TOOL, "new0")
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("SELECT count(*) FROM counterfoil_contracts.effects") == 4
    assert await connection.fetchval("SELECT count(*) FROM counterfoil_contracts.effect_audit") == 4
    await connection.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_the_trail_of_a_busy_key_stays_short(
    path: Path, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for module in ("sqlite_tables", "postgres_tables"):
        monkeypatch.setattr(f"counterfoil.contracts.stores.{module}.LONGEST_TRAIL", 10)
    store = SqliteDedupStore(path) if kind == "sqlite" else PostgresDedupStore(new_database(empty=True))
    await store.reserve(asking())
    await store.complete(TOOL, "k", 1, succeeded())
    for number in range(30):
        await store.reserve(asking(holder=f"h{number}"))
    shown = await store.show(TOOL, "k")
    await store.aclose()
    assert shown is not None
    assert [entry.holder for entry in shown.audit] == [f"h{number}" for number in range(20, 30)]


async def test_processes_that_create_the_tables_at_once_do_not_disturb_each_other(new_database: NewDatabase) -> None:
    dsn = new_database(empty=True)
    stores = [PostgresDedupStore(dsn, schema="tools") for _ in range(8)]
    answers = await asyncio.gather(*(store.reserve(asking(f"k{n}")) for n, store in enumerate(stores)))
    assert {answer.verdict for answer in answers} == {ReserveVerdict.GRANTED}
    for store in stores:
        await store.aclose()


def test_a_schema_is_a_plain_name() -> None:
    with pytest.raises(ValueError, match="plain name"):
        PostgresDedupStore("postgresql://localhost/", schema='x"; DROP TABLE effects')


async def test_the_clock_of_the_database_decides_on_postgresql(new_database: NewDatabase) -> None:
    async with PostgresDedupStore(new_database(empty=True)) as store:
        answer = await store.reserve(asking(ttl_ms=1_000))
        shown = await store.show(TOOL, "k")
    assert shown is not None
    assert answer.expires_at - shown.audit[0].at == 1_000


FORKING = """
import asyncio, os, sys
from counterfoil.contracts import SqliteDedupStore
from tests.contracts.test_stores import asking

store = SqliteDedupStore(sys.argv[1])
assert asyncio.run(store.reserve(asking("parent"))).verdict == "granted"
child = os.fork()
if child == 0:
    found = [asyncio.run(store.reserve(asking(key, holder="h2"))).verdict for key in ("parent", "child")]
    os._exit(0 if found == ["in_flight", "granted"] else 1)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(store.reserve(asking("child", holder="h3"))).verdict == "in_flight"
store.close()
"""


def test_after_a_fork_the_child_opens_the_file_itself(path: Path) -> None:
    """The thread of the parent does not exist in the child."""
    program = [sys.executable, "-c", FORKING, str(path)]
    subprocess.run(program, check=True, timeout=30, env={**environment(), "PYTHONPATH": f"{SOURCES}:{ROOT}"})


async def test_a_closed_store_is_opened_again_by_the_next_call(path: Path) -> None:
    store = SqliteDedupStore(path)
    await store.reserve(asking())
    store.close()
    outcome = EffectOutcome(success=True, result=1)
    assert await store.complete(TOOL, "k", 1, outcome) is CompleteVerdict.RECORDED
    store.close()
