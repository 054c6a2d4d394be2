"""Databases of a time when every unknown outcome was repeated: migrated, examined, and continued by an engine.

Their flows have one step, ``charge``, each named after what became of it: ``done``, ``failed``, ``cancelled``;
``overdue``, ``unknown`` (no answer), ``busy`` (500) and ``refused`` wait for their second attempt; ``accepted`` is out;
the worker of ``beaten`` sent a heartbeat before its acknowledgement was recorded, and that of ``sending`` sent none,
when their node was killed. The item of ``held``, of the step ``asked``, waits for an approval.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.maintenance.migrating import Migrated
from counterfoil.testing.simulator import Simulator, answered, timed_out
from tests.by_hand import Place, by_hand
from tests.databases import NewDatabase
from tests.journal import ENTRIES
from tests.store.old_stores import BEFORE_EFFECTS, fill_old
from tests.store.records import DEFAULTS, NOW
from tests.store.schemas import versions
from tests.unit.migrations.test_plans import database_at, migrated, status

KEPT = (
    *("step_versions", "steps", "register", "plans", "flows", "flow_inputs", "flow_labels", "flow_steps", "work"),
    *("cancel_calls", "schedules", "step_rates", "gates", "approvals", "key_owners", "controls", "policies"),
)
RETRIED = ("overdue", "unknown", "busy", "refused")


@pytest.fixture
async def place(store_name: str, tmp_path: Path, new_database: NewDatabase) -> Place:
    """Where a database of the older version is."""
    place: Place = tmp_path / "old.db" if store_name == "sqlite" else new_database(empty=True)
    database = await database_at(place)
    await fill_old(database, BEFORE_EFFECTS)
    await database.close()
    return place


def simulator_of(place: Place) -> Simulator:
    return Simulator(place, defaults=DEFAULTS)


async def item(simulator: Simulator, flow_id: str) -> dict[str, Any]:
    flow = orjson.loads(orjson.dumps(await simulator.engine.queries.flow(flow_id)))
    [step] = flow["steps"].values()
    shown: dict[str, Any] = orjson.loads(
        orjson.dumps(await simulator.engine.queries.work_item(step["work"][-1]["work_id"]))
    )
    return shown


async def test_the_schema_is_that_of_a_new_database(place: Place, tmp_path: Path, new_database: NewDatabase) -> None:
    old = await database_at(place)
    fresh = await database_at(tmp_path / "fresh.db" if isinstance(place, Path) else new_database(empty=True))
    await fresh.migrate(NOW)
    assert await migrated(place) == Migrated(5, old.present)
    assert await old.catalogue() == await fresh.catalogue()
    assert await versions(old) == [(5, NOW - 1), *((number, NOW) for number in range(6, old.present + 1))]
    await old.close()
    await fresh.close()


async def test_nothing_that_was_there_has_changed(place: Place) -> None:
    def everything() -> list[list[tuple[object, ...]]]:
        return [by_hand(place, ENTRIES), *(by_hand(place, f"SELECT * FROM {table}") for table in KEPT)]

    before = everything()
    await migrated(place)
    assert everything() == before
    async with simulator_of(place) as simulator:
        assert simulator.examine() == []
        assert (await simulator.engine.effect_queries.reconciliations())["reconciliations"] == []


async def test_an_engine_goes_on_where_the_old_one_stopped(place: Place) -> None:
    await migrated(place)
    async with simulator_of(place) as simulator:
        engine, network = simulator.engine, simulator.network
        keys = {flow_id: (await item(simulator, flow_id))["idempotency_key"] for flow_id in (*RETRIED, "sending")}
        await engine.reports.complete((await item(simulator, "accepted"))["work_id"], StepResult(success=True))
        simulator.clock.advance(62_000)
        await simulator.sweep(SweepName.ORPHANS)
        simulator.clock.advance(1_000)
        await simulator.sweep(SweepName.REQUEUE)
        sent = {call.metadata["flow_id"]: call for call in network.waiting()}
        assert sent.keys() == {*RETRIED, "sending", "beaten"}, "then a heartbeat was no acknowledgement"
        for flow_id, key in keys.items():
            assert (sent[flow_id].headers["Idempotency-Key"], sent[flow_id].attempt) == (key, 2), (
                "the key stays the same"
            )
        for flow_id, call in sent.items():
            await network.answer(call, answered())
            await engine.reports.complete(call.metadata["work_id"], StepResult(success=True))
            assert await status(simulator, flow_id) == "completed"
        assert simulator.examine() == []


async def test_attempts_of_then_are_shown(place: Place) -> None:
    await migrated(place)
    async with simulator_of(place) as simulator:
        shown = {flow_id: (await item(simulator, flow_id))["attempts"][0] for flow_id in (*RETRIED, "done")}
        deliveries = {flow_id: attempt["delivery"] for flow_id, attempt in shown.items()}
        assert deliveries == {
            "overdue": "unknown",  # as the journal of then has it
            "unknown": "unknown",
            "busy": "delivered",
            "refused": "not_delivered",
            "done": "delivered",
        }


async def test_effect_policies_hold_for_what_is_begun_now(place: Place) -> None:
    await migrated(place)
    async with simulator_of(place) as simulator:
        engine = simulator.engine
        definition = StepDefinition.model_validate(
            {"endpoint": "http://worker.test/charge", "effect": {"policy": "reconcile", "scope": "global"}}
        )
        await engine.steps.put("charge", definition)
        for flow_id in ("new", "equal"):
            await engine.flows.start(StartFlow(flow_id=flow_id, goals=["charge"], init={"order": 7}))
        [call] = simulator.network.waiting()
        await simulator.network.answer(call, timed_out())
        [entry] = (await engine.effect_queries.reconciliations())["reconciliations"]
        assert (entry["flow_id"], entry["cause"]) == ("new", "ack_timeout")
        await engine.reconciliations.settle(str(entry["work_id"]), Settlement(outcome="applied"), "ann")
        await simulator.sweep(SweepName.DEDUP)
        assert [await status(simulator, flow_id) for flow_id in ("new", "equal")] == ["completed"] * 2
        assert (await item(simulator, "overdue"))["hold"] is None, "flows keep the version that they were started with"
        assert simulator.examine() == []
