"""The world of a batch: drafts that are kept or leave no trace, and nothing seen that was not loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from counterfoil.domain.errors import UnknownFlow, UnknownWork
from counterfoil.domain.flows.planning import NO_PLAN, make_plan
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import CancelCall, Work
from counterfoil.domain.states import FlowStatus, IllegalMove, StepStatus, WorkStatus
from counterfoil.domain.steps.register import Register
from counterfoil.domain.work.decisions import cancel, dispatch
from counterfoil.store.cache.definitions import Known
from counterfoil.store.unit_of_work.capacity import NO_CAPACITY
from counterfoil.store.unit_of_work.read_set import NotLoaded
from counterfoil.store.unit_of_work.world import World
from tests.store.records import NOW, flow_inputs, flow_record, step_run, step_version, work_item

LATER = NOW + 500
VERSION = step_version()
REGISTER = Register(3, [VERSION])
PLAN = make_plan(REGISTER, ["step"], ())
CALL = CancelCall("call", "flow", "step", "work", "http://worker.test/cancel", {}, 0, NOW)


def loaded() -> World:
    world = World({VERSION.version: VERSION})
    world.add_flow("flow", flow_record())
    world.add_step_run(step_run())
    world.add_work("work", work_item())
    world.add_inputs(flow_inputs())
    world.add_current("step", VERSION.version)
    world.add_call("call", CALL)
    world.add_active_count("step", 2)
    world.know_open(["flow"])
    return world


def start_flow(world: World, flow_id: str = "new") -> None:
    data: dict[str, Any] = {"goals": ["step"], "steps": {"step": VERSION.version}, "plan": PLAN.plan_id}
    world.record(Event(EventType.FLOW_STARTED, LATER, flow_id, data=data))
    world.start_with(flow_inputs(flow_id), PLAN)
    world.record(Event(EventType.STEP_STARTED, LATER, flow_id, "step", data={"items": 1}))
    data = {"item": 0, "version": VERSION.version, "lane": "step@x", "idempotency_key": "key"}
    world.record(Event(EventType.WORK_CREATED, LATER, flow_id, "step", f"work-of-{flow_id}", 0, data))


@pytest.mark.parametrize(
    ("look", "kind", "key"),
    [
        (lambda world: world.find_flow("f"), "flows", "f"),
        (lambda world: world.flow("f"), "flows", "f"),
        (lambda world: world.find_work("w"), "work", "w"),
        (lambda world: world.work("w"), "work", "w"),
        (lambda world: world.step_run("f", "s"), "flow_steps", "f\ns"),
        (lambda world: world.outputs("f", "s"), "flow_steps", "f\ns"),
        (lambda world: world.steps_of("f"), "whole_flows", "f"),
        (lambda world: world.work_of_step("f", "s"), "step_work", "f\ns"),
        (lambda world: world.plan_of(flow_record(plan="p")), "plans", "p"),
        (lambda world: world.register(), "registers", "-1"),
        (lambda world: world.open_work("f"), "open_flows", "f"),
        (lambda world: world.open_steps("f"), "open_flows", "f"),
        (lambda world: world.inputs("f"), "inputs", "f"),
        (lambda world: world.version("v"), "versions", "v"),
        (lambda world: world.version("v~"), "versions", "v"),
        (lambda world: world.current_version("s"), "steps", "s"),
        (lambda world: world.call("c"), "calls", "c"),
        (lambda world: world.active_count("s"), "active_counts", "s"),
        (lambda world: world.count_active("s"), "active_counts", "s"),
    ],
)
def test_what_was_not_loaded_is_named(look: Callable[[World], Any], kind: str, key: str) -> None:
    with pytest.raises(NotLoaded) as caught:
        look(World({}))
    assert caught.value.wanted == {(kind, key)}
    assert str(caught.value) == f"{kind} {key}"


def test_all_steps_that_are_wanted_and_were_not_loaded_are_named_at_once() -> None:
    world = loaded()
    with pytest.raises(NotLoaded) as caught:
        world.want_steps("flow", ["a", "step", "b"])
    assert caught.value.wanted - {("inputs", "flow")} == {("flow_steps", "flow\na"), ("flow_steps", "flow\nb")}
    world.want_steps("flow", ["step"])


def test_what_was_loaded_is_seen() -> None:
    world = loaded()
    assert (world.flow("flow"), world.step_run("flow", "step"), world.work("work")) == (
        flow_record(),
        step_run(),
        work_item(),
    )
    assert (world.inputs("flow"), world.current_version("step"), world.call("call")) == (flow_inputs(), VERSION, CALL)
    assert (world.open_work("flow"), world.open_steps("flow")) == ([work_item()], [step_run()])
    assert world.active_count("step") == 2
    assert not world.changes.any()


def test_what_is_known_not_to_be_there_is_refused() -> None:
    world = World({})
    world.add_flow("f", None)
    world.add_work("w", None)
    world.add_current("s", None)
    assert (world.find_flow("f"), world.find_work("w"), world.current_version("s")) == (None, None, None)
    with pytest.raises(UnknownFlow):
        world.flow("f")
    with pytest.raises(UnknownWork):
        world.work("w")


def test_what_is_loaded_again_does_not_replace_what_is_known() -> None:
    world = loaded()
    world.record(cancel(world.work("work"), LATER, "no"))
    world.keep()
    for _ in range(2):
        world.add_work("work", work_item())
        world.add_step_run(step_run())
        world.add_flow("flow", flow_record())
    assert world.work("work").status is WorkStatus.CANCELLED
    assert world.step_run("flow", "step").open_items == 0


def test_a_command_sees_its_own_drafts_before_they_are_kept() -> None:
    world = loaded()
    world.record(cancel(world.work("work"), LATER, "no"))
    assert world.work("work").status is WorkStatus.CANCELLED
    assert world.touched_work("flow") == [world.work("work")]
    assert world.touched_work("another") == []
    assert world.open_work("flow") == []


def test_what_is_kept_is_written_and_seen_by_the_next() -> None:
    world = loaded()
    world.record(cancel(world.work("work"), LATER, "no"))
    world.record(Event(EventType.STEP_CANCELLED, LATER, "flow", "step", data={}))
    world.record(Event(EventType.FLOW_CANCELLED, LATER, "flow", data={}))
    world.keep()
    assert world.touched_work("flow") == [], "the next command has touched nothing yet"
    changes = world.changes
    assert changes.work["work"].status is WorkStatus.CANCELLED
    assert changes.steps[("flow", "step")].status is StepStatus.CANCELLED
    assert changes.flows["flow"].status is FlowStatus.CANCELLED
    assert [event.type for event in changes.events] == ["work_cancelled", "step_cancelled", "flow_cancelled"]
    assert not changes.new.work
    assert changes.any()


def test_what_is_discarded_leaves_no_trace() -> None:
    world = loaded()
    world.record(cancel(world.work("work"), LATER, "no"))
    world.record(Event(EventType.STEP_CANCELLED, LATER, "flow", "step", data={}))
    world.record(Event(EventType.FLOW_CANCELLED, LATER, "flow", data={}))
    start_flow(world)
    world.call_later(CALL)
    world.put_current("step", None)
    world.discard()
    assert not world.changes.any()
    assert (world.flow("flow"), world.step_run("flow", "step"), world.work("work")) == (
        flow_record(),
        step_run(),
        work_item(),
    )
    assert world.current_version("step") == VERSION
    with pytest.raises(NotLoaded):
        world.find_flow("new")
    with pytest.raises(NotLoaded):
        world.find_work("work-of-new")


def test_what_is_discarded_leaves_what_was_kept_before_it() -> None:
    world = loaded()
    world.record(cancel(world.work("work"), LATER, "no"))
    world.keep()
    kept = world.work("work")
    world.draft_work("work").message = "never said"
    world.draft_step("flow", "step").open_items = 7
    world.draft_flow("flow").open_steps = 7
    world.discard()
    assert world.work("work") is kept is world.changes.work["work"]
    assert (kept.message, world.step_run("flow", "step").open_items) == (None, 0)
    assert world.flow("flow") == flow_record()


def test_what_was_known_not_to_be_there_is_so_again() -> None:
    world = loaded()
    world.add_flow("new", None)
    start_flow(world)
    world.discard()
    assert world.find_flow("new") is None


def test_the_originals_are_never_touched() -> None:
    original = work_item()
    world = World({})
    world.add_flow("flow", flow_record())
    world.add_step_run(step_run())
    world.add_work("work", original)
    world.record(cancel(world.work("work"), LATER, "no"))
    world.keep()
    assert original == work_item()


def test_a_refused_event_is_not_told() -> None:
    world = loaded()
    world.record(cancel(world.work("work"), LATER, "no"))
    world.keep()
    with pytest.raises(IllegalMove):
        world.record(cancel(world.work("work"), LATER, "again"))
    world.discard()
    assert len(world.changes.events) == 1


def test_a_flow_that_begins_here_is_known_whole() -> None:
    world = loaded()
    start_flow(world)
    world.keep()
    assert [work.work_id for work in world.open_work("new")] == ["work-of-new"]
    assert [step.step_id for step in world.open_steps("new")] == ["step"]
    assert world.inputs("new") == flow_inputs("new")
    assert [step.step_id for step in world.steps_of("new")] == ["step"]
    assert [work.work_id for work in world.work_of_step("new", "step")] == ["work-of-new"]
    new = world.changes.new
    assert (new.flows, new.steps, new.work) == ({"new"}, {("new", "step")}, {"work-of-new"})


def test_what_is_made_and_changed_in_one_batch_is_inserted_as_it_became() -> None:
    world = loaded()
    start_flow(world)
    world.record(dispatch(world.work("work-of-new"), VERSION, "node", LATER))
    world.keep()
    world.record(cancel(world.work("work-of-new"), LATER, "no"))
    world.keep()
    assert world.changes.work["work-of-new"].status is WorkStatus.CANCELLED
    assert "work-of-new" in world.changes.new.work


def test_a_step_is_registered_and_taken_out_again() -> None:
    world = loaded()
    other = step_version(name="another")
    world.put_current("step", other)
    world.keep()
    assert world.current_version("step") == other
    world.put_current("step", None)
    world.keep()
    assert world.current_version("step") is None
    assert world.changes.current == {"step": None}
    assert world.changes.versions == {other.version: other}, "a flow may have been started with it in between"


def test_the_register_is_what_was_loaded_with_what_this_batch_has_changed() -> None:
    world = loaded()
    world.add_register(3, [VERSION.version])
    assert world.register().steps == {"step": VERSION}
    other = step_version("other")
    world.put_current("other", other)
    assert world.register().steps == {"step": VERSION, "other": other}, "what the command itself has put"
    world.keep()
    world.put_current("step", None)
    assert world.register().steps == {"other": other}, "and what those before it have"
    world.discard()
    assert set(world.register().steps) == {"step", "other"}


def test_a_register_that_is_known_is_not_read_again() -> None:
    known = Known({VERSION.version: VERSION})
    first, second = World(known), World(known)
    first.add_register(3, [VERSION.version])
    with pytest.raises(NotLoaded, match="registers 3"):
        second.register()
    second.add_register(3, None)
    assert second.register() is first.register()


def test_a_register_that_was_known_when_it_was_asked_for_and_is_not_now_is_asked_for_again() -> None:
    known = Known({VERSION.version: VERSION})
    world, other = World(known), World(known)
    other.add_register(4, [VERSION.version])
    world.add_register(3, None)
    with pytest.raises(NotLoaded, match="registers 4"):
        world.register()


def test_an_older_register_does_not_replace_a_newer_one() -> None:
    known = Known({VERSION.version: VERSION})
    World(known).add_register(4, [VERSION.version])
    late = World(known)
    late.add_register(3, [])
    assert late.register().steps == {}, "its own transaction sees it so"
    assert known.register.revision == 4


def test_a_plan_is_written_unless_it_is_known_to_be_stored() -> None:
    known = Known({VERSION.version: VERSION})
    world = World(known)
    for flow_id in ("one", "two"):
        start_flow(world, flow_id)
        world.keep()
        assert world.plan_of(world.flow(flow_id)) == PLAN
    assert world.changes.plans == {PLAN.plan_id: PLAN}
    known.learn_plans([PLAN])
    later = World(known)
    start_flow(later)
    later.keep()
    assert later.changes.plans == {}
    assert later.plan_of(later.flow("new")) == PLAN


def test_a_flow_that_was_not_planned_has_a_plan_with_nothing_in_it() -> None:
    assert World({}).plan_of(flow_record()) is NO_PLAN


def test_a_plan_that_is_loaded_is_known_from_then_on() -> None:
    known = Known()
    World(known).add_plan(PLAN)
    assert World(known).plan_of(flow_record(plan=PLAN.plan_id)) == PLAN


def test_what_undoes_a_step_follows_from_the_step() -> None:
    version = step_version(compensate={"endpoint": "http://worker.test/undo"})
    undoing = World({version.version: version}).version(version.version + "~")
    assert (undoing.version, undoing.definition.endpoint) == (version.version + "~", "http://worker.test/undo")


def test_outputs_are_those_of_the_draft_or_those_that_were_loaded() -> None:
    world = loaded()
    world.add_step_run(step_run(StepStatus.COMPLETED, step_id="done"))
    with pytest.raises(NotLoaded, match="flow_steps flow\ndone"):
        world.outputs("flow", "done")
    world.add_outputs("flow", "done", {"a": 1})
    assert world.outputs("flow", "done") == {"a": 1}
    world.add_step_run(step_run(StepStatus.COMPLETED, step_id="empty"))
    world.add_outputs("flow", "empty", None)
    assert world.outputs("flow", "empty") == {}
    world.record(cancel(world.work("work"), LATER, "no"))
    world.record(Event(EventType.STEP_COMPLETED, LATER, "flow", "step", data={"outputs": {"b": 2}}))
    assert world.outputs("flow", "step") == {"b": 2}


def waiting(item: int, **fields: Any) -> Work:
    return work_item(WorkStatus.PENDING, **{"work_id": f"w{item:03}", "item": item, "due_at": None, **fields})


def test_items_that_wait_are_looked_for_in_groups_and_passed_over_when_they_were_released() -> None:
    world = loaded()
    step = step_run(items=100, open_items=100, released=1, waiting_items=98)
    with pytest.raises(NotLoaded) as caught:
        next(world.waiting_items(step))
    ((kind, find),) = caught.value.wanted
    assert (kind, find.query) == ("finds", "find_waiting_items")
    assert dict(find.parameters) == {"flow_id": "flow", "step_id": "step", "first": 0, "end": 64}
    world.add_found(find, [("w002",), ("w003",), ("w004",)])
    with pytest.raises(NotLoaded, match="work w002, w003, w004"):
        next(world.waiting_items(step))
    for work in (waiting(2), waiting(3, due_at=NOW), waiting(4)):
        world.add_work(work.work_id, work)
    items = world.waiting_items(step)
    assert [next(items).item, next(items).item] == [2, 4]
    with pytest.raises(NotLoaded) as caught:
        next(items)
    ((_, find),) = caught.value.wanted
    assert dict(find.parameters) == {"flow_id": "flow", "step_id": "step", "first": 64, "end": 128}


def test_cancel_calls_are_put_off_and_forgotten() -> None:
    world = loaded()
    world.call_later(CALL)
    world.keep()
    assert world.call("call") == CALL
    world.forget_call("call")
    world.keep()
    assert world.call("call") is None
    assert world.changes.calls == {"call": None}
    assert world.changes.any(), "calls alone are a change"


@pytest.mark.parametrize("kind", [EventType.CANCEL_DELIVERED, EventType.CANCEL_UNDELIVERED])
def test_what_became_of_a_cancel_call_changes_no_record(kind: EventType) -> None:
    world = loaded()
    world.record(Event(kind, LATER, "flow", "step", "work", data={}))
    world.keep()
    assert [event.type for event in world.changes.events] == [kind]
    assert (world.changes.work, world.changes.steps, world.changes.flows) == ({}, {}, {})


def test_active_items_are_counted_on() -> None:
    world = loaded()
    world.count_active("step")
    assert world.active_count("step") == 3


def test_without_capacity_nothing_is_sent() -> None:
    assert not NO_CAPACITY.take("step@x")
    assert not NO_CAPACITY.take_at_once("step@x")
    NO_CAPACITY.note_full("step")
    assert World({}).capacity is NO_CAPACITY
