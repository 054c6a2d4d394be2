"""Flows: their plans, their steps with all work items, and their results."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from counterfoil.domain.states import FlowStatus, StepStatus
from counterfoil.wire.errors import Failure
from counterfoil.wire.schema import OneOf, Time, Values, described
from counterfoil.wire.work import WorkDocument

FlowState = Annotated[str, OneOf(FlowStatus)]


class WaitCondition(TypedDict):
    """How many of which other steps must have completed."""

    any: int
    of: list[str]


class PlanDocument(TypedDict):
    """Which steps a flow runs and why, where their values come from, and why other steps are left out."""

    goals: list[str]
    steps: Annotated[list[str], described("in an order that respects data flow")]
    inputs: Annotated[dict[str, str], described("by value: `init`, or the step that provides it")]
    included: dict[str, str]
    excluded: dict[str, str]
    takes: Annotated[
        dict[str, dict[str, list[str]]],
        described("by step: the values that it takes from other steps, and from which steps"),
    ]
    waits_for: Annotated[
        dict[str, WaitCondition], described("by step: how many of which other steps must have completed")
    ]


class FlowStarted(TypedDict):
    flow_id: str
    status: FlowState
    goals: list[str]
    plan: PlanDocument
    created_at: Time


class StepInFlow(TypedDict):
    """A step inside one flow, with its work items."""

    status: Annotated[str, OneOf(StepStatus)]
    kind: Annotated[str, OneOf(Literal["async", "sync", "flow", "hook", "gate"])]
    goal: bool
    version: Annotated[str | None, described("digest of the definition that the flow started with")]
    items: Annotated[int, described("number of work items of the step, compensating ones not counted")]
    error: Failure | None
    reason: Annotated[str | None, described("why the step was skipped or cancelled")]
    started_at: Time | None
    finished_at: Time | None
    waits_until: Annotated[Time | None, described("when the step starts without a missing optional value")]
    redrives: int
    work: list[WorkDocument]


class FlowParent(TypedDict):
    """The work item of another flow that runs this flow as its sub-flow."""

    flow_id: str
    step_id: str
    work_id: str


class StepCompensation(TypedDict):
    """How far the compensation of a step is; cancelled: it was abandoned."""

    step_id: str
    status: Annotated[str, OneOf(Literal["pending", "active", "completed", "failed", "cancelled"])]


class FlowSummary(TypedDict):
    """A flow as a list shows it: without its steps."""

    flow_id: str
    status: FlowState
    goals: list[str]
    outputs: Values
    error: Failure | None
    metadata: Values
    labels: dict[str, str]
    created_at: Time
    finished_at: Time | None
    pruned_at: Annotated[Time | None, described("when init, metadata, outputs and journal were removed")]
    parent: Annotated[FlowParent | None, described("set for a sub-flow")]


class FlowDocument(FlowSummary):
    """A flow with its steps and their work items."""

    init: Values
    plan: PlanDocument
    deadline_at: Time | None
    options: Annotated[Values, described("options of the start, `started_by` included")]
    compensation: Annotated[list[StepCompensation], described("the steps that are compensated, in this order")]
    steps: dict[str, StepInFlow]


class FlowsPage(TypedDict):
    flows: list[FlowSummary]
    next_cursor: str | None


class FlowResult(TypedDict):
    """The state of a flow, with the outputs so far; final with status 200, preliminary with 202."""

    flow_id: str
    status: FlowState
    outputs: Values
    error: Failure | None


class FlowRedriven(TypedDict):
    flow_id: str
    status: FlowState
    work: Annotated[list[str], described("the new work items")]
