"""A store's life: what is committed stays, what is not leaves no trace, and readers see only the former."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.work.complete import Complete
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.store.backends import MakeStore, batch_of, load, write
from tests.store.records import DEFAULTS, RETRY, flow_record, new_records, step_run, step_version, work_item


class Look:
    """Looks at the open work of a flow without having asked for it before."""

    def __init__(self, flow_id: str) -> None:
        self._flow_id = flow_id

    def needs(self, needs: ReadSet) -> None:
        pass

    def decide(self, unit: UnitOfWork, now: int) -> list[str]:
        return [work.work_id for work in unit.open_work(self._flow_id)]


async def exists(store: Store, work_id: str) -> bool:
    return bool(await store.read("receipt_status", work_id=work_id))


async def test_what_was_committed_is_there_after_another_start(
    make_store: MakeStore, tmp_path: Path, clock: StillClock
) -> None:
    for number in range(3):
        store = make_store(tmp_path, clock)
        await store.open()
        assert [await exists(store, f"work-{earlier}") for earlier in range(3)] == [n < number for n in range(3)]
        await write(store, new_records(work_item(work_id=f"work-{number}")))
        await store.close()


async def test_closing_twice_and_closing_unopened_is_harmless(
    make_store: MakeStore, tmp_path: Path, clock: StillClock
) -> None:
    store = make_store(tmp_path, clock)
    await store.close()
    await store.open()
    await store.close()
    await store.close()


async def test_what_is_asked_of_a_closed_store_fails_at_once(
    make_store: MakeStore, tmp_path: Path, clock: StillClock
) -> None:
    store = make_store(tmp_path, clock)
    await store.open()
    await store.close()
    asked: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.read("last_seq"),
        lambda: store.read_page("list_steps", 1_000),
        lambda: store.probe("node"),
        lambda: write(store, new_records(work_item())),
    ]
    for ask in asked:
        with pytest.raises(StoreFailure, match="the store is closed"):
            await ask()
    await store.open()
    assert not await exists(store, "work"), "it can be opened again"
    await store.close()


async def test_reads_that_wait_for_a_connection_fail_when_the_store_is_closed(
    make_store: MakeStore, tmp_path: Path, clock: StillClock
) -> None:
    store = make_store(tmp_path, clock)
    await store.open()
    assert isinstance(store, SqliteStore | PostgresStore)
    in_use = [store._readers.get_nowait() for _ in range(store._readers.qsize())]  # by reads that take their time
    waiting = [asyncio.create_task(store.read("last_seq")) for _ in range(5)]
    await asyncio.sleep(0)
    await store.close()
    for read in waiting:
        with pytest.raises(StoreFailure, match="the store is closed"):
            await read
    for connection in in_use:
        assert connection is not None
        await connection.close()


async def test_a_read_under_way_when_the_store_is_closed_leaves_no_connection_open(
    make_store: MakeStore, tmp_path: Path, clock: StillClock
) -> None:
    store = make_store(tmp_path, clock)
    await store.open()
    assert isinstance(store, SqliteStore | PostgresStore)
    reads = [asyncio.create_task(store.read("last_seq")) for _ in range(9)]
    await asyncio.sleep(0)
    await store.close()
    results = await asyncio.gather(*reads, return_exceptions=True)
    assert all(isinstance(result, StoreFailure) or result == [(0,)] for result in results)
    left = [store._readers.get_nowait() for _ in range(store._readers.qsize())]
    assert all(each is None or (isinstance(each, asyncpg.Connection) and each.is_closed()) for each in left)


async def test_what_was_committed_is_seen_by_every_reader(store: Store) -> None:
    assert not await exists(store, "work")
    await write(store, new_records(work_item()))
    assert await asyncio.gather(*(exists(store, "work") for _ in range(5))) == [True] * 5


async def test_a_batch_that_changes_nothing_writes_nothing(store: Store) -> None:
    await write(store, Changes())
    assert await store.read("last_seq") == [(0,)]


async def test_more_is_loaded_as_long_as_something_is_missed(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    answers: list[Any] = []
    batch = batch_of(Look("flow"), Look("nothing"), answers=answers)
    await store.execute(batch)
    batch.answer()
    assert answers == [["work"], []]


async def test_loading_more_does_not_undo_what_the_batch_has_changed(store: Store) -> None:
    """The second load reads the old row again, but the unit of work already knows better."""
    version = step_version()
    await write(store, Changes(current={"step": version.version}, versions={version.version: version}))
    item = work_item(version=version.version)
    await write(store, new_records(flow_record(open_steps=2), step_run(version=version.version), item))
    answers: list[Any] = []
    batch = batch_of(Complete("work", StepResult(success=True), RETRY), Look("flow"), answers=answers)
    await store.execute(batch)
    batch.answer()
    assert answers[1] == [], "the second command sees that the first has ended the work"
    assert batch.unit.work("work").status is WorkStatus.SUCCEEDED


async def test_many_readers_are_served_while_there_are_few_connections(store: Store) -> None:
    await write(store, new_records(work_item()))
    assert all(await asyncio.gather(*(exists(store, "work") for _ in range(50))))


async def test_a_reader_that_gives_up_leaves_its_connection_to_others(store: Store) -> None:
    await write(store, new_records(work_item()))
    for _ in range(10):
        reading = asyncio.create_task(exists(store, "work"))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await exists(store, "work")


async def test_an_empty_batch_loads_nothing(store: Store) -> None:
    unit = await load(store, ReadSet())
    assert not unit.changes.any()


@pytest.mark.postgresql_only
async def test_it_works_without_statements_that_are_kept(store: Store, clock: StillClock) -> None:
    """As behind a pooler that gives every transaction another connection."""
    assert isinstance(store, PostgresStore)
    other = PostgresStore(store.access.dsn, clock, DEFAULTS, statement_cache=0)
    await other.open()
    for number in range(3):
        await write(other, new_records(flow_record(flow_id=f"{number}"), step_run(flow_id=f"{number}")))
    await write(other, new_records(flow_record(), step_run(), work_item()))
    assert await asyncio.gather(*(exists(other, "work") for _ in range(5))) == [True] * 5
    assert (await load(other, ReadSet(work={"work"}))).work("work") == work_item()
    await other.join("node", 60_000)
    assert await other.renew("node", 60_000) == 0
    await other.close()
    assert await exists(store, "work")
