"""Applying events: what each of them does to a record, and that none breaks the tables."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.events import (
    ENDS_FLOW,
    ENDS_STEP,
    ENDS_WORK,
    FLOW_STATUS_OF,
    STEP_STATUS_OF,
    WORK_STATUS_OF,
    Event,
    EventType,
    evolve_flow,
    evolve_step,
    evolve_work,
    flow_from,
    step_from,
    work_from,
)
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


def test_a_started_step_counts_its_items_as_open() -> None:
    step = step_from(event(EventType.STEP_STARTED, None, version="v", goal=False, items=4))
    assert step == step_run(version="v", goal=False, items=4, open_items=4, started_at=LATER)


def test_a_started_flow_counts_its_steps_as_open() -> None:
    flow = flow_from(event(EventType.FLOW_STARTED, None, steps={"a": "v1", "b": "v2"}))
    assert flow == flow_record(open_steps=2, created_at=LATER)


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
    with pytest.raises(IllegalMove, match="completed already"):
        evolve_step(step, event(kind))


def test_other_events_of_its_items_do_not_concern_a_step() -> None:
    step = step_run()
    evolve_step(step, dispatched(1))
    assert step == step_run()


@pytest.mark.parametrize("kind", sorted(ENDS_STEP))
def test_a_step_ends_once(kind: EventType) -> None:
    step = step_run()
    evolve_step(step, event(kind))
    assert (step.status, step.finished_at) == (STEP_STATUS_OF[kind], LATER)
    with pytest.raises(IllegalMove):
        evolve_step(step, event(kind))


@pytest.mark.parametrize("kind", sorted(ENDS_FLOW))
def test_a_flow_ends_once(kind: EventType) -> None:
    flow = flow_record()
    evolve_flow(flow, event(kind, error={"code": "X"}))
    assert (flow.status, flow.finished_at, flow.error) == (FLOW_STATUS_OF[kind], LATER, {"code": "X"})
    with pytest.raises(IllegalMove):
        evolve_flow(flow, event(kind))


def test_a_flow_gathers_the_outputs_of_its_steps_and_the_first_value_stays() -> None:
    flow = flow_record(open_steps=3)
    evolve_flow(flow, event(EventType.STEP_COMPLETED, outputs={"a": 1, "b": 1}))
    evolve_flow(flow, event(EventType.STEP_COMPLETED, outputs={"b": 2, "c": 2}))
    evolve_flow(flow, event(EventType.STEP_CANCELLED, reason="no longer needed"))
    assert (flow.open_steps, flow.outputs) == (0, {"a": 1, "b": 1, "c": 2})


def test_a_draft_and_its_origin_do_not_share_outputs() -> None:
    flow = flow_record(outputs={"a": 1})
    draft = flow.draft()
    evolve_flow(draft, event(EventType.STEP_COMPLETED, outputs={"b": 2}))
    assert flow.outputs == {"a": 1}


def test_other_events_do_not_concern_a_flow() -> None:
    flow = flow_record()
    evolve_flow(flow, dispatched(1))
    assert flow == flow_record()


def test_the_ends_are_those_of_the_tables() -> None:
    assert {WORK_STATUS_OF[kind] for kind in ENDS_WORK} == FINAL_WORK
    assert {STEP_STATUS_OF[kind] for kind in ENDS_STEP} < FINAL_STEPS
    assert {FLOW_STATUS_OF[kind] for kind in ENDS_FLOW} == FINAL_FLOWS
    assert FlowStatus.ACTIVE not in FLOW_STATUS_OF.values()
