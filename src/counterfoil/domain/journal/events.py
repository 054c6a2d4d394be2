"""Applies events to records. Every change is an event, and applying an event is the only way to change a record.

The live engine and the doctor use the same ``apply``, so the journal and the tables always agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from counterfoil.domain.effects.policies import UNKNOWN_HOLDS
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
from counterfoil.domain.journal.evolving_hooks import evolve_hook, hook_from, hook_id_of
from counterfoil.domain.records import GATED, Approval, Flow, Gate, Hook, StepRun, Work
from counterfoil.domain.states import ApprovalStatus, StepStatus, WorkStatus

__all__ = ["APPLY", "ENDS_FLOW", "ENDS_STEP", "ENDS_WORK", "Drafts", "Event", "EventType", "apply", "step_event"]


def step_event(step: StepRun, event_type: EventType, now: int, data: dict[str, Any]) -> Event:
    return Event(event_type, now, step.flow_id, step.step_id, None, None, data)


class Drafts(Protocol):
    """Records to change or create: those of a batch in the engine, those of a replay in the doctor."""

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
    def open_reconciliation(self, event: Event) -> None:
        """The outcome of an item is unknown: it is asked for, or waits to be settled."""
        ...

    def close_reconciliation(self, event: Event) -> None:
        """The outcome is known, or the item goes on."""
        ...

    def release_key(self, work: Work, event: Event) -> None:
        """An item has ended: it no longer holds what it shares with other flows, a key or the token of a hook."""
        ...

    def find_hook(self, hook_id: str) -> Hook | None: ...
    def draft_hook(self, hook_id: str) -> Hook: ...
    def create_hook(self, hook: Hook) -> None: ...


def apply(event: Event, drafts: Drafts) -> None:
    """Change every record that an event concerns."""
    APPLY[event.type](event, drafts)


def _to_work(event: Event, drafts: Drafts) -> None:
    evolve_work(drafts.draft_work(event.work_id or ""), event)


def _to_work_and_step(event: Event, drafts: Drafts) -> None:
    _to_work(event, drafts)
    _to_step(event, drafts)


def _to_ending_work(event: Event, drafts: Drafts) -> None:
    """The end of an item is counted by its step; that of a compensating item, by the flow's compensation.

    Its approval becomes void if it is still pending. One that was decided stays as it is.
    """
    work = drafts.draft_work(event.work_id or "")
    if work.hold is not None and work.status is WorkStatus.HELD:
        approval = drafts.draft_approval(work.hold)
        if approval.status is ApprovalStatus.PENDING:
            evolve_approval(approval, event)
    if work.hold in UNKNOWN_HOLDS and event.type is not EventType.WORK_CANCELLED:
        drafts.close_reconciliation(event)  # what was cancelled is still to be settled
    drafts.release_key(work, event)
    evolve_work(work, event)
    if work.version == GATED and event.type is EventType.WORK_SUCCEEDED:
        evolve_gate(drafts.draft_gate(work.flow_id, work.step_id), event)
    if work.undoes is None:
        evolve_step(drafts.draft_step(event.flow_id, event.step_id or ""), event)
    else:
        evolve_flow(drafts.draft_flow(event.flow_id), event)


def _to_work_given_back(event: Event, drafts: Drafts) -> None:
    _to_work(event, drafts)
    if event.data.get("hold") in UNKNOWN_HOLDS or event.data.get("probe_at") is not None:
        drafts.open_reconciliation(event)


def _to_work_going_on(event: Event, drafts: Drafts) -> None:
    """The outcome of the last attempt is no longer asked for."""
    work = drafts.draft_work(event.work_id or "")
    if work.hold in UNKNOWN_HOLDS or (work.status is WorkStatus.NOT_COMPLETED and work.due_at is None):
        drafts.close_reconciliation(event)
    evolve_work(work, event)


def _to_reconciled_work(event: Event, drafts: Drafts) -> None:
    """An item that was cancelled meanwhile stays as it is: what is final never changes."""
    drafts.close_reconciliation(event)
    if not event.data.get("cancelled"):
        _to_work(event, drafts)


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
    """An agent called the gate for a step that its workflow did not have yet."""
    drafts.create_step(StepRun(event.flow_id, event.step_id or "", GATED, StepStatus.PENDING, goal=False))
    _to_flow(event, drafts)


def _to_gate(event: Event, drafts: Drafts) -> None:
    if event.data["first"]:
        drafts.create_gate(gate_from(event))
    else:
        evolve_gate(drafts.draft_gate(event.flow_id, event.step_id or ""), event)


def _to_known_gate(event: Event, drafts: Drafts) -> None:
    evolve_gate(drafts.draft_gate(event.flow_id, event.step_id or ""), event)


def _new_approval(event: Event, drafts: Drafts) -> None:
    drafts.create_approval(approval_from(event))


def _to_approval(event: Event, drafts: Drafts) -> None:
    """A decision on an approval changes the approval and, for a step of a workflow, its gate."""
    approval = drafts.draft_approval(event.data["approval_id"])
    evolve_approval(approval, event)
    if event.type in APPROVAL_STATUS_OF and event.data["gated"]:
        evolve_gate(drafts.draft_gate(event.flow_id, event.step_id or ""), event)


def _new_hook(event: Event, drafts: Drafts) -> None:
    """A hook whose step has not started: payloads may come before."""
    drafts.create_hook(hook_from(event))


def _to_open_hook(event: Event, drafts: Drafts) -> None:
    """A hook step has started, or its hook has obtained its token. Its work item is active meanwhile."""
    hook_id = hook_id_of(event)
    if drafts.find_hook(hook_id) is None:
        drafts.create_hook(hook_from(event))
    else:
        evolve_hook(drafts.draft_hook(hook_id), event)
    _to_work(event, drafts)


def _to_hook(event: Event, drafts: Drafts) -> None:
    evolve_hook(drafts.draft_hook(hook_id_of(event)), event)


def _nothing(event: Event, drafts: Drafts) -> None:
    """The event changes no record and is only journaled."""


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
    EventType.WORK_POSTPONED: _to_work_going_on,
    EventType.WORK_NOT_COMPLETED: _to_work_given_back,
    EventType.WORK_RESUMED: _to_work_going_on,
    EventType.WORK_PROBED: _to_work,
    EventType.WORK_RECONCILED: _to_reconciled_work,
    EventType.DEDUP_WAIT: _to_work,
    EventType.DEDUP_READY: _to_work,
    EventType.DEDUP_UNKNOWN: _to_work_given_back,
    EventType.DEDUP_HIT: _to_work,
    EventType.WORK_RELEASED: _to_work_and_step,
    EventType.STEP_ADDED: _new_step,
    EventType.STEP_WAITING: _to_step,
    EventType.STEP_STARTED: _to_step,
    EventType.STEP_REDRIVEN: _to_step_and_flow,
    EventType.GATE_DECIDED: _to_gate,
    EventType.GATE_REPLAYED: _nothing,
    EventType.CHECKPOINT_RESUMED: _to_known_gate,
    EventType.APPROVAL_REQUESTED: _new_approval,
    EventType.APPROVAL_REVIEWED: _to_approval,
    EventType.HOOK_EXPECTED: _new_hook,
    EventType.HOOK_QUEUED: _to_open_hook,
    EventType.HOOK_REGISTERED: _to_open_hook,
    EventType.HOOK_RECEIVED: _to_hook,
    EventType.HOOK_TIMED_OUT: _nothing,
    EventType.CANCEL_DELIVERED: _nothing,
    EventType.CANCEL_UNDELIVERED: _nothing,
    **dict.fromkeys(APPROVAL_STATUS_OF, _to_approval),
    **dict.fromkeys(ENDS_WORK, _to_ending_work),
    **dict.fromkeys(ENDS_STEP, _to_step_and_flow),
    **dict.fromkeys(UNDOING_OF, _to_flow),
    **dict.fromkeys(FLOW_STATUS_OF, _to_flow),
}
"""What ``apply`` does, by event type."""
