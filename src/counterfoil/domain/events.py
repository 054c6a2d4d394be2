"""The journal: every change is an event, and applying an event is the only way that a record changes.

``evolve_*`` serve the live engine and the doctor alike: what the journal tells is what the tables hold, because
both come from the same functions. A status is only ever changed through the transition tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

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
    FLOW_COMPENSATING = "flow_compensating"
    FLOW_REDRIVEN = "flow_redriven"
    STEP_WAITING = "step_waiting"
    STEP_STARTED = "step_started"
    STEP_COMPLETED = "step_completed"
    STEP_FAILED = "step_failed"
    STEP_SKIPPED = "step_skipped"
    STEP_CANCELLED = "step_cancelled"
    STEP_REDRIVEN = "step_redriven"
    STEP_COMPENSATING = "step_compensating"
    STEP_COMPENSATED = "step_compensated"
    STEP_NOT_COMPENSATED = "step_not_compensated"
    WORK_CREATED = "work_created"
    WORK_RELEASED = "work_released"
    WORK_DELEGATED = "work_delegated"
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


def step_event(step: StepRun, event_type: EventType, now: int, data: dict[str, Any]) -> Event:
    return Event(event_type, now, step.flow_id, step.step_id, data=data)


WORK_STATUS_OF: dict[EventType, WorkStatus] = {
    EventType.WORK_DISPATCHED: WorkStatus.ACTIVE,
    EventType.WORK_DELEGATED: WorkStatus.ACTIVE,
    EventType.WORK_NOT_COMPLETED: WorkStatus.NOT_COMPLETED,
    EventType.WORK_SUCCEEDED: WorkStatus.SUCCEEDED,
    EventType.WORK_FAILED: WorkStatus.FAILED,
    EventType.WORK_CANCELLED: WorkStatus.CANCELLED,
}
STEP_STATUS_OF: dict[EventType, StepStatus] = {
    EventType.STEP_STARTED: StepStatus.ACTIVE,
    EventType.STEP_COMPLETED: StepStatus.COMPLETED,
    EventType.STEP_FAILED: StepStatus.FAILED,
    EventType.STEP_SKIPPED: StepStatus.SKIPPED,
    EventType.STEP_CANCELLED: StepStatus.CANCELLED,
    EventType.STEP_REDRIVEN: StepStatus.PENDING,
}
FLOW_STATUS_OF: dict[EventType, FlowStatus] = {
    EventType.FLOW_COMPLETED: FlowStatus.COMPLETED,
    EventType.FLOW_FAILED: FlowStatus.FAILED,
    EventType.FLOW_CANCELLED: FlowStatus.CANCELLED,
    EventType.FLOW_COMPENSATING: FlowStatus.COMPENSATING,
    EventType.FLOW_REDRIVEN: FlowStatus.ACTIVE,
}
ENDS_WORK = frozenset({EventType.WORK_SUCCEEDED, EventType.WORK_FAILED, EventType.WORK_CANCELLED})
ENDS_STEP = frozenset(
    {EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_SKIPPED, EventType.STEP_CANCELLED}
)
ENDS_FLOW = frozenset({EventType.FLOW_COMPLETED, EventType.FLOW_FAILED, EventType.FLOW_CANCELLED})
UNDOING_OF: dict[EventType, str] = {
    EventType.STEP_COMPENSATING: "active",
    EventType.STEP_COMPENSATED: "completed",
    EventType.STEP_NOT_COMPENSATED: "failed",
}
"""How far the undoing of a step is, by what brought it there. Before: ``pending``; given up: ``cancelled``."""


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
        due_at=None if data.get("waits") else event.at,
        arguments=data.get("arguments"),
        redrive_of=data.get("redrive_of"),
        undoes=data.get("undoes"),
    )


def steps_from(event: Event) -> list[StepRun]:
    """The steps that a ``flow_started`` event brings into a flow, in the order of its plan."""
    goals = event.data["goals"]
    return [
        StepRun(event.flow_id, step_id, version, StepStatus.PENDING, step_id in goals)
        for step_id, version in event.data["steps"].items()
    ]


def flow_from(event: Event) -> Flow:
    """The flow that a ``flow_started`` event brings into being."""
    return Flow(
        flow_id=event.flow_id,
        status=FlowStatus.ACTIVE,
        created_at=event.at,
        open_steps=len(event.data["steps"]),
        plan=event.data.get("plan"),
        parent=event.data.get("parent"),
        deadline_at=event.data.get("deadline_at"),
    )


def evolve_work(work: Work, event: Event) -> None:
    """Apply one event to a work item. Every event of a work item but its creation passes here."""
    status = WORK_STATUS_OF.get(event.type)
    if status is not None:
        check_work_move(work.status, status)
        work.status = status
    _EVOLVE_WORK[event.type](work, event)


def _dispatched(work: Work, event: Event) -> None:
    data = event.data
    work.attempt = event.attempt or 0
    work.sent_at = event.at
    if work.first_sent_at is None:
        work.first_sent_at = event.at
    work.owner = data["owner"]
    work.deadline_at = data["deadline_at"]
    work.due_at = data["due_at"]
    work.acknowledged_at = None
    work.error = None


def _delegated(work: Work, event: Event) -> None:
    work.attempt = 1
    work.sent_at = work.first_sent_at = event.at
    work.due_at = None  # the clocks of the other flow run now
    work.child_flow_id = event.data["child_flow_id"]


def _released(work: Work, event: Event) -> None:
    work.due_at = event.at


def _acknowledged(work: Work, event: Event) -> None:
    work.acknowledged_at = event.at
    work.owner = None


def _alive(work: Work, event: Event) -> None:
    data = event.data
    if data["progress"] is not None:
        work.progress = data["progress"]
    if data["message"] is not None:
        work.message = data["message"]
    if data["deadline_at"] is not None:
        work.deadline_at = work.due_at = data["deadline_at"]


def _postponed(work: Work, event: Event) -> None:
    data = event.data
    work.due_at = data["next_attempt_at"]
    work.error = data["error"]


def _not_completed(work: Work, event: Event) -> None:
    _postponed(work, event)
    work.deadline_at = work.owner = None


def _ended(work: Work, event: Event) -> None:
    data = event.data
    work.due_at = work.deadline_at = work.owner = None
    work.result = data.get("result")
    work.error = data.get("error")
    work.recorded_at = event.at


_EVOLVE_WORK: dict[EventType, Callable[[Work, Event], None]] = {
    EventType.WORK_DISPATCHED: _dispatched,
    EventType.WORK_DELEGATED: _delegated,
    EventType.WORK_RELEASED: _released,
    EventType.WORK_ACKNOWLEDGED: _acknowledged,
    EventType.WORK_HEARTBEAT: _alive,
    EventType.WORK_POSTPONED: _postponed,
    EventType.WORK_NOT_COMPLETED: _not_completed,
    **dict.fromkeys(ENDS_WORK, _ended),
}


def evolve_step(step: StepRun, event: Event) -> None:
    """Apply an event of the step, or one of its work items that counts for it, to a step in a flow."""
    kind, data = event.type, event.data
    status = STEP_STATUS_OF.get(kind)
    if status is not None:
        check_step_move(step.status, status)
        step.status = status
        step.ready_at = step.due_at = None
        if kind in ENDS_STEP:
            step.finished_at = event.at
            step.outputs = data.get("outputs") or None
            step.error = data.get("error")
        elif kind is EventType.STEP_STARTED:
            step.items = data["items"]
            step.open_items = data.get("open", data["items"])
            step.released = data.get("released")
            step.waiting_items = data.get("waiting", 0)
            step.started_at = event.at
        elif kind is EventType.STEP_REDRIVEN:
            step.items = step.open_items = step.failed_items = step.waiting_items = 0
            step.started_at = step.finished_at = step.released = step.outputs = step.error = None
            step.redrives += 1
    elif kind in ENDS_WORK:
        if step.status in FINAL_STEPS:
            raise IllegalMove(f"an item ended in a step that is {step.status} already")
        step.open_items -= 1
        if kind is EventType.WORK_FAILED:
            step.failed_items += 1
    elif kind is EventType.STEP_WAITING:
        step.ready_at, step.due_at = data["ready_at"], data["until"]
    elif kind is EventType.WORK_RELEASED:
        step.released = data["item"]
        step.waiting_items -= 1


def evolve_flow(flow: Flow, event: Event) -> None:
    """Apply an event of the flow, or what counts for it of its steps and of the items that undo them, to a flow."""
    kind, data = event.type, event.data
    status = FLOW_STATUS_OF.get(kind)
    if status is not None:
        check_flow_move(flow.status, status)
        flow.status = status
        flow.error = data.get("error")
        flow.deadline_at = data.get("deadline_at")
        flow.finished_at = event.at if kind in ENDS_FLOW else None
        if kind in ENDS_FLOW:
            if flow.compensation is not None:
                flow.compensation = _given_up(flow.compensation)
        elif kind is EventType.FLOW_COMPENSATING:
            steps = [{"step_id": step_id, "status": "pending", "open": 0, "failed": 0} for step_id in data["steps"]]
            flow.compensation = {"ending": data["ending"], "steps": steps}
        elif kind is EventType.FLOW_REDRIVEN:
            flow.compensation = None
            flow.parent = data.get("parent", flow.parent)
            flow.redrives += 1
    elif kind in ENDS_STEP:
        flow.open_steps -= 1
    elif kind is EventType.STEP_REDRIVEN:
        flow.open_steps += 1
    else:
        flow.compensation = _undone_further(flow.compensation or {"steps": []}, event)


def _given_up(compensation: dict[str, Any]) -> dict[str, Any]:
    """The flow has ended: what is not undone by now never will be."""
    steps = [
        {**step, "status": "cancelled"} if step["status"] in ("pending", "active") else step
        for step in compensation["steps"]
    ]
    return {**compensation, "steps": steps}


def _undone_further(compensation: dict[str, Any], event: Event) -> dict[str, Any]:
    steps = []
    for step in compensation["steps"]:
        changed = step
        if step["step_id"] == event.step_id:
            if event.type in ENDS_WORK:
                failed = step["failed"] + (event.type is EventType.WORK_FAILED)
                changed = {**step, "open": step["open"] - 1, "failed": failed}
            else:
                changed = {**step, "status": UNDOING_OF[event.type], "open": event.data.get("items", 0)}
        steps.append(changed)
    return {**compensation, "steps": steps}


class Drafts(Protocol):
    """Records that may be changed, and room for new ones: a batch's in the live engine, the told ones in the doctor."""

    def draft_work(self, work_id: str) -> Work: ...
    def draft_step(self, flow_id: str, step_id: str) -> StepRun: ...
    def draft_flow(self, flow_id: str) -> Flow: ...
    def create_work(self, work: Work) -> None: ...
    def create_flow(self, flow: Flow, steps: list[StepRun]) -> None: ...


def apply(event: Event, drafts: Drafts) -> None:
    """Change every record that an event concerns."""
    _APPLY[event.type](event, drafts)


def _to_work(event: Event, drafts: Drafts) -> None:
    evolve_work(drafts.draft_work(event.work_id or ""), event)


def _to_work_and_step(event: Event, drafts: Drafts) -> None:
    _to_work(event, drafts)
    _to_step(event, drafts)


def _to_ending_work(event: Event, drafts: Drafts) -> None:
    """The end of an item counts in its step, that of one which undoes another in the flow's compensation."""
    work = drafts.draft_work(event.work_id or "")
    evolve_work(work, event)
    if work.undoes is None:
        evolve_step(drafts.draft_step(event.flow_id, event.step_id or ""), event)
    else:
        evolve_flow(drafts.draft_flow(event.flow_id), event)


def _to_step(event: Event, drafts: Drafts) -> None:
    evolve_step(drafts.draft_step(event.flow_id, event.step_id or ""), event)


def _to_step_and_flow(event: Event, drafts: Drafts) -> None:
    evolve_step(drafts.draft_step(event.flow_id, event.step_id or ""), event)
    evolve_flow(drafts.draft_flow(event.flow_id), event)


def _to_flow(event: Event, drafts: Drafts) -> None:
    evolve_flow(drafts.draft_flow(event.flow_id), event)


def _new_work(event: Event, drafts: Drafts) -> None:
    drafts.create_work(work_from(event))


def _new_flow(event: Event, drafts: Drafts) -> None:
    drafts.create_flow(flow_from(event), steps_from(event))


def _nothing(event: Event, drafts: Drafts) -> None:
    """It changes no record: the journal alone tells of it."""


_APPLY: dict[EventType, Callable[[Event, Drafts], None]] = {
    EventType.FLOW_STARTED: _new_flow,
    EventType.WORK_CREATED: _new_work,
    EventType.WORK_DISPATCHED: _to_work,
    EventType.WORK_DELEGATED: _to_work,
    EventType.WORK_ACKNOWLEDGED: _to_work,
    EventType.WORK_HEARTBEAT: _to_work,
    EventType.WORK_POSTPONED: _to_work,
    EventType.WORK_NOT_COMPLETED: _to_work,
    EventType.WORK_RELEASED: _to_work_and_step,
    EventType.STEP_WAITING: _to_step,
    EventType.STEP_STARTED: _to_step,
    EventType.STEP_REDRIVEN: _to_step_and_flow,
    EventType.CANCEL_DELIVERED: _nothing,
    EventType.CANCEL_UNDELIVERED: _nothing,
    **dict.fromkeys(ENDS_WORK, _to_ending_work),
    **dict.fromkeys(ENDS_STEP, _to_step_and_flow),
    **dict.fromkeys(UNDOING_OF, _to_flow),
    **dict.fromkeys(FLOW_STATUS_OF, _to_flow),
}
