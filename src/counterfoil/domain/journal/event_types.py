"""The types of events, and the state that each of them leads to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from counterfoil.domain.states import ApprovalStatus, FlowStatus, StepStatus, WorkStatus


class EventType(StrEnum):
    FLOW_STARTED = "flow_started"
    FLOW_COMPLETED = "flow_completed"
    FLOW_FAILED = "flow_failed"
    FLOW_CANCELLED = "flow_cancelled"
    FLOW_COMPENSATING = "flow_compensating"
    FLOW_REDRIVEN = "flow_redriven"
    STEP_WAITING = "step_waiting"
    STEP_ADDED = "step_added"
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
    WORK_GRANTED = "work_granted"
    WORK_HELD = "work_held"
    WORK_CLEARED = "work_cleared"
    WORK_DISPATCHED = "work_dispatched"
    WORK_ACKNOWLEDGED = "work_acknowledged"
    WORK_HEARTBEAT = "work_heartbeat"
    WORK_POSTPONED = "work_postponed"
    WORK_NOT_COMPLETED = "work_not_completed"
    WORK_RESUMED = "work_resumed"
    WORK_PROBED = "work_probed"
    WORK_RECONCILED = "work_reconciled"
    DEDUP_WAIT = "dedup_wait"
    DEDUP_READY = "dedup_ready"
    DEDUP_UNKNOWN = "dedup_unknown"
    DEDUP_HIT = "dedup_hit"
    HOOK_EXPECTED = "hook_expected"
    HOOK_QUEUED = "hook_queued"
    HOOK_REGISTERED = "hook_registered"
    HOOK_RECEIVED = "hook_received"
    HOOK_TIMED_OUT = "hook_timed_out"
    WORK_SUCCEEDED = "work_succeeded"
    WORK_FAILED = "work_failed"
    WORK_CANCELLED = "work_cancelled"
    GATE_DECIDED = "gate_decided"
    GATE_REPLAYED = "gate_replayed"
    CHECKPOINT_RESUMED = "checkpoint_resumed"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_REVIEWED = "approval_reviewed"
    APPROVAL_APPROVED = "approval_approved"
    APPROVAL_REJECTED = "approval_rejected"
    APPROVAL_EXPIRED = "approval_expired"
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
    journaled: bool = True
    """False: the event changes its records, but the journal leaves it out (heartbeats only, see ``work.beat``)."""


WORK_STATUS_OF: dict[EventType, WorkStatus] = {
    EventType.WORK_DISPATCHED: WorkStatus.ACTIVE,
    EventType.WORK_DELEGATED: WorkStatus.ACTIVE,
    EventType.WORK_GRANTED: WorkStatus.ACTIVE,
    EventType.WORK_HELD: WorkStatus.HELD,
    EventType.WORK_CLEARED: WorkStatus.PENDING,
    EventType.WORK_NOT_COMPLETED: WorkStatus.NOT_COMPLETED,
    EventType.WORK_RESUMED: WorkStatus.ACTIVE,
    EventType.DEDUP_UNKNOWN: WorkStatus.NOT_COMPLETED,
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
APPROVAL_STATUS_OF: dict[EventType, ApprovalStatus] = {
    EventType.APPROVAL_APPROVED: ApprovalStatus.APPROVED,
    EventType.APPROVAL_REJECTED: ApprovalStatus.REJECTED,
    EventType.APPROVAL_EXPIRED: ApprovalStatus.EXPIRED,
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
"""The compensation state of a step, by the event that leads to it. Initially ``pending``; given up: ``cancelled``."""
