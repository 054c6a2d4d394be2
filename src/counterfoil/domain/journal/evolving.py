"""How events change flows, steps and work items. A status changes only through the transition tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from counterfoil.domain.effects.policies import DEDUP, UNKNOWN_HOLDS
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
from counterfoil.domain.records import Flow, StepRun, Work
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


def work_from(event: Event) -> Work:
    """The work item that a ``work_created`` event creates."""
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
    """The steps that a ``flow_started`` event adds to a flow, in the order of its plan."""
    goals = event.data["goals"]
    return [
        StepRun(event.flow_id, step_id, version, StepStatus.PENDING, step_id in goals)
        for step_id, version in event.data["steps"].items()
    ]


def flow_from(event: Event) -> Flow:
    """The flow that a ``flow_started`` event creates."""
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
    """Apply one event to a work item: any event of an item except its creation."""
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
    work.hold = work.error = None


def _delegated(work: Work, event: Event) -> None:
    work.attempt = 1
    work.sent_at = work.first_sent_at = event.at
    work.due_at = None  # the deadlines of the sub-flow apply now
    work.child_flow_id = event.data["child_flow_id"]


def _granted(work: Work, event: Event) -> None:
    """An agent runs it, so no node owns the attempt."""
    work.attempt = event.attempt or 0
    work.sent_at = event.at
    if work.first_sent_at is None:
        work.first_sent_at = event.at
    work.deadline_at = work.due_at = event.data["deadline_at"]
    work.hold = work.error = None


def _held(work: Work, event: Event) -> None:
    work.hold = event.data["approval_id"]
    work.due_at = None


def _cleared(work: Work, event: Event) -> None:
    """The next attempt was approved: ``hold`` names the approval until the attempt is sent."""
    work.due_at = event.data["due_at"]


def _released(work: Work, event: Event) -> None:
    work.due_at = event.at


def _acknowledged(work: Work, event: Event) -> None:
    work.acknowledged_at = event.at
    work.owner = None


def _alive(work: Work, event: Event) -> None:
    data = event.data
    if data.get("taken"):
        work.acknowledged_at = event.at
        work.owner = None
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
    if work.hold in UNKNOWN_HOLDS:
        work.hold = None


def _not_completed(work: Work, event: Event) -> None:
    _postponed(work, event)
    work.deadline_at = work.owner = None
    work.hold = event.data.get("hold")
    if event.data.get("unsent"):
        work.attempt -= 1
        if work.attempt == 0:
            work.first_sent_at = None


def _resumed(work: Work, event: Event) -> None:
    data = event.data
    work.acknowledged_at = event.at
    work.deadline_at, work.due_at = data["deadline_at"], data["due_at"]
    work.hold = work.error = None


def _reconciled(work: Work, event: Event) -> None:
    work.hold = None
    work.due_at = event.data.get("next_attempt_at")


def _waits_for_key(work: Work, _: Event) -> None:
    work.hold, work.due_at = DEDUP, None


def _has_key(work: Work, event: Event) -> None:
    work.hold, work.due_at = None, event.at


def _found_result(work: Work, _: Event) -> None:
    """The item ends with the recorded result, by an event of its own."""
    work.hold = None


def _key_unknown(work: Work, event: Event) -> None:
    work.hold, work.due_at = event.data["hold"], None
    work.error = event.data["error"]


def _hook_opened(work: Work, event: Event) -> None:
    """Its hook has a token, or waits for it: in both cases the item waits, and its deadline counts."""
    if work.status is WorkStatus.ACTIVE:
        return
    check_work_move(work.status, WorkStatus.ACTIVE)
    work.status = WorkStatus.ACTIVE
    work.attempt = 1
    work.sent_at = work.first_sent_at = event.at
    work.deadline_at = work.due_at = event.data["deadline_at"]


def _probed(work: Work, event: Event) -> None:
    """An attempt that still runs gets more time, never less."""
    due_at, deadline_at = event.data.get("due_at"), event.data.get("deadline_at")
    if due_at is not None:
        work.due_at = max(work.due_at or 0, due_at)
    if deadline_at is not None:
        work.deadline_at = max(work.deadline_at or 0, deadline_at)


def _ended(work: Work, event: Event) -> None:
    data = event.data
    work.due_at = work.deadline_at = work.owner = work.hold = None
    work.result = data.get("result")
    work.error = data.get("error")
    work.recorded_at = event.at


_EVOLVE_WORK: dict[EventType, Callable[[Work, Event], None]] = {
    EventType.WORK_DISPATCHED: _dispatched,
    EventType.WORK_DELEGATED: _delegated,
    EventType.WORK_GRANTED: _granted,
    EventType.WORK_HELD: _held,
    EventType.WORK_CLEARED: _cleared,
    EventType.WORK_RELEASED: _released,
    EventType.WORK_ACKNOWLEDGED: _acknowledged,
    EventType.WORK_HEARTBEAT: _alive,
    EventType.WORK_POSTPONED: _postponed,
    EventType.WORK_NOT_COMPLETED: _not_completed,
    EventType.WORK_RESUMED: _resumed,
    EventType.WORK_PROBED: _probed,
    EventType.WORK_RECONCILED: _reconciled,
    EventType.DEDUP_WAIT: _waits_for_key,
    EventType.DEDUP_READY: _has_key,
    EventType.DEDUP_UNKNOWN: _key_unknown,
    EventType.DEDUP_HIT: _found_result,
    EventType.HOOK_QUEUED: _hook_opened,
    EventType.HOOK_REGISTERED: _hook_opened,
    **dict.fromkeys(ENDS_WORK, _ended),
}


def evolve_step(step: StepRun, event: Event) -> None:
    """Apply an event to a step in a flow: an event of the step, or one of its items that it counts."""
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
            raise IllegalMove(f"an item ended in a step that is already {step.status}")
        step.open_items -= 1
        if kind is EventType.WORK_FAILED:
            step.failed_items += 1
    elif kind is EventType.STEP_WAITING:
        step.ready_at, step.due_at = data["ready_at"], data["until"]
    elif kind is EventType.WORK_RELEASED:
        step.released = data["item"]
        step.waiting_items -= 1


def evolve_flow(flow: Flow, event: Event) -> None:
    """Apply an event to a flow: its own, one of its steps that it counts, or one of its compensating items."""
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
    elif kind in (EventType.STEP_REDRIVEN, EventType.STEP_ADDED):
        flow.open_steps += 1
    else:
        flow.compensation = _undone_further(flow.compensation or {"steps": []}, event)


def _given_up(compensation: dict[str, Any]) -> dict[str, Any]:
    """The flow has ended: steps that are not compensated by now never will be."""
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
