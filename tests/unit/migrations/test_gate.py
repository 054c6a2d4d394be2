"""Databases of a time when there was no gate: migrated, examined, continued by an engine, and guarded from then on.

Their flows, each named after what became of it: ``done``; ``half`` is fanned out, with the second of three items out;
``undoing`` failed, and the first try to undo it did, too; ``failed``; ``out`` is out, and ``queued`` waits behind it;
``waiting`` waits for its second attempt; ``outer`` is a flow around ``w16``; the worker of ``cancelled`` is to be told.
There is a schedule, ``nightly``.
"""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, GateRequest
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.maintenance.migrating import Migrated
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place, by_hand
from tests.databases import NewDatabase
from tests.journal import ENTRIES
from tests.store.old_stores import BEFORE_GATE, fill_old
from tests.store.records import NOW
from tests.store.schemas import versions
from tests.unit.migrations.test_plans import complete, database_at, migrated, status

KEPT = (
    *("step_versions", "steps", "register", "plans", "flows", "flow_inputs", "flow_labels", "flow_steps", "work"),
    *("cancel_calls", "schedules", "step_rates"),
)
BLOCK = PolicyDefinition.model_validate({"name": "no", "action": {"type": "block", "reason": "not any more"}})


@pytest.fixture
async def place(store_name: str, tmp_path: Path, new_database: NewDatabase) -> Place:
    """Where a database of the older version is."""
    place: Place = tmp_path / "old.db" if store_name == "sqlite" else new_database(empty=True)
    database = await database_at(place)
    await fill_old(database, BEFORE_GATE)
    await database.close()
    return place


async def test_the_schema_is_that_of_a_new_database(place: Place, tmp_path: Path, new_database: NewDatabase) -> None:
    old = await database_at(place)
    fresh = await database_at(tmp_path / "fresh.db" if isinstance(place, Path) else new_database(empty=True))
    await fresh.migrate(NOW)
    found = BEFORE_GATE.sqlite if isinstance(place, Path) else BEFORE_GATE.postgresql
    assert await migrated(place) == Migrated(found, old.present)
    assert await old.catalogue() == await fresh.catalogue()
    assert await versions(old) == [(found, NOW - 1), *((number, NOW) for number in range(found + 1, old.present + 1))]
    assert await old.fetch("SELECT only_one, revision FROM controls") == [(1, 0)]
    await old.close()
    await fresh.close()


async def test_nothing_that_was_there_has_changed(place: Place) -> None:
    def everything() -> list[list[tuple[object, ...]]]:
        return [by_hand(place, ENTRIES), *(by_hand(place, f"SELECT * FROM {table}") for table in KEPT)]

    before = everything()
    await migrated(place)
    assert everything() == before
    async with Simulator(place) as simulator:
        assert simulator.examine() == []


async def test_an_engine_goes_on_where_the_old_one_stopped(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        simulator.clock.advance(10_000)
        network, sent = simulator.network, set[tuple[str, int]]()
        network.always("http://worker.test/cancel", answered())
        await complete(simulator, "w13")
        await simulator.sweep(SweepName.REQUEUE)
        for call in network.waiting():
            sent.add((call.metadata["flow_id"], call.attempt))
            await network.answer(call, answered(200))
        assert sent == {("undoing", 2), ("queued", 1), ("waiting", 2)}
        for work_id in ("w14", "w15", "w17"):
            await complete(simulator, work_id)
        flows = ("undoing", "out", "queued", "waiting", "outer", "w16")
        assert [await status(simulator, flow_id) for flow_id in flows] == ["failed", *["completed"] * 5]
        await complete(simulator, "w7", prices=2)
        [call] = network.waiting()
        assert (call.metadata["work_id"], call.body["arguments"]) == ("w8", {"lines": "c"})
        await complete(simulator, "w8", prices=3)
        [call] = [each for each in network.waiting() if each.metadata["step_id"] == "total"]
        await complete(simulator, call.metadata["work_id"], sum=6)
        assert (await simulator.engine.queries.flow("half"))["outputs"]["sum"] == 6
        assert await simulator.sweep(SweepName.CANCEL_CALLS) == 1
        simulator.clock.advance(3_600_000)
        assert await simulator.sweep(SweepName.SCHEDULES) == 1
        assert simulator.examine() == []


async def test_what_failed_then_can_be_redriven_now(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        [again] = (await simulator.engine.flows.redrive("failed"))["work"]
        left = {"w13", "w14", again}
        while left:  # one after the other, in any order: the step's parallelism is 1
            [active] = [each for each in left if (await simulator.engine.queries.work_item(each))["status"] == "active"]
            await complete(simulator, active)
            left.remove(active)
            await simulator.sweep(SweepName.REQUEUE)
        assert await status(simulator, "failed") == "completed"
        assert simulator.examine() == []


async def test_policies_guard_what_was_begun_before_there_were_any(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        await simulator.engine.policies.put("no", BLOCK, "ada")
        simulator.clock.advance(10_000)
        await simulator.sweep(SweepName.REQUEUE)
        assert {call.metadata["flow_id"] for call in simulator.network.waiting()} == {"undoing"}
        flow = json.loads(orjson.dumps(await simulator.engine.queries.flow("waiting")))
        assert (flow["status"], flow["error"]["code"]) == ("failed", "POLICY_BLOCKED")
        await complete(simulator, "w13")
        assert await status(simulator, "out") == "completed", "what is out was let out"
        assert simulator.examine() == []


async def test_people_and_agents_are_served(place: Place) -> None:
    await migrated(place)
    async with Simulator(place) as simulator:
        workflows = simulator.engine.workflows
        made, _ = await workflows.create(CreateWorkflow(workflow_name="w", idempotency_key="k"), "ada")
        call = GateCall(made["workflow_id"], "pay", GateRequest(idempotency_key="k"), "ada")
        assert (await workflows.gate(call))["decision"] == "allow"
        await workflows.complete_step(made["workflow_id"], "pay", CompleteStep(output={"n": 1}, idempotency_key="k"))
        assert (await workflows.gate(call))["retry_context"]["completion_count"] == 1
        await simulator.engine.flows.start(StartFlow(flow_id="new", goals=["single"]))
        await simulator.sweep(SweepName.REQUEUE)
        [sent] = simulator.network.waiting()
        await simulator.engine.reports.complete(sent.metadata["work_id"], StepResult(success=True, outputs={}))
        assert await status(simulator, "new") == "completed"
        assert simulator.examine() == []
