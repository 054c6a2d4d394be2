"""What the server answers: the JSON writer, and the shape of each document.

The engine makes the documents; the models say what a client may rely on, for the OpenAPI document and the tests.
They are open (``extra="allow"``): a field that is added later breaks nobody.
"""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from aiohttp import web
from multidict import CIMultiDict
from pydantic import BaseModel, ConfigDict, Field

from counterfoil.domain.journal.events import EventType
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus

_HEADERS = CIMultiDict(
    {
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Server": "counterfoil",
    }
)


def json_response(document: Any, status: int = 200) -> web.Response:
    """A JSON answer; the document may hold ``orjson.Fragment`` values."""
    return json_answer(json_text(document), status)


def json_answer(text: bytes, status: int = 200) -> web.Response:
    """The same for JSON text that is ready."""
    return web.Response(body=text, status=status, headers=_HEADERS)


def empty_response() -> web.Response:
    """204: done, and there is nothing to say."""
    headers = _HEADERS.copy()
    del headers["Content-Type"]
    return web.Response(status=204, headers=headers)


def json_text(document: Any) -> bytes:
    """JSON text of a document. Integers of more than 64 bits keep every digit, as they do on the way in.

    The second try also takes keys that are members of an enumeration; it costs more, so it is not the first.
    """
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:
        return orjson.dumps(_with_long_integers(document), option=orjson.OPT_NON_STR_KEYS)


def _with_long_integers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return orjson.Fragment(str(int(value)))
    if isinstance(value, dict):
        return {name: _with_long_integers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_long_integers(item) for item in value]
    return value


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-11-16T14:26:10.123Z"])]
Values = dict[str, Any]


class Document(BaseModel):
    """An answer of the engine."""

    model_config = ConfigDict(extra="allow")


class FieldError(Document):
    place: Annotated[str, Field(description="where it is, dotted", examples=["work.max_retries"])]
    message: Annotated[str, Field(examples=["Input should be greater than or equal to -1"])]


class ErrorContent(Document):
    code: Annotated[str, Field(description="stable, from a closed set", pattern=r"^[A-Z][A-Z0-9_]*$")]
    message: Annotated[str, Field(description="for people; its wording may change")]
    details: Annotated[Values, Field(description="for programs; `errors` lists each wrong place of a request")]


class ErrorAnswer(Document):
    """Every error, whatever went wrong."""

    error: ErrorContent


class StepDocument(Document):
    """A registered step: its definition, and what it was registered as."""

    step_id: str
    kind: Annotated[str, Field(examples=["async"])]
    endpoint: Annotated[str | None, Field(examples=["http://worker:9000/transcribe"])]


class PutWarning(Document):
    """What was put is in force, and will not do what it should."""

    code: Annotated[str, Field(examples=["approval_unreachable"])]
    message: str


class StepPut(StepDocument):
    warnings: list[PutWarning] = Field(default=[], description="left out if there are none")


class StepsPage(Document):
    steps: list[StepDocument]


class Plan(Document):
    """Which steps the flow runs, why, where their values come from, and why others are left out."""

    goals: list[str]
    steps: Annotated[list[str], Field(description="in an order that respects data flow")]
    inputs: Annotated[dict[str, str], Field(description="by value: `init`, or the step that provides it")]
    included: dict[str, str]
    excluded: dict[str, str]
    takes: Annotated[
        dict[str, dict[str, list[str]]],
        Field(description="by step: the values that it takes from other steps, and from which"),
    ]
    waits_for: Annotated[dict[str, Values], Field(description="by step: how many of which others must have completed")]


class FlowStarted(Document):
    flow_id: str
    status: FlowStatus
    goals: list[str]
    plan: Plan
    created_at: Time


class Failure(Document):
    """Why something failed."""

    code: Annotated[str, Field(examples=["STEP_FAILED"])]
    message: str


class WorkItem(Document):
    """One unit of a step in a flow. Its receipt token is never shown."""

    work_id: str
    status: WorkStatus
    attempt: int
    next_attempt_at: Time | None
    deadline_at: Time | None
    hold: Any
    progress: float | None
    outputs: Values | None
    error: Failure | None


class WorkInFlow(WorkItem):
    """A work item in the document of its flow."""

    item: Annotated[int, Field(description="its place among the items of a step that fans out")]
    redrive_of: Annotated[str | None, Field(description="the failed work item in whose place it is")]
    undoes: Annotated[str | None, Field(description="the work item whose effect it undoes")]
    child_flow_id: Annotated[str | None, Field(description="the flow that it is, if its step is of kind `flow`")]


class StepInFlow(Document):
    status: StepStatus
    kind: Annotated[str, Field(examples=["async"])]
    goal: bool
    items: Annotated[int, Field(description="how many work items the step was made into")]
    error: Failure | None
    reason: Annotated[str | None, Field(description="why it was skipped or cancelled")]
    started_at: Time | None
    finished_at: Time | None
    waits_until: Annotated[Time | None, Field(description="when it begins without a value that is only optional")]
    redrives: int
    work: list[WorkInFlow]


class Parent(Document):
    """The work item that a flow is, in the flow around it."""

    flow_id: str
    step_id: str
    work_id: str


class Compensated(Document):
    step_id: str
    status: Annotated[str, Field(pattern="^(pending|active|completed|failed|cancelled)$")]


class FlowSummary(Document):
    """A flow as a list shows it."""

    flow_id: str
    status: FlowStatus
    goals: list[str]
    created_at: Time


class FlowDocument(FlowSummary):
    """A flow with its steps and their work items."""

    init: Values
    outputs: Values
    error: Failure | None
    metadata: Values
    labels: dict[str, str]
    finished_at: Time | None
    pruned_at: Annotated[Time | None, Field(description="since when init, metadata, outputs and journal are gone")]
    plan: Plan
    parent: Annotated[Parent | None, Field(description="where it lies inside another flow")]
    deadline_at: Time | None
    compensation: Annotated[list[Compensated], Field(description="what is undone, in this order")]
    steps: dict[str, StepInFlow]


class FlowsPage(Document):
    flows: list[FlowSummary]
    next_cursor: str | None


class FlowResult(Document):
    flow_id: str
    status: FlowStatus
    outputs: Values
    error: Failure | None


class FlowPending(Document):
    """The flow has not ended yet."""

    flow_id: str
    status: FlowStatus


class JournalEvent(Document):
    seq: int
    type: EventType
    at: Time
    flow_id: str
    step_id: str | None
    work_id: str | None
    attempt: int | None
    data: Values


class EventsPage(Document):
    events: list[JournalEvent]
    next_cursor: str | None


class FlowRedriven(Document):
    flow_id: str
    status: FlowStatus
    work: Annotated[list[str], Field(description="the new work items")]


class WorkRedriven(Document):
    work_id: Annotated[str, Field(description="the new work item")]
    redrive_of: str


class WorkRedrivenByFilter(Document):
    matched: Annotated[int, Field(description="failed work items that fit")]
    redriven: Annotated[int, Field(description="those that another stands in for now")]
    flows: list[str]


class WorkListed(WorkItem):
    """A work item outside of its flow's document."""

    flow_id: str
    step_id: str
    created_at: Time
    recorded_at: Time | None


class WorkPage(Document):
    work: list[WorkListed]
    next_cursor: str | None


class WorkDetail(WorkListed):
    attempts: Annotated[list[Values], Field(description="every dispatch, oldest first")]


class ReportTaken(Document):
    """The report was taken: it is durable."""

    verdict: Annotated[str, Field(examples=["accepted"], pattern="^(accepted|duplicate|stale)$")]
    status: WorkStatus
    flow_id: str
    step_id: str
    recorded_at: Time | None


class HeartbeatTaken(Document):
    deadline_at: Time | None
    cancel_requested: bool


class ReceiptState(Document):
    status: WorkStatus
    attempt: int
    deadline_at: Time | None
    recorded_at: Time | None
    cancel_requested: bool


class Health(Document):
    status: Annotated[str, Field(examples=["ok"])]


class Pointer(Document):
    """Where to go from the root."""

    name: str
    version: str
    docs: str
    openapi: str


class LastError(Failure):
    """Why a schedule started nothing when it was due last."""

    at: Time


class ScheduleDocument(Document):
    """A schedule: what it was put as, what comes next, and what came of it last."""

    schedule_id: str
    cron: Annotated[str | None, Field(examples=["*/5 * * * *"])]
    timezone: Annotated[str | None, Field(examples=["Europe/Vienna"])]
    every_ms: int | None
    flow: Values
    catch_up: Annotated[str, Field(examples=["one"], pattern="^(skip|one|all)$")]
    enabled: bool
    next_at: Annotated[Time | None, Field(description="the next tick; null while it is paused")]
    last_at: Annotated[Time | None, Field(description="the tick of the last flow that was started")]
    last_flow_id: str | None
    last_error: LastError | None
    upcoming: Annotated[list[Time], Field(description="the next five ticks")]


class SchedulesPage(Document):
    schedules: list[ScheduleDocument]
    next_cursor: str | None
