"""The journal: every change is an event, and applying an event is the only way that a record changes.

``apply`` serves the live engine and the doctor alike: what the journal tells is what the tables hold, because both
come from the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from counterfoil.domain.journal.event_types import (
    APPROVAL_STATUS_OF,
    ENDS_FLOW,
    ENDS_STEP,
    ENDS_WORK,
    FLOW_STATUS_OF,
    UNDOING_OF,
    Event,
    EventType,
)
from counterfoil.domain.journal.evolving import evolve_flow, evolve_step, evolve_work, flow_from, steps_from, work_from
from counterfoil.domain.journal.evolving_gate import approval_from, evolve_approval, evolve_gate, gate_from
from counterfoil.domain.records import GATED, Approval, Flow, Gate, StepRun, Work
from counterfoil.domain.states import ApprovalStatus, StepStatus, WorkStatus

__all__ = ["APPLY", "ENDS_FLOW", "ENDS_STEP", "ENDS_WORK", "Drafts", "Event", "EventType", "apply", "step_event"]


def step_event(step: StepRun, event_type: EventType, now: int, data: dict[str, Any]) -> Event:
    return Event(event_type, now, step.flow_id, step.step_id, None, None, data)


class Drafts(Protocol):
    """Records that may be changed, and room for new ones: a batch's in the live engine, the told ones in the doctor."""

    def draft_work(self, work_id: str) -> Work: ...
    def draft_step(self, flow_id: str, step_id: str) -> StepRun: ...
    def draft_flow(self, flow_id: str) -> Flow: ...
    def create_work(self, work: Work) -> None: ...
    def create_flow(self, flow: Flow, steps: list[StepRun]) -> None: ...
    def create_step(self, step: StepRun) -> None: ...
    def draft_gate(self, flow_id: str, step_id: str) -> Gate: ...
    def create_gate(self, gate: Gate) -> None: ...
    def draft_approval(self, approval_id: str) -> Approval: ...
    def create_approval(self, approval: Approval) -> None: ...


def apply(event: Event, drafts: Drafts) -> None:
    """Change every record that an event concerns."""
    APPLY[event.type](event, drafts)


def _to_work(event: Event, drafts: Drafts) -> None:
    evolve_work(drafts.draft_work(event.work_id or ""), event)


def _to_work_and_step(event: Event, drafts: Drafts) -> None:
    _to_work(event, drafts)
    _to_step(event, drafts)


def _to_ending_work(event: Event, drafts: Drafts) -> None:
    """The end of an item counts in its step, that of one which undoes another in the flow's compensation.

    What people were asked about it is void then, unless they have decided: that stands, and is not touched.
    """
    work = drafts.draft_work(event.work_id or "")
    if work.hold is not None and work.status is WorkStatus.HELD:
        approval = drafts.draft_approval(work.hold)
        if approval.status is ApprovalStatus.PENDING:
            evolve_approval(approval, event)
    evolve_work(work, event)
    if work.version == GATED and event.type is EventType.WORK_SUCCEEDED:
        evolve_gate(drafts.draft_gate(work.flow_id, work.step_id), event)
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


def _new_step(event: Event, drafts: Drafts) -> None:
    """An agent has asked for a step that its workflow did not have."""
    drafts.create_step(StepRun(event.flow_id, event.step_id or "", GATED, StepStatus.PENDING, goal=False))
    _to_flow(event, drafts)


def _to_gate(event: Event, drafts: Drafts) -> None:
    if event.data["first"]:
        drafts.create_gate(gate_from(event))
    else:
        evolve_gate(drafts.draft_gate(event.flow_id, event.step_id or ""), event)


def _new_approval(event: Event, drafts: Drafts) -> None:
    drafts.create_approval(approval_from(event))


def _to_approval(event: Event, drafts: Drafts) -> None:
    """What people decide counts for the gate that asked them as soon as they have."""
    approval = drafts.draft_approval(event.data["approval_id"])
    evolve_approval(approval, event)
    if event.type in APPROVAL_STATUS_OF and event.data["gated"]:
        evolve_gate(drafts.draft_gate(event.flow_id, event.step_id or ""), event)


def _nothing(event: Event, drafts: Drafts) -> None:
    """It changes no record: the journal alone tells of it."""


APPLY: dict[EventType, Callable[[Event, Drafts], None]] = {
    EventType.FLOW_STARTED: _new_flow,
    EventType.WORK_CREATED: _new_work,
    EventType.WORK_DISPATCHED: _to_work,
    EventType.WORK_DELEGATED: _to_work,
    EventType.WORK_GRANTED: _to_work,
    EventType.WORK_HELD: _to_work,
    EventType.WORK_CLEARED: _to_work,
    EventType.WORK_ACKNOWLEDGED: _to_work,
    EventType.WORK_HEARTBEAT: _to_work,
    EventType.WORK_POSTPONED: _to_work,
    EventType.WORK_NOT_COMPLETED: _to_work,
    EventType.WORK_RELEASED: _to_work_and_step,
    EventType.STEP_ADDED: _new_step,
    EventType.STEP_WAITING: _to_step,
    EventType.STEP_STARTED: _to_step,
    EventType.STEP_REDRIVEN: _to_step_and_flow,
    EventType.GATE_DECIDED: _to_gate,
    EventType.GATE_REPLAYED: _nothing,
    EventType.APPROVAL_REQUESTED: _new_approval,
    EventType.APPROVAL_REVIEWED: _to_approval,
    EventType.CANCEL_DELIVERED: _nothing,
    EventType.CANCEL_UNDELIVERED: _nothing,
    **dict.fromkeys(APPROVAL_STATUS_OF, _to_approval),
    **dict.fromkeys(ENDS_WORK, _to_ending_work),
    **dict.fromkeys(ENDS_STEP, _to_step_and_flow),
    **dict.fromkeys(UNDOING_OF, _to_flow),
    **dict.fromkeys(FLOW_STATUS_OF, _to_flow),
}
"""What ``apply`` does, by the type of the event."""
