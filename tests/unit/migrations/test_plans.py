"""Databases of a time when nothing was planned: migrated, examined, and continued by an engine."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.settings import Settings
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.maintenance.migrating import Migrated, migrate_store
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place, by_hand
from tests.databases import NewDatabase
from tests.journal import ENTRIES, events_of
from tests.store.old_stores import NASTY, OUTPUTS, WORK, fill_old
from tests.store.records import NOW
from tests.store.schemas import Database, PostgresDatabase, SqliteDatabase, versions


async def database_at(place: Place) -> Database:
    return SqliteDatabase(place) if isinstance(place, Path) else await PostgresDatabase.at(place)


@pytest.fixture
async def place(store_name: str, tmp_path: Path, new_database: NewDatabase) -> Place:
    """Where a database of the older version is."""
    place: Place = tmp_path / "old.db" if store_name == "sqlite" else new_database(empty=True)
    database = await database_at(place)
    await fill_old(database)
    await database.close()
    return place


async def migrated(place: Place) -> Migrated:
    return await migrate_store(Settings(store=f"sqlite:///{place}" if isinstance(place, Path) else place), NOW)


async def test_the_schema_is_that_of_a_new_database(place: Place, tmp_path: Path, new_database: NewDatabase) -> None:
    old = await database_at(place)
    fresh = await database_at(tmp_path / "fresh.db" if isinstance(place, Path) else new_database(empty=True))
    await fresh.migrate(NOW)
    found = 2 if isinstance(place, Path) else 1
    assert await migrated(place) == Migrated(found, old.present)
    assert await old.catalogue() == await fresh.catalogue()
    assert await versions(old) == [(found, NOW - 1), *((number, NOW) for number in range(found + 1, old.present + 1))]
    await old.close()
    await fresh.close()


async def test_steps_have_what_the_journal_tells_of_them_to_the_letter(place: Place) -> None:
    await migrated(place)
    found = by_hand(place, "SELECT flow_id, step_id, outputs, error FROM flow_steps")
    kept = {(flow_id, step_id): (outputs, error) for flow_id, step_id, outputs, error in found}
    nasty = r'"\u0000 ' + "\u2028 \U0001f600" + r" \" \\u0000 " + "'\""
    assert parse_json(nasty) == NASTY
    assert {key: values for key, values in kept.items() if values != (None, None)} == {
        ("done", "a"): (f'{{"x":1,"amount":98765432109876543210,"text":{nasty},"tiny":1e-7,"zero":-0.0}}', None),
        ("done", "b"): ('{"x":2,"y":[{}]}', None),
        ("failed", "a"): ('{"kept":true}', None),
        ("failed", "b"): (None, f'{{"code":"STEP_FAILED","message":"broken {nasty[1:]}}}'),
        ("half", "a"): (f'{{"first":{nasty}}}', None),
    }
    assert len(kept) == 10


async def test_the_journal_is_left_as_it_was(place: Place) -> None:
    before = by_hand(place, ENTRIES)
    await migrated(place)
    assert by_hand(place, ENTRIES) == before


async def test_a_damaged_entry_does_not_stand_in_the_way(place: Place) -> None:
    by_hand(place, "INSERT INTO journal (flow_id, at, events) VALUES ('done', 1, '[[\"step_\"')")
    await migrated(place)
    assert by_hand(place, "SELECT count(*) FROM flow_steps WHERE outputs IS NOT NULL") == [(4,)]


@pytest.mark.postgresql_only
async def test_nodes_do_not_migrate_by_themselves(place: Place) -> None:
    with pytest.raises(StoreFailure, match=r"schema version 1, this program needs \d: .*counterfoil store migrate"):
        await Simulator(place).start()


async def test_flows_show_what_they_showed(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        assert simulator.examine() == []
        queries = simulator.engine.queries
        for flow_id, outputs in OUTPUTS.items():
            assert (await queries.flow(flow_id))["outputs"] == outputs, flow_id
            assert json.loads(orjson.dumps(await queries.result(flow_id, 0)))[0]["outputs"] == outputs, flow_id
        listed = (await queries.flows())["flows"]
        assert {flow["flow_id"]: flow["outputs"] for flow in listed} == OUTPUTS
        document = json.loads(orjson.dumps(await queries.flow("half")))
        assert document["plan"]["steps"] == ["a", "b"]
        assert {name: step["status"] for name, step in document["steps"].items()} == {"a": "completed", "b": "active"}


async def complete(simulator: Simulator, work_id: str, **outputs: object) -> None:
    await simulator.engine.reports.complete(work_id, StepResult(success=True, outputs=outputs))


async def status(simulator: Simulator, flow_id: str) -> str:
    return str((await simulator.engine.queries.flow(flow_id))["status"])


async def test_an_engine_goes_on_where_the_old_one_stopped(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        simulator.clock.advance(10_000)
        simulator.network.always("http://worker.test/cancel", answered())
        await complete(simulator, WORK["open"], y=1)
        await complete(simulator, WORK["half"], first="another", second=2)
        assert [await status(simulator, flow_id) for flow_id in ("open", "half")] == ["completed", "completed"]
        flow = await simulator.engine.queries.flow("half")
        assert flow["outputs"] == {"first": NASTY, "second": 2}, "the first outcome of a value stays"
        assert await simulator.sweep(SweepName.REQUEUE) == 1
        [call] = simulator.network.waiting()
        assert (call.metadata["work_id"], call.attempt, call.body["arguments"]) == (WORK["waiting"], 2, {"n": 2})
        await complete(simulator, WORK["waiting"])
        assert await status(simulator, "waiting") == "completed"
        assert await simulator.sweep(SweepName.CANCEL_CALLS) == 1
        assert simulator.examine() == []


async def test_what_failed_then_can_be_redriven_now(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        answer = await simulator.engine.flows.redrive("failed")
        [again] = answer["work"]
        assert (answer["status"], again != WORK["failed"]) == ("active", True)
        await complete(simulator, again, more=1)
        flow = await simulator.engine.queries.flow("failed")
        assert (flow["status"], flow["outputs"]) == ("completed", {"kept": True, "more": 1})
        told = [event["type"] for event in events_of(by_hand(place, ENTRIES)) if event["flow_id"] == "failed"]
        assert told[-3:] == ["work_succeeded", "step_completed", "flow_completed"]
        assert simulator.examine() == []


async def test_what_is_open_can_be_cancelled(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        for flow_id in ("half", "waiting", "open"):
            await simulator.engine.flows.cancel(flow_id)
            assert await status(simulator, flow_id) == "cancelled"
        assert simulator.examine() == []
