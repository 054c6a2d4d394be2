"""What is written is what is loaded: every record with every field, and the absence of what is not there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from counterfoil.domain.errors import UnknownFlow, UnknownWork
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.records import CancelCall, StepRun
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.read_set import NotLoaded, ReadSet
from tests.store.backends import find, load, write
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

AWKWARD: dict[str, Any] = {
    "integer": 12345678901234567890123,
    "float": 0.1 + 0.2,
    "exact": 1.0,
    "text": "\x00 \u2028 \U0001f600 \" \\ '; DROP TABLE work; --",
    "nested": [{"a": [None, True, {}]}, []],
    "": "the empty name",
}


FULL_STEP = step_run(
    items=4,
    open_items=2,
    failed_items=1,
    goal=False,
    finished_at=NOW + 7,
    error=AWKWARD,
    ready_at=NOW + 8,
    due_at=NOW + 9,
    released=3,
    waiting_items=1,
    redrives=2,
)
"""A step with everything that comes with its counters."""
FULL_FLOW = flow_record(
    open_steps=3,
    error=AWKWARD,
    finished_at=NOW + 10,
    plan="plan",
    parent={"flow_id": "outer", "step_id": "s", "work_id": "flow", "depth": 2},
    deadline_at=NOW + 11,
    compensation={"ending": "failed", "steps": [{"step_id": "s", "status": "active", "open": 1, "failed": 0}]},
    redrives=4,
)


def test_nothing_is_left_out_of_what_is_tried_here() -> None:
    """A new field without a value here would come back as it was though no store kept it."""
    for full, plain in ((FULL_STEP, StepRun("", "", "", StepStatus.PENDING, goal=True)), (FULL_FLOW, flow_record())):
        unset = {item.name for item in fields(plain) if getattr(full, item.name) == item.default}
        assert unset <= {"outputs"}, "what a step gave is asked for apart"


async def test_a_work_item_comes_back_as_it_was(store: Store) -> None:
    work = work_item(
        WorkStatus.NOT_COMPLETED,
        item=3,
        attempt=7,
        due_at=NOW + 1,
        deadline_at=NOW + 2,
        owner="node",
        first_sent_at=NOW + 3,
        sent_at=NOW + 4,
        acknowledged_at=NOW + 5,
        progress=0.1 + 0.2,
        message=AWKWARD["text"].replace("\x00", ""),  # no JSON: what comes over the wire may not have NUL in it
        hold="approval",
        result={"success": False, "outputs": AWKWARD, "error": None},
        error=AWKWARD,
        recorded_at=NOW + 6,
        arguments=AWKWARD,
        redrive_of="before",
        undoes="another",
    )
    step, flow = FULL_STEP, FULL_FLOW
    await write(store, new_records(flow, step, work))
    unit = await load(store, ReadSet(work={"work"}))
    assert unit.work("work") == work
    assert unit.step_run("flow", "step") == step, "a work item comes with its step"
    assert unit.flow("flow") == flow, "and with its flow"


async def test_a_changed_work_item_comes_back_changed(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    changed = work_item(
        WorkStatus.SUCCEEDED, attempt=2, due_at=None, progress=1.0, result={"success": True, "outputs": AWKWARD}
    )
    step = step_run(StepStatus.COMPLETED, open_items=0, finished_at=NOW, error=AWKWARD)
    flow = flow_record(FlowStatus.COMPLETED, open_steps=0, finished_at=NOW)
    await write(store, changed_records(flow, step, changed))
    unit = await load(store, ReadSet(work={"work"}))
    assert (unit.work("work"), unit.step_run("flow", "step"), unit.flow("flow")) == (changed, step, flow)


async def test_what_is_not_there_is_known_not_to_be(store: Store) -> None:
    unit = await load(store, ReadSet(work={"w"}, flows={"f"}, steps={"s"}, calls={"c"}, open_flows={"o"}))
    assert unit.find_work("w") is None
    assert unit.find_flow("f") is None
    assert unit.find_flow("o") is None
    assert unit.current_version("s") is None
    assert unit.call("c") is None
    assert unit.open_work("o") == []
    with pytest.raises(UnknownWork):
        unit.work("w")
    with pytest.raises(UnknownFlow):
        unit.flow("f")


async def test_what_was_not_asked_for_is_not_loaded(store: Store) -> None:
    await write(store, new_records(flow_record(), step_run(), work_item()))
    unit = await load(store, ReadSet(flows={"flow"}))
    for look in (
        lambda: unit.find_work("work"),
        lambda: unit.open_work("flow"),
        lambda: unit.open_steps("flow"),
        lambda: unit.step_run("flow", "step"),
        lambda: unit.steps_of("flow"),
        lambda: unit.work_of_step("flow", "step"),
        unit.register,
        lambda: unit.version("version"),
        lambda: unit.current_version("step"),
        lambda: unit.call("work"),
        lambda: unit.active_count("step"),
        lambda: unit.find_flow("another"),
    ):
        with pytest.raises(NotLoaded):
            look()


async def test_all_that_is_open_of_a_flow(store: Store) -> None:
    states = [*WorkStatus]
    items = [work_item(status, work_id=f"work-{status}", step_id=f"step-{status}") for status in states]
    steps = [step_run(step_id=f"step-{status}") for status in states]
    steps += [step_run(status, step_id=str(status)) for status in StepStatus]
    await write(store, new_records(flow_record(), *steps, *items))
    await write(store, new_records(flow_record(flow_id="other"), step_run(flow_id="other"), work_item(flow_id="other")))
    unit = await load(store, ReadSet(open_flows={"flow"}))
    assert {work.status for work in unit.open_work("flow")} == {"pending", "held", "active", "not_completed"}
    opened = {step.step_id for step in unit.open_steps("flow")}
    assert {"pending", "active"} <= opened
    assert not {"completed", "failed", "skipped", "cancelled"} & opened
    assert unit.flow("flow") == flow_record()


async def test_what_a_flow_was_started_with(store: Store) -> None:
    options = {"deadline_ms": 5, "on_deadline": "cancel", "compensate": False}
    labels = {"k": "v", "k2": "v2"}
    inputs = flow_inputs(goals=["b", "a"], init=AWKWARD, metadata=AWKWARD, labels=labels, options=options)
    await write(store, new_records(flow_record(), inputs))
    unit = await load(store, ReadSet(inputs={"flow"}))
    assert unit.inputs("flow") == inputs


async def test_a_registered_step_and_its_versions(store: Store) -> None:
    first, second = step_version(), step_version(attributes={"x": {"role": "const", "value": AWKWARD}})
    for version in (first, second):
        await write(store, Changes(current={"step": version.version}, versions={version.version: version}, at=NOW))
    unit = await load(store, ReadSet(steps={"step"}, versions={first.version, second.version}))
    assert unit.current_version("step") == second
    assert unit.version(first.version) == first, "flows under way keep the version that they were started with"


async def test_a_version_may_be_stored_twice(store: Store) -> None:
    version = step_version()
    for _ in range(2):
        await write(store, Changes(current={"step": version.version}, versions={version.version: version}, at=NOW))
    assert len(await store.read("list_steps")) == 1


async def test_a_step_taken_out_of_the_register_keeps_its_versions(store: Store) -> None:
    version = step_version()
    await write(store, Changes(current={"step": version.version}, versions={version.version: version}, at=NOW))
    await write(store, Changes(current={"step": None}, at=NOW))
    unit = await load(store, ReadSet(steps={"step"}, versions={version.version}))
    assert unit.current_version("step") is None
    assert unit.version(version.version) == version


async def test_a_step_keeps_the_time_it_was_made(store: Store) -> None:
    first, second = step_version(), step_version(name="another")
    await write(store, Changes(current={"step": first.version}, versions={first.version: first}, at=NOW))
    await write(store, Changes(current={"step": second.version}, versions={second.version: second}, at=NOW + 9))
    [(step_id, version, _, created_at, updated_at)] = await store.read("get_step", step_id="step")
    assert (step_id, version, created_at, updated_at) == ("step", second.version, NOW, NOW + 9)


async def test_cancel_calls_are_kept_until_they_are_forgotten(store: Store) -> None:
    call = CancelCall("work", "flow", "step", "work", "http://worker.test/cancel", AWKWARD, 0, NOW)
    later = CancelCall("work", "flow", "step", "work", "http://worker.test/cancel", AWKWARD, 1, NOW + 50)
    await write(store, Changes(calls={"work": call}))
    await write(store, Changes(calls={"work": later}))
    unit = await load(store, ReadSet(calls={"work"}))
    assert unit.call("work") == later
    assert await find(store, "find_calls", now=NOW + 49, limit=9) == []
    assert await find(store, "find_calls", now=NOW + 50, limit=9) == [("work",)]
    assert (await store.read("next_call"))[0][0] == NOW + 50
    await write(store, Changes(calls={"work": None}))
    assert (await load(store, ReadSet(calls={"work"}))).call("work") is None
    assert (await store.read("next_call"))[0][0] is None


async def test_active_items_of_a_step_are_counted_over_all_flows(store: Store) -> None:
    items = [
        work_item(status, work_id=f"{status}-{flow}", flow_id=f"flow-{flow}") for status in WorkStatus for flow in "ab"
    ]
    await write(store, new_records(*items, work_item(work_id="other", step_id="other")))
    unit = await load(store, ReadSet(active_counts={"step", "nothing"}))
    assert (unit.active_count("step"), unit.active_count("nothing")) == (2, 0)


async def test_the_journal_keeps_the_order_of_a_batch_and_of_batches(store: Store) -> None:
    def event(number: int) -> Event:
        return Event(EventType.WORK_HEARTBEAT, NOW - number, "flow", "step", "work", number, {"n": number, **AWKWARD})

    for start in range(0, 300, 100):
        await write(store, Changes(events=[event(number) for number in range(start, start + 100)]))
    rows = await store.read("journal_of_flow", flow_id="flow", after=0, limit=1000)
    assert [row[6] for row in rows] == list(range(300))
    assert [row[0] for row in rows] == sorted({row[0] for row in rows}), "numbers rise and none is used twice"
    assert rows[5][1:7] == ("work_heartbeat", NOW - 5, "flow", "step", "work", 5)
    assert parse_json(rows[5][7]) == {"n": 5, **AWKWARD}
    [(last,)] = await store.read("last_seq")
    assert rows[-1][0] <= last < rows[-1][0] + 64
    await write(store, Changes(events=[event(300)]))
    [row] = await store.read("journal_of_flow", flow_id="flow", after=last, limit=1000)
    assert (row[0] > last, row[6]) == (True, 300)
