"""Work items: one unit of a step in a flow, its attempts, and what a worker gets back for a report."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from counterfoil.domain.states import WorkStatus
from counterfoil.wire.errors import Failure
from counterfoil.wire.schema import OneOf, Time, Values, described

WorkState = Annotated[str, OneOf(WorkStatus)]


class WorkDocument(TypedDict):
    """One unit of a step in a flow. Its receipt token is never shown."""

    work_id: str
    flow_id: str
    step_id: str
    item: Annotated[int, described("its index among the items of a step that fans out")]
    status: WorkState
    attempt: int
    next_attempt_at: Time | None
    deadline_at: Time | None
    hold: Annotated[str | None, described("the approval that the work item waits for, or was approved by")]
    progress: float | None
    message: str | None
    outputs: Values | None
    error: Failure | None
    idempotency_key: str
    redrive_of: Annotated[str | None, described("the failed work item that it replaces")]
    undoes: Annotated[str | None, described("the work item that it compensates")]
    child_flow_id: Annotated[str | None, described("the sub-flow, if its step is of kind `flow`")]
    created_at: Time
    sent_at: Time | None
    acknowledged_at: Time | None
    recorded_at: Time | None


class WorkPage(TypedDict):
    work: list[WorkDocument]
    next_cursor: str | None


class AttemptDocument(TypedDict):
    """One dispatch of a work item, or one attempt granted to an agent."""

    attempt: int
    sent_at: Time
    acknowledged_at: Time | None
    ended_at: Time | None
    outcome: Annotated[str, OneOf(Literal["waiting", "not_completed", "succeeded", "failed", "cancelled"])]
    delivery: Annotated[str | None, described("what is known of the delivery: answered, not_delivered or unknown")]
    error: Failure | None
    next_attempt_at: Time | None


class WorkDetail(WorkDocument):
    """A work item with its attempts."""

    attempts: Annotated[list[AttemptDocument], described("every dispatch, oldest first")]


class WorkRedriven(TypedDict):
    work_id: Annotated[str, described("the new work item")]
    redrive_of: Annotated[str, described("the failed work item that it replaces")]
    flow_id: str


class WorkRedrivenByFilter(TypedDict):
    matched: Annotated[int, described("number of failed work items that match")]
    redriven: Annotated[int, described("number of those that were replaced")]
    flows: Annotated[list[str], described("the flows of the matching work items")]


class ReportTaken(TypedDict):
    """The report is durable, or a repeat without effect."""

    verdict: Annotated[str, OneOf(Literal["accepted", "duplicate", "stale"])]
    status: WorkState
    flow_id: str
    step_id: str
    recorded_at: Time | None


class HeartbeatTaken(TypedDict):
    deadline_at: Time | None
    cancel_requested: bool


class ReceiptState(TypedDict):
    status: WorkState
    attempt: int
    deadline_at: Time | None
    recorded_at: Time | None
    cancel_requested: bool
