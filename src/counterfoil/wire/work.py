"""Work items: one unit of a step in a flow, its attempts, and what a worker gets back for a report."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from typing_extensions import TypedDict

from counterfoil.domain.states import WorkStatus
from counterfoil.wire.errors import Failure
from counterfoil.wire.hooks import HookOfWork
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
    hold: Annotated[
        str | None,
        described(
            "`reconcile` or `unsafe_once`: its outcome is unknown and must be settled; `dedup`: it waits for a result "
            "of an equal work item; otherwise the approval that it waits for, or was approved by"
        ),
    ]
    waits_for: Annotated[
        str | None,
        described("with `hold` `dedup`: the work item with the same key whose result it waits for"),
    ]
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
    hook: NotRequired[Annotated[HookOfWork, described("what a hook waits for; only where a flow or one item is shown")]]


class WorkPage(TypedDict):
    work: list[WorkDocument]
    next_cursor: str | None


class AttemptDocument(TypedDict):
    """One dispatch of a work item, or one attempt granted to an agent."""

    attempt: int
    planned_at: Annotated[Time, described("when it was decided that this attempt follows")]
    approved_at: Annotated[Time | None, described("when its approval was given, if it needed one")]
    started_at: Annotated[Time, described("when its intent was committed: nothing is sent before")]
    sent_at: Annotated[Time, described("the same as `started_at`")]
    acknowledged_at: Time | None
    finished_at: Time | None
    ended_at: Annotated[Time | None, described("the same as `finished_at`")]
    outcome: Annotated[str, OneOf(Literal["waiting", "not_completed", "succeeded", "failed", "cancelled"])]
    delivery: Annotated[
        str | None,
        described("what is known of the delivery: `delivered`, `not_delivered` or `unknown`; null: nothing yet"),
    ]
    cause: Annotated[str | None, described("why it may have had an effect though it has no outcome")]
    error: Failure | None
    next_attempt_at: Time | None


class WorkDetail(WorkDocument):
    """A work item with its attempts."""

    attempts: Annotated[list[AttemptDocument], described("every dispatch, oldest first")]
    dedup_of: Annotated[str | None, described("the work item with the same key whose result was reused")]
    probed: Annotated[bool, described("whether the outcome was found out by the `status_url` of the step")]


class WorkRedriven(TypedDict):
    work_id: Annotated[str, described("the new work item")]
    redrive_of: Annotated[str, described("the failed work item that it replaces")]
    flow_id: str


class WorkRedrivenByFilter(TypedDict):
    matched: Annotated[int, described("number of failed work items that match")]
    redriven: Annotated[int, described("number of those that were replaced")]
    flows: Annotated[list[str], described("the flows of the matching work items")]


class ReportTaken(TypedDict):
    """The report is durable, or has no effect: a repeat, or a callback that its step ignores."""

    verdict: Annotated[str, OneOf(Literal["accepted", "duplicate", "stale", "ignored"])]
    status: WorkState
    flow_id: str
    step_id: str
    recorded_at: Time | None
    challenge: NotRequired[
        Annotated[str, described("what a vendor wants back that verifies the URL: see `accept.signature.challenge`")]
    ]


class HeartbeatTaken(TypedDict):
    deadline_at: Time | None
    cancel_requested: bool


class ReceiptState(TypedDict):
    status: WorkState
    attempt: int
    deadline_at: Time | None
    recorded_at: Time | None
    cancel_requested: bool
