"""Databases of a time without hooks, run keys and reservations: migrated, examined, and continued by an engine.

Each flow has one step, and is named after what became of it. Of the step ``resize``: ``done``, ``failed``,
``cancelled``; ``out`` is with its worker, ``retrying`` waits for its second attempt, and the node of ``sending`` was
killed while it sent. Of ``limited``, one item at a time: ``limited`` is out and ``queued`` waits for it.

Of ``charge`` (``reconcile``, global scope): ``unknown`` waits for reconciliation and ``unknown_too`` for its result;
``applied`` was settled, ``applied_too`` took its result; ``gone`` was cancelled while it waited. ``shipping``, of the
step ``ship``, waits for its ``status_url``. Of ``wire`` (``unsafe_once``): ``asked`` waits for an approval,
``unsafe`` was sent and its outcome is unknown.

Of ``mail`` (``dedupe``, global scope): ``owner`` is out, ``waits`` and ``waits_too`` wait for its result; ``recorded``
succeeded and ``hit`` took its result; ``declined`` failed and ``declined_too`` took that. There is a workflow with a
claimed step as well, a policy, a schedule, a subscription with deliveries, and a cancel call that is due.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.maintenance.migrating import Migrated
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place, by_hand
from tests.databases import NewDatabase
from tests.journal import ENTRIES
from tests.store.old_stores import BEFORE_HOOKS, fill_old, old_rows
from tests.store.records import DEFAULTS, NOW
from tests.store.schemas import versions
from tests.unit.migrations.test_plans import database_at, migrated, status

MINUTE = 60_000


@pytest.fixture
async def place(store_name: str, tmp_path: Path, new_database: NewDatabase) -> Place:
    """Where a database of the older version is."""
    place: Place = tmp_path / "old.db" if store_name == "sqlite" else new_database(empty=True)
    database = await database_at(place)
    await fill_old(database, BEFORE_HOOKS)
    await database.close()
    return place


def simulator_of(place: Place) -> Simulator:
    simulator = Simulator(place, defaults=DEFAULTS)
    simulator.clock.advance(MINUTE)
    return simulator


async def items(simulator: Simulator, flow_id: str) -> list[dict[str, Any]]:
    flow = orjson.loads(orjson.dumps(await simulator.engine.queries.flow(flow_id)))
    return [item for step in flow["steps"].values() for item in step["work"]]


async def work_id(simulator: Simulator, flow_id: str) -> str:
    return str((await items(simulator, flow_id))[-1]["work_id"])


async def test_the_schema_is_that_of_a_new_database(place: Place, tmp_path: Path, new_database: NewDatabase) -> None:
    old = await database_at(place)
    fresh = await database_at(tmp_path / "fresh.db" if isinstance(place, Path) else new_database(empty=True))
    await fresh.migrate(NOW)
    assert await migrated(place) == Migrated(6, old.present)
    assert await old.catalogue() == await fresh.catalogue()
    assert await versions(old) == [(6, NOW - 1), *((number, NOW) for number in range(7, old.present + 1))]
    await old.close()
    await fresh.close()


async def test_nothing_that_was_there_has_changed(place: Place) -> None:
    """Columns may have been added, so those of then are compared."""
    tables = {table: ", ".join(columns) for table, (columns, _) in old_rows(BEFORE_HOOKS, numbered=False).items()}

    def everything() -> list[list[tuple[object, ...]]]:
        return [
            by_hand(place, ENTRIES),
            *(by_hand(place, f"SELECT {columns} FROM {table} ORDER BY 1, 2") for table, columns in tables.items()),
        ]

    before = everything()
    await migrated(place)
    assert everything() == before
    async with simulator_of(place) as simulator:
        assert simulator.examine() == []


async def test_the_queue_is_as_it_was(place: Place) -> None:
    await migrated(place)
    async with simulator_of(place) as simulator:
        queue = (await simulator.engine.effect_queries.reconciliations())["reconciliations"]
        waiting = {entry["flow_id"]: (entry["hold"], entry["status"]) for entry in queue}
        assert waiting == {
            "unknown": ("reconcile", "not_completed"),
            "gone": ("reconcile", "cancelled"),
            "shipping": ("reconcile", "not_completed"),
            "unsafe": ("unsafe_once", "not_completed"),
        }
        assert [item["hold"] for item in await items(simulator, "waits")] == ["dedup"]


async def test_an_engine_goes_on_where_the_old_one_stopped(place: Place) -> None:
    await migrated(place)
    async with simulator_of(place) as simulator:
        engine, network = simulator.engine, simulator.network
        await engine.reports.complete(await work_id(simulator, "out"), StepResult(success=True))
        await engine.reports.complete(await work_id(simulator, "limited"), StepResult(success=True))
        await simulator.sweep(SweepName.ORPHANS)
        simulator.clock.advance(MINUTE)
        await simulator.sweep(SweepName.REQUEUE)
        sent = {call.metadata["flow_id"]: call for call in network.waiting()}
        assert sent.keys() == {"retrying", "sending", "queued"}
        for flow_id, call in sent.items():
            await network.answer(call, answered())
            await engine.reports.complete(call.metadata["work_id"], StepResult(success=True))
            assert await status(simulator, flow_id) == "completed"
        assert simulator.examine() == []


async def test_waiting_items_take_the_results_that_come_now(place: Place) -> None:
    await migrated(place)
    async with simulator_of(place) as simulator:
        engine = simulator.engine
        owner = await work_id(simulator, "owner")
        await engine.reports.complete(owner, StepResult(success=True, outputs={"sent": 1}))
        unknown = await work_id(simulator, "unknown")
        await engine.reconciliations.settle(unknown, Settlement(outcome="applied", outputs={"id": 7}), "ann")
        while await simulator.sweep(SweepName.DEDUP):
            pass
        for flow_id, owned_by in (("waits", owner), ("waits_too", owner), ("unknown_too", unknown)):
            assert await status(simulator, flow_id) == "completed"
            taken = await engine.queries.work_item(await work_id(simulator, flow_id))
            assert taken["dedup_of"] == owned_by
        assert simulator.examine() == []
