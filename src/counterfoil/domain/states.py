"""The states of records and the allowed transitions between them, as data.

Every transition goes through these tables: the decisions consult them, the SQL guards repeat them (a test compares the
two), and the diagrams in the docs are drawn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class WorkStatus(StrEnum):
    PENDING = "pending"
    HELD = "held"
    ACTIVE = "active"
    NOT_COMPLETED = "not_completed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepStatus(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


class FlowStatus(StrEnum):
    ACTIVE = "active"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ApprovalStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    VOID = "void"


class HookStatus(StrEnum):
    """The states of a hook. Its work item, if it has one, is active from ``queued`` or ``waiting`` until it ends."""

    EXPECTED = "expected"
    """The step has not started; payloads are buffered."""
    QUEUED = "queued"
    """Another hook owns the token."""
    WAITING = "waiting"
    """It owns the token."""
    ENDED = "ended"


class Decision(StrEnum):
    """The answers of the gate, from weakest to strongest: a later one overrides those before it."""

    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    BLOCK = "block"


WORK_MOVES: dict[WorkStatus, frozenset[WorkStatus]] = {
    WorkStatus.PENDING: frozenset(
        {
            WorkStatus.ACTIVE,
            WorkStatus.HELD,
            WorkStatus.NOT_COMPLETED,
            WorkStatus.SUCCEEDED,
            WorkStatus.FAILED,
            WorkStatus.CANCELLED,
        }
    ),
    WorkStatus.HELD: frozenset({WorkStatus.PENDING, WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.CANCELLED}),
    WorkStatus.ACTIVE: frozenset(
        {WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.NOT_COMPLETED, WorkStatus.CANCELLED}
    ),
    WorkStatus.NOT_COMPLETED: frozenset(
        {WorkStatus.ACTIVE, WorkStatus.HELD, WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.CANCELLED}
    ),
    WorkStatus.SUCCEEDED: frozenset(),
    WorkStatus.FAILED: frozenset(),
    WorkStatus.CANCELLED: frozenset(),
}

STEP_MOVES: dict[StepStatus, frozenset[StepStatus]] = {
    StepStatus.PENDING: frozenset({StepStatus.ACTIVE, StepStatus.SKIPPED, StepStatus.CANCELLED}),
    StepStatus.ACTIVE: frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED}),
    StepStatus.COMPLETED: frozenset(),
    StepStatus.FAILED: frozenset(),
    StepStatus.SKIPPED: frozenset(),
    StepStatus.CANCELLED: frozenset(),
}
REDRIVEN_STEPS = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED})
"""The step states that redrive, and nothing else, may change to pending: not completed, or compensated since."""

FLOW_MOVES: dict[FlowStatus, frozenset[FlowStatus]] = {
    FlowStatus.ACTIVE: frozenset(
        {FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.CANCELLED, FlowStatus.COMPENSATING}
    ),
    FlowStatus.COMPENSATING: frozenset({FlowStatus.FAILED, FlowStatus.CANCELLED}),
    FlowStatus.COMPLETED: frozenset(),
    FlowStatus.FAILED: frozenset(),
    FlowStatus.CANCELLED: frozenset(),
}
REDRIVEN_FLOWS = frozenset({FlowStatus.FAILED, FlowStatus.CANCELLED})
"""The flow states that redrive, and nothing else, may change to active; cancelled: only a sub-flow of a failed flow,
and a workflow that is resumed from a checkpoint."""

APPROVAL_MOVES: dict[ApprovalStatus, frozenset[ApprovalStatus]] = {
    ApprovalStatus.PENDING: frozenset(
        {ApprovalStatus.APPROVED, ApprovalStatus.REJECTED, ApprovalStatus.EXPIRED, ApprovalStatus.VOID}
    ),
    ApprovalStatus.APPROVED: frozenset(),
    ApprovalStatus.REJECTED: frozenset(),
    ApprovalStatus.EXPIRED: frozenset(),
    ApprovalStatus.VOID: frozenset(),
}

HOOK_MOVES: dict[HookStatus, frozenset[HookStatus]] = {
    HookStatus.EXPECTED: frozenset({HookStatus.QUEUED, HookStatus.WAITING, HookStatus.ENDED}),
    HookStatus.QUEUED: frozenset({HookStatus.WAITING, HookStatus.ENDED}),
    HookStatus.WAITING: frozenset({HookStatus.ENDED}),
    HookStatus.ENDED: frozenset(),
}

FINAL_WORK = frozenset({WorkStatus.SUCCEEDED, WorkStatus.FAILED, WorkStatus.CANCELLED})
OPEN_WORK = frozenset(WorkStatus) - FINAL_WORK
FINAL_STEPS = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED, StepStatus.CANCELLED})
OPEN_STEPS = frozenset(StepStatus) - FINAL_STEPS
FINAL_FLOWS = frozenset({FlowStatus.COMPLETED, FlowStatus.FAILED, FlowStatus.CANCELLED})


class IllegalMove(AssertionError):
    """A decision made a transition that the table does not have: a bug of the engine, never a fault of a client."""


def check_work_move(before: WorkStatus, after: WorkStatus) -> None:
    if after not in WORK_MOVES[before]:
        raise IllegalMove(f"work: {before} -> {after}")


def check_step_move(before: StepStatus, after: StepStatus) -> None:
    if after not in STEP_MOVES[before] and not (after is StepStatus.PENDING and before in REDRIVEN_STEPS):
        raise IllegalMove(f"step: {before} -> {after}")


def check_flow_move(before: FlowStatus, after: FlowStatus) -> None:
    if after not in FLOW_MOVES[before] and not (after is FlowStatus.ACTIVE and before in REDRIVEN_FLOWS):
        raise IllegalMove(f"flow: {before} -> {after}")


def check_approval_move(before: ApprovalStatus, after: ApprovalStatus) -> None:
    if after not in APPROVAL_MOVES[before]:
        raise IllegalMove(f"approval: {before} -> {after}")


def check_hook_move(before: HookStatus, after: HookStatus) -> None:
    if after not in HOOK_MOVES[before]:
        raise IllegalMove(f"hook: {before} -> {after}")


_Status = TypeVar("_Status", bound=StrEnum)


def reachable(moves: Mapping[_Status, frozenset[_Status]]) -> dict[_Status, frozenset[_Status]]:
    """The states reachable by one or several transitions: a batch may make several, and writes only the last state."""
    found = {before: set(after) for before, after in moves.items()}
    for middle in moves:  # after each round, all paths over the states so far are known
        for after in found.values():
            if middle in after:
                after.update(found[middle])
    return {before: frozenset(after) for before, after in found.items()}
