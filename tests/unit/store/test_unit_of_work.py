"""The unit of a batch: drafts that are kept or leave no trace, and nothing seen that was not loaded."""

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
from counterfoil.domain.work.capacity import NO_CAPACITY
from counterfoil.domain.work.decisions import cancel, dispatch
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.kinds.columns import written
from counterfoil.store.kinds.definitions import CURRENT
from counterfoil.store.kinds.flows import FLOWS, INPUTS
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.kinds.work import ACTIVE, CALLS, WORK
from counterfoil.store.unit_of_work.loading import fill
from counterfoil.store.unit_of_work.read_set import NotLoaded, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.records import DEFAULTS, NOW, flow_inputs, flow_record, step_run, step_version, work_item

LATER = NOW + 500
VERSION = step_version()
REGISTER = Register(3, [VERSION])
PLAN = make_plan(REGISTER, ["step"], ())
CALL = CancelCall("call", "flow", "step", "work", "http://worker.test/cancel", {}, 0, NOW)


def loaded() -> UnitOfWork:
    unit = UnitOfWork({VERSION.version: VERSION, "version": VERSION})
    unit.records(FLOWS).add("flow", flow_record())
    unit.add(STEPS, step_run())
    unit.add_work(work_item())
    unit.add(INPUTS, flow_inputs())
    unit.records(CURRENT).add("step", VERSION.version)
    unit.records(CALLS).add("call", CALL)
    unit.records(ACTIVE).add("step", 2)
    unit.complete.open_flows.update(["flow"])
    return unit


def start_flow(unit: UnitOfWork, flow_id: str = "new") -> None:
    data: dict[str, Any] = {"goals": ["step"], "steps": {"step": VERSION.version}, "plan": PLAN.plan_id}
    unit.record(Event(EventType.FLOW_STARTED, LATER, flow_id, data=data))
    unit.start_with(flow_inputs(flow_id), PLAN)
    unit.record(Event(EventType.STEP_STARTED, LATER, flow_id, "step", data={"items": 1}))
    data = {"item": 0, "version": VERSION.version, "lane": "step@x", "idempotency_key": "key"}
    unit.record(Event(EventType.WORK_CREATED, LATER, flow_id, "step", f"work-of-{flow_id}", 0, data))


@pytest.mark.parametrize(
    ("look", "kind", "key"),
    [
        (lambda unit: unit.find_flow("f"), "flows", "f"),
        (lambda unit: unit.flow("f"), "flows", "f"),
        (lambda unit: unit.find_work("w"), "work", "w"),
        (lambda unit: unit.work("w"), "work", "w"),
        (lambda unit: unit.step_run("f", "s"), "flow_steps", "f\ns"),
        (lambda unit: unit.outputs("f", "s"), "flow_steps", "f\ns"),
        (lambda unit: unit.steps_of("f"), "whole_flows", "f"),
        (lambda unit: unit.work_of_step("f", "s"), "step_work", "f\ns"),
        (lambda unit: unit.plan_of(flow_record(plan="p")), "plans", "p"),
        (lambda unit: unit.register(), "registers", "-1"),
        (lambda unit: unit.open_work("f"), "open_flows", "f"),
        (lambda unit: unit.open_steps("f"), "open_flows", "f"),
        (lambda unit: unit.inputs("f"), "inputs", "f"),
        (lambda unit: unit.version("v"), "versions", "v"),
        (lambda unit: unit.version("v~"), "versions", "v"),
        (lambda unit: unit.current_version("s"), "steps", "s"),
        (lambda unit: unit.call("c"), "calls", "c"),
        (lambda unit: unit.active_count("s"), "active_counts", "s"),
        (lambda unit: unit.count_active("s"), "active_counts", "s"),
    ],
)
def test_what_was_not_loaded_is_named(look: Callable[[UnitOfWork], Any], kind: str, key: str) -> None:
    with pytest.raises(NotLoaded) as caught:
        look(UnitOfWork({}))
    assert caught.value.wanted == {(kind, key)}
    assert str(caught.value) == f"{kind} {key}"


def test_all_steps_that_are_wanted_and_were_not_loaded_are_named_at_once() -> None:
    unit = loaded()
    with pytest.raises(NotLoaded) as caught:
        unit.want_steps("flow", ["a", "step", "b"])
    assert caught.value.wanted - {("inputs", "flow")} == {("flow_steps", "flow\na"), ("flow_steps", "flow\nb")}
    unit.want_steps("flow", ["step"])


def test_what_was_loaded_is_seen() -> None:
    unit = loaded()
    assert (unit.flow("flow"), unit.step_run("flow", "step"), unit.work("work")) == (
        flow_record(),
        step_run(),
        work_item(),
    )
    assert (unit.inputs("flow"), unit.current_version("step"), unit.call("call")) == (flow_inputs(), VERSION, CALL)
    assert (unit.open_work("flow"), unit.open_steps("flow")) == ([work_item()], [step_run()])
    assert unit.active_count("step") == 2
    assert not unit.changes.any()


def test_what_is_known_not_to_be_there_is_refused() -> None:
    unit = UnitOfWork({})
    unit.records(FLOWS).add("f", None)
    unit.records(WORK).add("w", None)
    unit.records(CURRENT).add("s", None)
    assert (unit.find_flow("f"), unit.find_work("w"), unit.current_version("s")) == (None, None, None)
    with pytest.raises(UnknownFlow):
        unit.flow("f")
    with pytest.raises(UnknownWork):
        unit.work("w")


def test_what_is_loaded_again_does_not_replace_what_is_known() -> None:
    unit = loaded()
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.keep()
    for _ in range(2):
        unit.add_work(work_item())
        unit.add(STEPS, step_run())
        unit.records(FLOWS).add("flow", flow_record())
    assert unit.work("work").status is WorkStatus.CANCELLED
    assert unit.step_run("flow", "step").open_items == 0


def test_a_command_sees_its_own_drafts_before_they_are_kept() -> None:
    unit = loaded()
    unit.record(cancel(unit.work("work"), LATER, "no"))
    assert unit.work("work").status is WorkStatus.CANCELLED
    assert unit.touched_work("flow") == [unit.work("work")]
    assert unit.touched_work("another") == []
    assert unit.open_work("flow") == []


def test_what_is_kept_is_written_and_seen_by_the_next() -> None:
    unit = loaded()
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.record(Event(EventType.STEP_CANCELLED, LATER, "flow", "step", data={}))
    unit.record(Event(EventType.FLOW_CANCELLED, LATER, "flow", data={}))
    unit.keep()
    assert unit.touched_work("flow") == [], "the next command has touched nothing yet"
    changes = unit.changes
    assert changes.work["work"].status is WorkStatus.CANCELLED
    assert changes.steps[("flow", "step")].status is StepStatus.CANCELLED
    assert changes.flows["flow"].status is FlowStatus.CANCELLED
    assert [event.type for event in changes.events] == ["work_cancelled", "step_cancelled", "flow_cancelled"]
    assert not changes.peek(WORK).new
    assert changes.any()


def test_what_is_discarded_leaves_no_trace() -> None:
    unit = loaded()
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.record(Event(EventType.STEP_CANCELLED, LATER, "flow", "step", data={}))
    unit.record(Event(EventType.FLOW_CANCELLED, LATER, "flow", data={}))
    start_flow(unit)
    unit.call_later(CALL)
    unit.put_current("step", None)
    unit.discard()
    assert not unit.changes.any()
    assert (unit.flow("flow"), unit.step_run("flow", "step"), unit.work("work")) == (
        flow_record(),
        step_run(),
        work_item(),
    )
    assert unit.current_version("step") == VERSION
    with pytest.raises(NotLoaded):
        unit.find_flow("new")
    with pytest.raises(NotLoaded):
        unit.find_work("work-of-new")


def test_what_is_discarded_leaves_what_was_kept_before_it() -> None:
    unit = loaded()
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.keep()
    kept = unit.work("work")
    unit.draft_work("work").message = "never said"
    unit.draft_step("flow", "step").open_items = 7
    unit.draft_flow("flow").open_steps = 7
    unit.discard()
    assert unit.work("work") is kept is unit.changes.work["work"]
    assert (kept.message, unit.step_run("flow", "step").open_items) == (None, 0)
    assert unit.flow("flow") == flow_record()


def test_what_was_known_not_to_be_there_is_so_again() -> None:
    unit = loaded()
    unit.records(FLOWS).add("new", None)
    start_flow(unit)
    unit.discard()
    assert unit.find_flow("new") is None


def test_the_originals_are_never_touched() -> None:
    original = work_item()
    unit = UnitOfWork({"version": VERSION})
    unit.records(FLOWS).add("flow", flow_record())
    unit.add(STEPS, step_run())
    unit.add_work(original)
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.keep()
    assert original == work_item()


def test_a_refused_event_is_not_told() -> None:
    unit = loaded()
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.keep()
    with pytest.raises(IllegalMove):
        unit.record(cancel(unit.work("work"), LATER, "again"))
    unit.discard()
    assert len(unit.changes.events) == 1


def test_a_flow_that_begins_here_is_known_whole() -> None:
    unit = loaded()
    start_flow(unit)
    unit.keep()
    assert [work.work_id for work in unit.open_work("new")] == ["work-of-new"]
    assert [step.step_id for step in unit.open_steps("new")] == ["step"]
    assert unit.inputs("new") == flow_inputs("new")
    assert [step.step_id for step in unit.steps_of("new")] == ["step"]
    assert [work.work_id for work in unit.work_of_step("new", "step")] == ["work-of-new"]
    assert unit.changes.peek(FLOWS).new == {"new"}
    assert unit.changes.peek(STEPS).new == {("new", "step")}
    assert unit.changes.peek(WORK).new == {"work-of-new"}


def test_what_is_made_and_changed_in_one_batch_is_inserted_as_it_became() -> None:
    unit = loaded()
    start_flow(unit)
    unit.record(dispatch(unit.work("work-of-new"), VERSION, "node", LATER))
    unit.keep()
    unit.record(cancel(unit.work("work-of-new"), LATER, "no"))
    unit.keep()
    assert unit.changes.work["work-of-new"].status is WorkStatus.CANCELLED
    assert "work-of-new" in unit.changes.peek(WORK).new


def test_a_step_is_registered_and_taken_out_again() -> None:
    unit = loaded()
    other = step_version(name="another")
    unit.put_current("step", other)
    unit.keep()
    assert unit.current_version("step") == other
    unit.put_current("step", None)
    unit.keep()
    assert unit.current_version("step") is None
    assert unit.changes.current == {"step": None}
    assert unit.changes.versions == {other.version: other}, "a flow may have been started with it in between"


def test_the_register_is_what_was_loaded_with_what_this_batch_has_changed() -> None:
    unit = loaded()
    unit.add_register(3, [VERSION.version])
    assert unit.register().steps == {"step": VERSION}
    other = step_version("other")
    unit.put_current("other", other)
    assert unit.register().steps == {"step": VERSION, "other": other}, "what the command itself has put"
    unit.keep()
    unit.put_current("step", None)
    assert unit.register().steps == {"other": other}, "and what those before it have"
    unit.discard()
    assert set(unit.register().steps) == {"step", "other"}


def test_a_register_that_is_known_is_not_read_again() -> None:
    known = DefinitionCache({VERSION.version: VERSION})
    first, second = UnitOfWork(known), UnitOfWork(known)
    first.add_register(3, [VERSION.version])
    with pytest.raises(NotLoaded, match="registers 3"):
        second.register()
    second.add_register(3, None)
    assert second.register() is first.register()


def test_a_register_that_was_known_when_it_was_asked_for_and_is_not_now_is_asked_for_again() -> None:
    known = DefinitionCache({VERSION.version: VERSION})
    unit, other = UnitOfWork(known), UnitOfWork(known)
    other.add_register(4, [VERSION.version])
    unit.add_register(3, None)
    with pytest.raises(NotLoaded, match="registers 4"):
        unit.register()


def test_an_older_register_does_not_replace_a_newer_one() -> None:
    known = DefinitionCache({VERSION.version: VERSION})
    UnitOfWork(known).add_register(4, [VERSION.version])
    late = UnitOfWork(known)
    late.add_register(3, [])
    assert late.register().steps == {}, "its own transaction sees it so"
    assert known.register.revision == 4


def test_a_plan_is_written_unless_it_is_known_to_be_stored() -> None:
    known = DefinitionCache({VERSION.version: VERSION})
    unit = UnitOfWork(known)
    for flow_id in ("one", "two"):
        start_flow(unit, flow_id)
        unit.keep()
        assert unit.plan_of(unit.flow(flow_id)) == PLAN
    assert unit.changes.plans == {PLAN.plan_id: PLAN}
    known.learn_plans([PLAN])
    later = UnitOfWork(known)
    start_flow(later)
    later.keep()
    assert later.changes.plans == {}
    assert later.plan_of(later.flow("new")) == PLAN


def test_a_flow_that_was_not_planned_has_a_plan_with_nothing_in_it() -> None:
    assert UnitOfWork({}).plan_of(flow_record()) is NO_PLAN


def test_a_plan_that_is_loaded_is_known_from_then_on() -> None:
    known = DefinitionCache()
    rows = {"load_plans": [(PLAN.plan_id, written(PLAN.stored()))]}
    fill(UnitOfWork(known), ReadSet(plans={PLAN.plan_id}), rows, DEFAULTS)
    assert UnitOfWork(known).plan_of(flow_record(plan=PLAN.plan_id)) == PLAN


def test_what_undoes_a_step_follows_from_the_step() -> None:
    version = step_version(compensate={"endpoint": "http://worker.test/undo"})
    undoing = UnitOfWork({version.version: version}).version(version.version + "~")
    assert (undoing.version, undoing.definition.endpoint) == (version.version + "~", "http://worker.test/undo")


def test_outputs_are_those_of_the_draft_or_those_that_were_loaded() -> None:
    unit = loaded()
    unit.add(STEPS, step_run(StepStatus.COMPLETED, step_id="done"))
    with pytest.raises(NotLoaded, match="flow_steps flow\ndone"):
        unit.outputs("flow", "done")
    unit.add_outputs("flow", "done", {"a": 1})
    assert unit.outputs("flow", "done") == {"a": 1}
    unit.add(STEPS, step_run(StepStatus.COMPLETED, step_id="empty"))
    unit.add_outputs("flow", "empty", None)
    assert unit.outputs("flow", "empty") == {}
    unit.record(cancel(unit.work("work"), LATER, "no"))
    unit.record(Event(EventType.STEP_COMPLETED, LATER, "flow", "step", data={"outputs": {"b": 2}}))
    assert unit.outputs("flow", "step") == {"b": 2}


def waiting(item: int, **fields: Any) -> Work:
    return work_item(WorkStatus.PENDING, **{"work_id": f"w{item:03}", "item": item, "due_at": None, **fields})


def test_items_that_wait_are_looked_for_in_groups_and_passed_over_when_they_were_released() -> None:
    unit = loaded()
    step = step_run(items=100, open_items=100, released=1, waiting_items=98)
    with pytest.raises(NotLoaded) as caught:
        next(unit.waiting_items(step))
    ((kind, find),) = caught.value.wanted
    assert (kind, find.query) == ("finds", "find_waiting_items")
    assert dict(find.parameters) == {"flow_id": "flow", "step_id": "step", "first": 0, "end": 64}
    unit.add_found(find, [("w002",), ("w003",), ("w004",)])
    with pytest.raises(NotLoaded, match="work w002, w003, w004"):
        next(unit.waiting_items(step))
    for work in (waiting(2), waiting(3, due_at=NOW), waiting(4)):
        unit.add_work(work)
    items = unit.waiting_items(step)
    assert [next(items).item, next(items).item] == [2, 4]
    with pytest.raises(NotLoaded) as caught:
        next(items)
    ((_, find),) = caught.value.wanted
    assert dict(find.parameters) == {"flow_id": "flow", "step_id": "step", "first": 64, "end": 128}


def test_cancel_calls_are_put_off_and_forgotten() -> None:
    unit = loaded()
    unit.call_later(CALL)
    unit.keep()
    assert unit.call("call") == CALL
    unit.forget_call("call")
    unit.keep()
    assert unit.call("call") is None
    assert unit.changes.calls == {"call": None}
    assert unit.changes.any(), "calls alone are a change"


@pytest.mark.parametrize("kind", [EventType.CANCEL_DELIVERED, EventType.CANCEL_UNDELIVERED])
def test_what_became_of_a_cancel_call_changes_no_record(kind: EventType) -> None:
    unit = loaded()
    unit.record(Event(kind, LATER, "flow", "step", "work", data={}))
    unit.keep()
    assert [event.type for event in unit.changes.events] == [kind]
    assert (unit.changes.work, unit.changes.steps, unit.changes.flows) == ({}, {}, {})


def test_active_items_are_counted_on() -> None:
    unit = loaded()
    unit.count_active("step")
    assert unit.active_count("step") == 3


def test_without_capacity_nothing_is_sent() -> None:
    assert not NO_CAPACITY.take("step@x")
    assert not NO_CAPACITY.take_at_once("step@x")
    NO_CAPACITY.note_full("step")
    assert UnitOfWork({}).capacity is NO_CAPACITY
