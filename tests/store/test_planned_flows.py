"""What planned flows add to a store: plans, the register with its revision, steps by key, clocks, failures."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import Any

import asyncpg
import pytest

from counterfoil.domain.flows.planning import Plan, make_plan
from counterfoil.domain.records import Flow, FlowInputs, StepRun, StepVersion, Work
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps.register import Register
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.kinds.definitions import PLANS
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Row, Store
from counterfoil.store.queries import load_queries
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import NotLoaded, ReadSet, step_key
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.backends import QUERY_PACKAGES, Raw, batch_of, find, load, write
from tests.store.records import (
    NOW,
    changed_records,
    flow_inputs,
    flow_record,
    new_records,
    step_run,
    step_version,
    work_item,
)
from tests.store.test_records import AWKWARD, FULL_STEP

# Steps in flows ------------------------------------------------------------------------------------------------------


def completed(flow_id: str = "flow", step_id: str = "done", outputs: dict[str, Any] | None = None) -> StepRun:
    return step_run(StepStatus.COMPLETED, flow_id=flow_id, step_id=step_id, outputs=outputs, open_items=0)


def without_outputs(step: StepRun) -> StepRun:
    """As it is loaded: what it gave lies beside it."""
    step = step.draft()
    step.outputs = None
    return step


async def test_steps_are_loaded_by_key_each_with_what_it_gave(store: Store) -> None:
    done = completed(outputs=AWKWARD)
    others = [completed("other", "done", {"of": "another"}), completed("flow", "not asked for", {"a": 1})]
    await write(store, new_records(flow_record(), flow_record(flow_id="other"), done, FULL_STEP, *others))
    unit = await load(store, ReadSet(flow_steps={step_key("flow", "done"), step_key("flow", "step")}))
    assert unit.step_run("flow", "done") == without_outputs(done)
    assert unit.outputs("flow", "done") == AWKWARD
    assert (unit.step_run("flow", "step"), unit.outputs("flow", "step")) == (FULL_STEP, {})
    for flow_id, step_id in (("other", "done"), ("flow", "not asked for"), ("flow", "missing")):
        with pytest.raises(NotLoaded):
            unit.step_run(flow_id, step_id)


async def test_all_steps_of_a_flow_are_loaded_whatever_became_of_them(store: Store) -> None:
    steps = [step_run(status, step_id=str(status)) for status in StepStatus]
    steps[0].outputs = AWKWARD
    await write(store, new_records(flow_record(), *steps, step_run(flow_id="other")))
    unit = await load(store, ReadSet(whole_flows={"flow"}))
    assert sorted(unit.steps_of("flow"), key=lambda step: step.step_id) == sorted(
        map(without_outputs, steps), key=lambda step: step.step_id
    )
    assert unit.outputs("flow", steps[0].step_id) == AWKWARD
    assert unit.flow("flow") == flow_record(), "a whole flow comes with its own record"
    with pytest.raises(NotLoaded):
        unit.open_work("flow")


async def test_what_a_step_gave_is_written_with_its_end_and_taken_away_by_redrive(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run()))
    needs = ReadSet(flow_steps={step_key("flow", "step")})
    for changed in (
        step_run(StepStatus.COMPLETED, open_items=0, finished_at=NOW, outputs=AWKWARD),
        step_run(StepStatus.PENDING, items=0, open_items=0, started_at=None, redrives=1),
    ):
        await write(store, changed_records(changed))
        unit = await load(store, needs)
        assert unit.step_run("flow", "step") == without_outputs(changed)
        assert unit.outputs("flow", "step") == (changed.outputs or {})


async def test_a_flow_keeps_its_plan_and_its_parent_whatever_changes(store: Store) -> None:
    parent = {"flow_id": "outer", "step_id": "s", "work_id": "flow", "depth": 1}
    await write(store, new_records(flow_record(plan="plan", parent=parent, deadline_at=NOW)))
    undoing = {"ending": "failed", "steps": [{"step_id": "a", "status": "pending", "open": 0, "failed": 0}]}
    changed = flow_record(
        FlowStatus.COMPENSATING, plan="plan", parent=parent, deadline_at=None, compensation=undoing, error=AWKWARD
    )
    await write(store, changed_records(changed))
    assert (await load(store, ReadSet(flows={"flow"}))).flow("flow") == changed


async def test_all_items_of_a_step_are_loaded_the_oldest_first(store: Store) -> None:
    def item(work_id: str, status: WorkStatus, created_at: int, **fields: Any) -> Work:
        return work_item(status, work_id=work_id, created_at=created_at, **fields)

    items = [
        item("w1", WorkStatus.FAILED, NOW, item=1),
        item("w0", WorkStatus.SUCCEEDED, NOW, item=0),
        item("w3", WorkStatus.ACTIVE, NOW + 1, item=1, redrive_of="w1", arguments=AWKWARD),
        item("w2", WorkStatus.CANCELLED, NOW + 2, item=0, undoes="w0"),
    ]
    others = [item("x", WorkStatus.ACTIVE, NOW, step_id="other"), item("y", WorkStatus.ACTIVE, NOW, flow_id="other")]
    steps = [step_run(), step_run(step_id="other"), step_run(flow_id="other")]
    await write(store, new_records(flow_record(), flow_record(flow_id="other"), *steps, *items, *others))
    unit = await load(store, ReadSet(step_work={step_key("flow", "step"), step_key("flow", "empty")}))
    assert unit.work_of_step("flow", "step") == [items[1], items[0], items[2], items[3]]
    assert unit.work_of_step("flow", "empty") == []
    assert (unit.flow("flow"), unit.step_run("flow", "step")) == (flow_record(), step_run())
    with pytest.raises(NotLoaded):
        unit.work_of_step("flow", "other")


async def test_items_that_are_not_released_are_found_in_their_order(store: Store) -> None:
    def item(number: int, **fields: Any) -> Work:
        known: dict[str, Any] = {"work_id": f"w{9 - number}", "item": number, "due_at": None}
        return work_item(WorkStatus.PENDING, **{**known, **fields})

    waiting = [item(number) for number in (5, 3, 4, 1)]
    ended = work_item(WorkStatus.CANCELLED, work_id="ended", item=3)
    others = [item(3, work_id="other step", step_id="other"), item(3, work_id="other flow", flow_id="other")]
    await write(store, new_records(*waiting, item(2, due_at=NOW), ended, *others))
    asked: dict[str, Any] = {"flow_id": "flow", "step_id": "step"}
    assert await find(store, "find_waiting_items", **asked, first=2, end=5) == [("w6",), ("w5",)]
    assert await find(store, "find_waiting_items", **asked, first=0, end=99) == [("w8",), ("w6",), ("w5",), ("w4",)]
    assert await find(store, "find_waiting_items", **asked, first=6, end=99) == []


# Plans and the register ----------------------------------------------------------------------------------------------


def plan_of(*step_ids: str, given: tuple[str, ...] = ()) -> Plan:
    versions = [step_version(step_id, wait_for=None, labels={"of": step_id}) for step_id in step_ids]
    return make_plan(Register(1, versions), step_ids, given)


async def test_a_plan_comes_back_as_it_was(store: Store) -> None:
    gives = step_version("gives", attributes={"räuber": {"role": "output"}}, compensate={"endpoint": "http://w/undo"})
    also = step_version("also", attributes={"räuber": {"role": "output"}, "z": {"role": "output"}})
    takes = {"räuber": {"role": "required"}, "z": {"role": "optional", "timeout_ms": 5}, "c": {"role": "optional"}}
    last = step_version("takes", attributes=takes, wait_for={"any": 1, "of": ["also", "gives"]})
    plan = make_plan(Register(1, [gives, also, last]), ["takes"], ["c"])
    assert all(plan.stored()[name] for name in ("requires", "options", "rivals", "waits", "compensated"))
    await write(store, Changes(plans={plan.plan_id: plan}, calls={"none": None}))
    unit = await load(store, ReadSet(plans={plan.plan_id, "missing"}))
    found = unit.plan_of(flow_record(plan=plan.plan_id))
    assert (found, found.plan_id) == (plan, plan.plan_id)
    with pytest.raises(NotLoaded):
        unit.plan_of(flow_record(plan="missing"))


async def test_a_plan_may_be_stored_twice(store: Store) -> None:
    one, two = plan_of("a"), plan_of("b")
    for number, plans in enumerate(([one], [one, two], [two])):
        changes = new_records(flow_record(flow_id=f"flow-{number}"))
        changes.of(PLANS).update({plan.plan_id: plan for plan in plans})
        await write(store, changes)
    unit = await load(store, ReadSet(plans={one.plan_id, two.plan_id}))
    assert [unit.plan_of(flow_record(plan=plan.plan_id)) for plan in (one, two)] == [one, two]


def put(*versions: StepVersion, removed: tuple[str, ...] = ()) -> Changes:
    current: dict[str, str | None] = {version.step_id: version.version for version in versions}
    current.update(dict.fromkeys(removed))
    return Changes(current=current, versions={version.version: version for version in versions}, at=NOW)


async def register(store: Store, known: DefinitionCache) -> Register:
    """The register as a batch of a node sees it that knows so much."""
    batch = batch_of(Raw(ReadSet(registers={str(known.register.revision)})))
    batch.unit = UnitOfWork(known)
    await store.execute(batch)
    return batch.unit.register()


async def test_the_register_of_an_empty_store_is_empty(store: Store) -> None:
    found = await register(store, DefinitionCache())
    assert (found.revision, found.steps) == (0, {})


async def test_the_register_has_every_current_step_and_its_revision_rises_with_each_change(store: Store) -> None:
    a, b, other = step_version("a"), step_version("b", labels={"k": "v"}), step_version("a", name="other")
    known = DefinitionCache()
    revisions = []
    for changes, expected in (
        (put(a, b), {"a": a, "b": b}),
        (put(other), {"a": other, "b": b}),
        (put(removed=("b", "never there")), {"a": other}),
        (put(other), {"a": other}),
    ):
        await write(store, changes)
        found = await register(store, known)
        assert found.steps == expected
        assert known.register is found, "it is known from now on"
        revisions.append(found.revision)
    assert revisions == sorted(set(revisions))
    assert revisions[0] > 0


async def test_a_register_that_is_known_is_not_read_again(store: Store) -> None:
    await write(store, put(step_version("a"), step_version("b")))
    known = DefinitionCache()
    first = await register(store, known)
    assert await register(store, known) is first
    assert await register_rows(store, first.revision) == [(first.revision, None, None)], "one row, with nothing in it"
    for other in (-1, first.revision - 1, first.revision + 1):
        assert await register_rows(store, other) == [
            (first.revision, step_id, version.version) for step_id, version in sorted(first.steps.items())
        ]


async def register_rows(store: Store, known: int) -> list[Row]:
    """The rows that ``load_register`` gives, without the definitions, by the query itself."""
    if isinstance(store, SqliteStore):
        text = load_queries(QUERY_PACKAGES["sqlite"])["load_register"]
        with contextlib.closing(sqlite3.connect(store.path)) as file:
            rows = json.loads(file.execute(text, (json.dumps([str(known)]),)).fetchone()[0])
    else:
        assert isinstance(store, PostgresStore)
        connection = await asyncpg.connect(store.access.dsn)
        rows = await connection.fetch(load_queries(QUERY_PACKAGES["postgresql"])["load_register"], [known])
        await connection.close()
    return sorted((tuple(row[:3]) for row in map(tuple, rows)), key=str)


async def test_what_changes_nothing_of_the_register_leaves_its_revision(store: Store) -> None:
    await write(store, put(step_version("a")))
    before = await register(store, DefinitionCache())
    await write(store, new_records(flow_record(), step_run(), work_item()))
    assert (await register(store, DefinitionCache())).revision == before.revision


# Clocks of flows -----------------------------------------------------------------------------------------------------


async def test_flows_whose_deadline_has_passed_or_whose_step_waits_no_longer_are_found_once(store: Store) -> None:
    flows = [flow_record(flow_id=name, deadline_at=at) for name, at in (("a", NOW), ("b", NOW + 1), ("c", None))]
    steps = [
        step_run(StepStatus.PENDING, flow_id=flow_id, step_id=step_id, due_at=at)
        for flow_id, step_id, at in (("a", "x", NOW), ("b", "x", NOW + 5), ("c", "x", NOW + 1), ("c", "y", NOW + 1))
    ]
    await write(store, new_records(*flows, *steps, step_run(flow_id="b", step_id="z")))

    async def due(now: int, limit: int = 9) -> list[str]:
        return sorted(row[0] for row in await find(store, "find_due_flows", now=now, limit=limit))

    assert await due(NOW - 1) == []
    assert await due(NOW) == ["a"]
    assert await due(NOW + 1) == ["a", "b", "c"]
    assert len(await due(NOW + 1, limit=2)) == 2


async def test_the_next_clock_of_a_flow(store: Store) -> None:
    async def next_clock() -> int | None:
        at: int | None = (await store.read("next_flow_clock"))[0][0]
        return at

    assert await next_clock() is None
    await write(store, new_records(flow_record(flow_id="other"), step_run(flow_id="other")))
    assert await next_clock() is None
    await write(store, new_records(flow_record(deadline_at=NOW + 7)))
    assert await next_clock() == NOW + 7
    await write(store, new_records(step_run(StepStatus.PENDING, due_at=NOW + 3)))
    assert await next_clock() == NOW + 3
    await write(store, changed_records(step_run(StepStatus.ACTIVE)))
    assert await next_clock() == NOW + 7
    await write(store, changed_records(flow_record(FlowStatus.CANCELLED)))
    assert await next_clock() is None


# What has failed -----------------------------------------------------------------------------------------------------

FAILURE_FILTERS: dict[str, Any] = {
    "step_id": None,
    "error_code": None,
    "since": None,
    "until": None,
    "label": None,
    "limit": 100,
}
NASTY = AWKWARD["text"]
"""Workers say what they like."""


def failure(
    flow_id: str,
    at: int,
    error: dict[str, Any],
    *,
    step_id: str = "step",
    flow: FlowStatus = FlowStatus.FAILED,
    step: StepStatus = StepStatus.FAILED,
    **fields: Any,
) -> list[Flow | StepRun | Work | FlowInputs]:
    """A flow with a failed item, recorded at some moment."""
    known: dict[str, Any] = {"work_id": f"work-of-{flow_id}", "flow_id": flow_id, "step_id": step_id}
    return [
        flow_record(flow, flow_id=flow_id),
        flow_inputs(flow_id, labels={"team": flow_id}),
        step_run(step, flow_id=flow_id, step_id=step_id, open_items=0),
        work_item(WorkStatus.FAILED, recorded_at=at, error=error, **{**known, **fields}),
    ]


async def failed(store: Store, **filters: Any) -> list[str]:
    return [row[1] for row in await store.read("find_failed_work", **{**FAILURE_FILTERS, **filters})]


@pytest.fixture
async def with_failures(store: Store) -> Store:
    """Failed work of the flows c, a, b, d, in the order of their failure; and work that is not to be redriven."""
    exhausted = {"code": "RETRIES_EXHAUSTED", "message": NASTY, "cause": {"code": "TIMEOUT", "message": NASTY}}
    records = [
        *failure("a", NOW + 2, {"code": "STEP_FAILED", "message": NASTY}),
        *failure("b", NOW + 3, exhausted, step_id="other"),
        *failure("c", NOW + 1, {"code": "STEP_FAILED", "cause": None}, flow=FlowStatus.ACTIVE),
        *failure("d", NOW + 4, {"code": "TIMEOUT"}, step_id="other"),
        *failure("is cancelled", NOW, {"code": "STEP_FAILED"}, flow=FlowStatus.CANCELLED),
        *failure("is collected", NOW, {"code": "STEP_FAILED"}, step=StepStatus.COMPLETED, flow=FlowStatus.ACTIVE),
        *failure("is undoing", NOW, {"code": "STEP_FAILED"}, undoes="another"),
        *failure("was redriven", NOW, {"code": "STEP_FAILED"}),
        *failure("has succeeded", NOW, {"code": "STEP_FAILED"}, work_id="not-counted"),
    ]
    again = work_item(WorkStatus.ACTIVE, work_id="again", flow_id="was redriven", redrive_of="work-of-was redriven")
    records = [record for record in records if not (isinstance(record, Work) and record.work_id == "not-counted")]
    succeeded = work_item(WorkStatus.SUCCEEDED, work_id="not-counted", flow_id="has succeeded")
    await write(store, new_records(*records, again, succeeded))
    return store


async def test_failed_work_is_found_with_its_flow_and_step_the_longest_ago_first(with_failures: Store) -> None:
    assert await with_failures.read("find_failed_work", **FAILURE_FILTERS) == [
        ("work-of-c", "c", "step"),
        ("work-of-a", "a", "step"),
        ("work-of-b", "b", "other"),
        ("work-of-d", "d", "other"),
    ]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"step_id": "step"}, ["c", "a"]),
        ({"step_id": "nothing"}, []),
        ({"error_code": "STEP_FAILED"}, ["c", "a"]),
        ({"error_code": "RETRIES_EXHAUSTED"}, ["b"]),
        ({"error_code": "TIMEOUT"}, ["b", "d"]),
        ({"error_code": "OTHER"}, []),
        ({"since": NOW + 3}, ["b", "d"]),
        ({"until": NOW + 3}, ["c", "a"]),
        ({"since": NOW + 2, "until": NOW + 4}, ["a", "b"]),
        ({"label": "team:a"}, ["a"]),
        ({"label": "team:z"}, []),
        ({"limit": 2}, ["c", "a"]),
        ({"step_id": "other", "error_code": "TIMEOUT", "since": NOW + 4, "until": NOW + 5, "label": "team:d"}, ["d"]),
        ({"step_id": "step", "error_code": "TIMEOUT"}, []),
    ],
)
async def test_failed_work_by_filter(with_failures: Store, filters: dict[str, Any], expected: list[str]) -> None:
    assert await failed(with_failures, **filters) == expected
