"""PostgreSQL of a time when what is open was found by indexes alone: migrated, examined, and continued by an engine."""

from __future__ import annotations

import pytest

from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.maintenance.migrating import Migrated
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.store.old_stores import BEFORE_OPEN, fill_old
from tests.store.records import DEFAULTS, NOW
from tests.store.schemas import PostgresDatabase
from tests.unit.migrations.test_plans import migrated

KEPT = ("flows", "flow_inputs", "flow_steps", "work", "journal", "gates", "approvals", "policies")


@pytest.fixture
async def place(new_database: NewDatabase) -> str:
    place = new_database(empty=True)
    database = await PostgresDatabase.at(place)
    await fill_old(database, BEFORE_OPEN)
    await database.close()
    return place


async def test_the_schema_is_that_of_a_new_database(place: str, new_database: NewDatabase) -> None:
    old = await PostgresDatabase.at(place)
    fresh = await PostgresDatabase.at(new_database(empty=True))
    await fresh.migrate(NOW)
    assert await migrated(place) == Migrated(BEFORE_OPEN.postgresql, old.present)
    assert await old.catalogue() == await fresh.catalogue()
    await old.close()
    await fresh.close()


async def test_what_is_open_is_found_and_nothing_has_changed(place: str) -> None:
    def everything() -> list[list[tuple[object, ...]]]:
        return [by_hand(place, f"SELECT * FROM {table}") for table in KEPT]

    before = everything()
    await migrated(place)
    assert everything() == before
    assert by_hand(place, "SELECT status, count(*) FROM open_work GROUP BY 1 ORDER BY 1") == [
        ("active", 2),
        ("failed", 2),
        ("held", 2),
        ("not_completed", 1),
        ("pending", 2),
    ]
    assert "completed" not in {status for (status,) in by_hand(place, "SELECT status FROM open_flows")}
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        assert simulator.examine() == []


async def test_an_engine_goes_on_where_the_old_one_stopped(place: str) -> None:
    await migrated(place)
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        engine, network = simulator.engine, simulator.network
        network.always("http://worker.test/cancel", answered())
        [(out,)] = by_hand(place, "SELECT work_id FROM work WHERE flow_id = 'active'")
        await engine.reports.complete(out, StepResult(success=True))
        simulator.clock.advance(60_000)
        await simulator.sweep(SweepName.REQUEUE)
        again = {call.metadata["flow_id"] for call in network.waiting()}
        assert "retrying" in again
        for call in network.waiting():
            await network.answer(call, answered(200))
            await engine.reports.complete(call.metadata["work_id"], StepResult(success=True))
        await engine.flows.redrive("failed")
        for flow_id in ("active", *again):
            assert (await engine.queries.flow(flow_id))["status"] == "completed"
        assert simulator.examine() == []
