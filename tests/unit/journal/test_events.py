"""Events: what each of them does to a flow, a step or a work item, and that none breaks the tables."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.journal.event_types import (
    ENDS_FLOW,
    ENDS_STEP,
    ENDS_WORK,
    FLOW_STATUS_OF,
    STEP_STATUS_OF,
    UNDOING_OF,
    WORK_STATUS_OF,
    Event,
    EventType,
)
from counterfoil.domain.journal.evolving import evolve_flow, evolve_step, evolve_work, flow_from, steps_from, work_from
from counterfoil.domain.records import Flow, StepRun
from counterfoil.domain.states import (
    FINAL_FLOWS,
    FINAL_STEPS,
    FINAL_WORK,
    FlowStatus,
    IllegalMove,
    StepStatus,
    WorkStatus,
)
from tests.store.records import NOW, flow_record, step_run, work_item

LATER = NOW + 500


def event(kind: EventType, attempt: int | None = 1, **data: Any) -> Event:
    return Event(kind, LATER, "flow", "step", "work", attempt, data)


def dispatched(attempt: int, owner: str = "node") -> Event:
    return event(EventType.WORK_DISPATCHED, attempt, owner=owner, deadline_at=LATER + 60, due_at=LATER + 60)


def test_created_work_is_due_at_once() -> None:
    data = {"item": 3, "version": "v", "idempotency_key": "key", "lane": "step@host"}
    work = work_from(event(EventType.WORK_CREATED, 0, **data))
    assert work == work_item(
        WorkStatus.PENDING,
        item=3,
        version="v",
        lane="step@host",
        created_at=LATER,
        due_at=LATER,
    )


def test_created_work_may_carry_arguments_wait_its_turn_and_stand_in_for_another() -> None:
    data = {"item": 3, "version": "v", "idempotency_key": "key", "lane": "step@host"}
    more = {"waits": True, "arguments": {"x": 1}, "redrive_of": "before", "undoes": "other"}
    work = work_from(event(EventType.WORK_CREATED, 0, **data, **more))
    assert (work.due_at, work.arguments, work.redrive_of, work.undoes) == (None, {"x": 1}, "before", "other")


def pending(**fields: Any) -> StepRun:
    return step_run(StepStatus.PENDING, **{"items": 0, "open_items": 0, "started_at": None, **fields})


def test_a_started_flow_counts_its_steps_as_open_and_none_has_begun() -> None:
    started = event(EventType.FLOW_STARTED, None, steps={"a": "v1", "b": "v2"}, goals=["b"])
    assert flow_from(started) == flow_record(open_steps=2, created_at=LATER)
    assert steps_from(started) == [
        pending(step_id="a", version="v1", goal=False),
        pending(step_id="b", version="v2", goal=True),
    ]


def test_a_started_flow_knows_its_plan_its_parent_and_its_deadline() -> None:
    told = {"plan": "p", "parent": {"flow_id": "outer"}, "deadline_at": LATER + 9}
    flow = flow_from(event(EventType.FLOW_STARTED, None, steps={}, goals=[], **told))
    assert (flow.plan, flow.parent, flow.deadline_at) == ("p", {"flow_id": "outer"}, LATER + 9)


def test_a_started_step_counts_its_items_as_open() -> None:
    step = pending(ready_at=NOW, due_at=LATER)
    evolve_step(step, event(EventType.STEP_STARTED, None, items=4))
    assert step == step_run(items=4, open_items=4, started_at=LATER), "it waits for nothing any more"


def test_a_started_step_may_have_items_that_ended_before_and_items_that_wait() -> None:
    step = pending()
    evolve_step(step, event(EventType.STEP_STARTED, None, items=9, open=7, released=3, waiting=4))
    assert (step.items, step.open_items, step.released, step.waiting_items) == (9, 7, 3, 4)


def test_a_step_that_waits_for_something_optional_has_a_clock() -> None:
    step = pending()
    evolve_step(step, event(EventType.STEP_WAITING, None, ready_at=NOW, until=LATER))
    assert step == pending(ready_at=NOW, due_at=LATER)


def test_a_released_item_is_due_and_waits_no_more() -> None:
    step = step_run(items=9, open_items=9, released=3, waiting_items=5)
    work = work_item(WorkStatus.PENDING, due_at=None)
    released = event(EventType.WORK_RELEASED, item=4)
    evolve_step(step, released)
    evolve_work(work, released)
    assert (step.released, step.waiting_items, step.open_items) == (4, 4, 9)
    assert (work.status, work.due_at) == (WorkStatus.PENDING, LATER)


def test_a_delegated_item_is_active_and_no_clock_of_its_own_runs() -> None:
    work = work_item(WorkStatus.PENDING)
    evolve_work(work, event(EventType.WORK_DELEGATED, child_flow_id="work"))
    assert (work.status, work.attempt, work.first_sent_at, work.sent_at) == (WorkStatus.ACTIVE, 1, LATER, LATER)
    assert (work.due_at, work.deadline_at, work.owner) == (None, None, None)


def test_a_dispatch_is_an_attempt_with_an_owner_and_a_clock() -> None:
    work = work_item(WorkStatus.NOT_COMPLETED, attempt=1, first_sent_at=NOW, acknowledged_at=NOW, error={"code": "X"})
    evolve_work(work, dispatched(2))
    assert (work.status, work.attempt, work.owner) == (WorkStatus.ACTIVE, 2, "node")
    assert (work.first_sent_at, work.sent_at, work.acknowledged_at) == (NOW, LATER, None)
    assert (work.deadline_at, work.due_at, work.error) == (LATER + 60, LATER + 60, None)


def test_the_first_dispatch_is_remembered_as_such() -> None:
    work = work_item(WorkStatus.PENDING)
    evolve_work(work, dispatched(1))
    assert (work.first_sent_at, work.sent_at) == (LATER, LATER)


def test_an_acknowledgement_ends_the_sending_and_leaves_the_clock() -> None:
    work = work_item(owner="node")
    evolve_work(work, event(EventType.WORK_ACKNOWLEDGED))
    assert (work.status, work.owner, work.acknowledged_at) == (WorkStatus.ACTIVE, None, LATER)
    assert work.due_at == NOW + 60_000


def test_a_heartbeat_moves_the_clock_when_there_is_one() -> None:
    work = work_item()
    evolve_work(work, event(EventType.WORK_HEARTBEAT, progress=0.4, message="m", deadline_at=LATER + 9))
    assert (work.progress, work.message, work.deadline_at, work.due_at) == (0.4, "m", LATER + 9, LATER + 9)
    evolve_work(work, event(EventType.WORK_HEARTBEAT, progress=0.5, message="n", deadline_at=None))
    assert (work.progress, work.message, work.deadline_at, work.due_at) == (0.5, "n", LATER + 9, LATER + 9)


def test_a_heartbeat_that_says_nothing_new_leaves_what_was_said() -> None:
    work = work_item(progress=0.4, message="m")
    evolve_work(work, event(EventType.WORK_HEARTBEAT, progress=None, message=None, deadline_at=None))
    assert (work.progress, work.message) == (0.4, "m")


def test_not_completed_work_waits_for_its_next_attempt() -> None:
    work = work_item(owner="node")
    evolve_work(work, event(EventType.WORK_NOT_COMPLETED, next_attempt_at=LATER + 7, error={"code": "X"}))
    assert (work.status, work.due_at, work.error) == (WorkStatus.NOT_COMPLETED, LATER + 7, {"code": "X"})
    assert (work.deadline_at, work.owner, work.recorded_at) == (None, None, None)


def test_postponed_work_stays_where_it_is_and_waits_longer() -> None:
    work = work_item(WorkStatus.NOT_COMPLETED)
    evolve_work(work, event(EventType.WORK_POSTPONED, next_attempt_at=LATER + 7, error={"code": "X"}))
    assert (work.status, work.due_at, work.error) == (WorkStatus.NOT_COMPLETED, LATER + 7, {"code": "X"})


@pytest.mark.parametrize("kind", sorted(ENDS_WORK))
def test_an_outcome_stops_every_clock(kind: EventType) -> None:
    work = work_item(owner="node")
    evolve_work(work, event(kind, result={"success": True}, error={"code": "X"}))
    assert work.status is WORK_STATUS_OF[kind]
    assert (work.due_at, work.deadline_at, work.owner, work.recorded_at) == (None, None, None, LATER)
    assert (work.result, work.error) == ({"success": True}, {"code": "X"})


@pytest.mark.parametrize("kind", sorted(WORK_STATUS_OF))
@pytest.mark.parametrize("status", sorted(FINAL_WORK))
def test_no_event_moves_work_that_has_ended(status: WorkStatus, kind: EventType) -> None:
    work = work_item(status)
    with pytest.raises(IllegalMove):
        evolve_work(work, event(kind, owner="n", deadline_at=1, due_at=1, next_attempt_at=1, error=None))
    assert work == work_item(status), "a refused event leaves no trace"


@pytest.mark.parametrize(
    ("kind", "failed"), [(EventType.WORK_SUCCEEDED, 0), (EventType.WORK_FAILED, 1), (EventType.WORK_CANCELLED, 0)]
)
def test_a_step_counts_what_its_items_come_to(kind: EventType, failed: int) -> None:
    step = step_run(items=3, open_items=3)
    evolve_step(step, event(kind))
    assert (step.open_items, step.failed_items, step.status) == (2, failed, step_run().status)


@pytest.mark.parametrize("kind", sorted(ENDS_WORK))
def test_no_item_ends_in_a_step_that_has_ended(kind: EventType) -> None:
    step = step_run(StepStatus.COMPLETED, open_items=0)
    with pytest.raises(IllegalMove, match="already completed"):
        evolve_step(step, event(kind))


def test_other_events_of_its_items_do_not_concern_a_step() -> None:
    step = step_run()
    evolve_step(step, dispatched(1))
    assert step == step_run()


@pytest.mark.parametrize("kind", sorted(ENDS_STEP))
def test_a_step_ends_once(kind: EventType) -> None:
    step = pending() if kind is EventType.STEP_SKIPPED else step_run()
    evolve_step(step, event(kind, outputs={"a": 1}, error={"code": "X"}))
    assert (step.status, step.finished_at) == (STEP_STATUS_OF[kind], LATER)
    assert (step.outputs, step.error) == ({"a": 1}, {"code": "X"})
    with pytest.raises(IllegalMove):
        evolve_step(step, event(kind))


def test_a_step_that_gave_nothing_keeps_nothing() -> None:
    step = step_run()
    evolve_step(step, event(EventType.STEP_COMPLETED, outputs={}))
    assert step.outputs is None


@pytest.mark.parametrize("status", [StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED])
def test_a_redriven_step_is_as_if_it_had_never_begun(status: StepStatus) -> None:
    ended: dict[str, Any] = {"finished_at": NOW, "outputs": {"a": 1}, "error": {"code": "X"}, "released": 2}
    step = step_run(status, items=3, open_items=0, failed_items=1, **ended)
    flow = flow_record(open_steps=0)
    redriven = event(EventType.STEP_REDRIVEN, None)
    evolve_step(step, redriven)
    evolve_flow(flow, redriven)
    assert step == pending(redrives=1)
    assert flow.open_steps == 1


@pytest.mark.parametrize("status", [StepStatus.SKIPPED, StepStatus.ACTIVE, StepStatus.PENDING])
def test_what_did_not_fail_is_not_redriven(status: StepStatus) -> None:
    with pytest.raises(IllegalMove):
        evolve_step(step_run(status), event(EventType.STEP_REDRIVEN, None))


@pytest.mark.parametrize("kind", sorted(ENDS_FLOW))
def test_a_flow_ends_once(kind: EventType) -> None:
    flow = flow_record()
    evolve_flow(flow, event(kind, error={"code": "X"}))
    assert (flow.status, flow.finished_at, flow.error) == (FLOW_STATUS_OF[kind], LATER, {"code": "X"})
    with pytest.raises(IllegalMove):
        evolve_flow(flow, event(kind))


@pytest.mark.parametrize("kind", sorted(ENDS_STEP))
def test_a_flow_counts_the_steps_that_have_ended(kind: EventType) -> None:
    flow = flow_record(open_steps=3)
    evolve_flow(flow, event(kind))
    assert flow == flow_record(open_steps=2)


def test_a_flow_has_no_deadline_once_it_ends_and_a_new_one_when_it_is_redriven() -> None:
    flow = flow_record(deadline_at=LATER)
    evolve_flow(flow, event(EventType.FLOW_FAILED, error={"code": "X"}))
    assert (flow.deadline_at, flow.finished_at, flow.error) == (None, LATER, {"code": "X"})
    evolve_flow(flow, event(EventType.FLOW_REDRIVEN, deadline_at=LATER + 9))
    assert (flow.status, flow.deadline_at, flow.finished_at, flow.error) == (FlowStatus.ACTIVE, LATER + 9, None, None)


def compensating(**states: str) -> Flow:
    steps = [{"step_id": step_id, "status": status, "open": 0, "failed": 0} for step_id, status in states.items()]
    return flow_record(FlowStatus.COMPENSATING, compensation={"ending": "failed", "steps": steps})


def undone(flow: Flow) -> dict[str, tuple[str, int, int]]:
    assert flow.compensation is not None
    return {step["step_id"]: (step["status"], step["open"], step["failed"]) for step in flow.compensation["steps"]}


def test_a_flow_that_is_undone_knows_in_which_order_and_what_comes_then() -> None:
    flow = flow_record(deadline_at=LATER)
    told: dict[str, Any] = {"ending": "failed", "reason": "r", "steps": ["b", "a"], "error": {"code": "X"}}
    evolve_flow(flow, event(EventType.FLOW_COMPENSATING, **told))
    assert (flow.status, flow.finished_at, flow.error) == (FlowStatus.COMPENSATING, None, {"code": "X"})
    assert flow.deadline_at is None
    assert flow.compensation is not None
    assert flow.compensation["ending"] == "failed"
    assert list(undone(flow)) == ["b", "a"]


def test_a_flow_counts_what_undoes_its_steps() -> None:
    flow = compensating(a="pending", step="pending")
    before = flow.draft()
    evolve_flow(flow, event(EventType.STEP_COMPENSATING, None, items=3))
    for kind in (EventType.WORK_SUCCEEDED, EventType.WORK_FAILED):
        evolve_flow(flow, event(kind))
    assert undone(flow) == {"a": ("pending", 0, 0), "step": ("active", 1, 1)}
    evolve_flow(flow, event(EventType.STEP_NOT_COMPENSATED, None, failed=1))
    assert undone(flow)["step"] == ("failed", 0, 1)
    assert undone(before)["step"] == ("pending", 0, 0), "a draft and its origin share nothing that changes"


def test_what_is_not_undone_when_a_flow_ends_never_will_be() -> None:
    flow = compensating(a="completed", b="failed", c="active", d="pending")
    evolve_flow(flow, event(EventType.FLOW_CANCELLED))
    assert [status for status, _, _ in undone(flow).values()] == ["completed", "failed", "cancelled", "cancelled"]


def test_a_redriven_flow_is_not_undone_any_more() -> None:
    flow = compensating(a="completed")
    evolve_flow(flow, event(EventType.FLOW_FAILED))
    evolve_flow(flow, event(EventType.FLOW_REDRIVEN))
    assert flow.compensation is None


def test_the_ends_are_those_of_the_tables() -> None:
    assert {WORK_STATUS_OF[kind] for kind in ENDS_WORK} == FINAL_WORK
    assert {STEP_STATUS_OF[kind] for kind in ENDS_STEP} == FINAL_STEPS
    assert {FLOW_STATUS_OF[kind] for kind in ENDS_FLOW} == FINAL_FLOWS
    assert {kind for kind, status in FLOW_STATUS_OF.items() if status is FlowStatus.ACTIVE} == {EventType.FLOW_REDRIVEN}
    assert not UNDOING_OF.keys() & STEP_STATUS_OF.keys(), "undoing a step does not move it"
