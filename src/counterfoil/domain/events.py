"""The journal: every change is an event, and applying an event is the only way that a record changes.

``evolve_*`` serve the live engine and the doctor alike: what the journal tells is what the tables hold, because
both come from the same functions. A status is only ever changed through the transition tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from counterfoil.domain.model import Flow, StepRun, Work
from counterfoil.domain.states import (
    FINAL_STEPS,
    FlowStatus,
    IllegalMove,
    StepStatus,
    WorkStatus,
    check_flow_move,
    check_step_move,
    check_work_move,
)


class EventType(StrEnum):
    FLOW_STARTED = "flow_started"
    FLOW_COMPLETED = "flow_completed"
    FLOW_FAILED = "flow_failed"
    FLOW_CANCELLED = "flow_cancelled"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    STEP_CANCELLED = "step_cancelled"
    WORK_CREATED = "work_created"
    WORK_DISPATCHED = "work_dispatched"
    WORK_ACKNOWLEDGED = "work_acknowledged"
    WORK_HEARTBEAT = "work_heartbeat"
    WORK_POSTPONED = "work_postponed"
    WORK_NOT_COMPLETED = "work_not_completed"
    WORK_SUCCEEDED = "work_succeeded"
    WORK_FAILED = "work_failed"
    WORK_CANCELLED = "work_cancelled"
    CANCEL_DELIVERED = "cancel_delivered"
    CANCEL_UNDELIVERED = "cancel_undelivered"


@dataclass(slots=True)
class Event:
    """One line of the journal."""

    type: EventType
    at: int
    flow_id: str
    step_id: str | None = None
    work_id: str | None = None
    attempt: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


WORK_STATUS_OF: dict[EventType, WorkStatus] = {
    EventType.WORK_DISPATCHED: WorkStatus.ACTIVE,
    EventType.WORK_NOT_COMPLETED: WorkStatus.NOT_COMPLETED,
    EventType.WORK_SUCCEEDED: WorkStatus.SUCCEEDED,
    EventType.WORK_FAILED: WorkStatus.FAILED,
    EventType.WORK_CANCELLED: WorkStatus.CANCELLED,
}
STEP_STATUS_OF: dict[EventType, StepStatus] = {
    EventType.STEP_STARTED: StepStatus.ACTIVE,
    EventType.STEP_COMPLETED: StepStatus.COMPLETED,
    EventType.STEP_FAILED: StepStatus.FAILED,
    EventType.STEP_CANCELLED: StepStatus.CANCELLED,
}
FLOW_STATUS_OF: dict[EventType, FlowStatus] = {
    EventType.FLOW_COMPLETED: FlowStatus.COMPLETED,
    EventType.FLOW_FAILED: FlowStatus.FAILED,
    EventType.FLOW_CANCELLED: FlowStatus.CANCELLED,
}
ENDS_WORK = frozenset({EventType.WORK_SUCCEEDED, EventType.WORK_FAILED, EventType.WORK_CANCELLED})
ENDS_STEP = frozenset({EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_CANCELLED})
ENDS_FLOW = frozenset(FLOW_STATUS_OF)


def work_from(event: Event) -> Work:
    """The work item that a ``work_created`` event brings into being."""
    assert event.step_id is not None
    assert event.work_id is not None
    data = event.data
    return Work(
        work_id=event.work_id,
        flow_id=event.flow_id,
        step_id=event.step_id,
        item=data["item"],
        version=data["version"],
        status=WorkStatus.PENDING,
        attempt=0,
        idempotency_key=data["idempotency_key"],
        lane=data["lane"],
        created_at=event.at,
        due_at=event.at,
    )


def step_from(event: Event) -> StepRun:
    """The step that a ``step_started`` event brings into a flow."""
    assert event.step_id is not None
    return StepRun(
        flow_id=event.flow_id,
        step_id=event.step_id,
        version=event.data["version"],
        status=StepStatus.ACTIVE,
        goal=event.data["goal"],
        items=event.data["items"],
        open_items=event.data["items"],
        started_at=event.at,
    )


def flow_from(event: Event) -> Flow:
    """The flow that a ``flow_started`` event brings into being."""
    return Flow(
        flow_id=event.flow_id,
        status=FlowStatus.ACTIVE,
        created_at=event.at,
        open_steps=len(event.data["steps"]),
    )


def evolve_work(work: Work, event: Event) -> None:
    """Apply one event to a work item. Every event of a work item but its creation passes here."""
    data = event.data
    status = WORK_STATUS_OF.get(event.type)
    if status is not None:
        check_work_move(work.status, status)
        work.status = status
    if event.type is EventType.WORK_DISPATCHED:
        work.attempt = event.attempt or 0
        work.sent_at = event.at
        if work.first_sent_at is None:
            work.first_sent_at = event.at
        work.owner = data["owner"]
        work.deadline_at = data["deadline_at"]
        work.due_at = data["due_at"]
        work.acknowledged_at = None
        work.error = None
    elif event.type is EventType.WORK_ACKNOWLEDGED:
        work.acknowledged_at = event.at
        work.owner = None
    elif event.type is EventType.WORK_HEARTBEAT:
        if data["progress"] is not None:
            work.progress = data["progress"]
        if data["message"] is not None:
            work.message = data["message"]
        if data["deadline_at"] is not None:
            work.deadline_at = work.due_at = data["deadline_at"]
    elif event.type is EventType.WORK_POSTPONED:
        work.due_at = data["next_attempt_at"]
        work.error = data["error"]
    elif event.type is EventType.WORK_NOT_COMPLETED:
        work.due_at = data["next_attempt_at"]
        work.error = data["error"]
        work.deadline_at = work.owner = None
    elif event.type in ENDS_WORK:
        work.due_at = work.deadline_at = work.owner = None
        work.result = data.get("result")
        work.error = data.get("error")
        work.recorded_at = event.at


def evolve_step(step: StepRun, event: Event) -> None:
    """Apply an event of the step, or the end of one of its work items, to a step in a flow."""
    status = STEP_STATUS_OF.get(event.type)
    if status is not None:
        check_step_move(step.status, status)
        step.status = status
        step.finished_at = event.at
    elif event.type in ENDS_WORK:
        if step.status in FINAL_STEPS:
            raise IllegalMove(f"an item ended in a step that is {step.status} already")
        step.open_items -= 1
        if event.type is EventType.WORK_FAILED:
            step.failed_items += 1


def evolve_flow(flow: Flow, event: Event) -> None:
    """Apply an event of the flow, or the end of one of its steps, to a flow."""
    status = FLOW_STATUS_OF.get(event.type)
    if status is not None:
        check_flow_move(flow.status, status)
        flow.status = status
        flow.finished_at = event.at
        flow.error = event.data.get("error")
    elif event.type in ENDS_STEP:
        flow.open_steps -= 1
        outputs = event.data.get("outputs")
        if outputs:
            flow.outputs = {**outputs, **flow.outputs}  # the first outcome of a value wins
