"""The engine's answers as types. They are the JSON documents themselves, so fields added later are there too."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class WorkItem(TypedDict):
    """One unit of a step in a flow, as it stands now."""

    work_id: str
    status: str
    attempt: int
    next_attempt_at: str | None
    deadline_at: str | None
    hold: Any
    progress: float | None
    outputs: dict[str, Any] | None
    error: dict[str, Any] | None
    flow_id: NotRequired[str]
    step_id: NotRequired[str]
    message: NotRequired[str | None]
    created_at: NotRequired[str]
    recorded_at: NotRequired[str | None]
    item: NotRequired[int]
    redrive_of: NotRequired[str | None]
    undoes: NotRequired[str | None]
    child_flow_id: NotRequired[str | None]
    attempts: NotRequired[list[dict[str, Any]]]


class StepRun(TypedDict):
    """A step inside one flow. ``items``: how many work items it has, those aside that undo others."""

    status: str
    work: list[WorkItem]
    kind: NotRequired[str]
    goal: NotRequired[bool]
    items: NotRequired[int]
    error: NotRequired[dict[str, Any] | None]
    reason: NotRequired[str | None]
    started_at: NotRequired[str | None]
    finished_at: NotRequired[str | None]
    waits_until: NotRequired[str | None]
    redrives: NotRequired[int]


class Plan(TypedDict):
    """Which steps a flow runs, why, where their values come from, and why others are left out."""

    goals: list[str]
    steps: list[str]
    inputs: dict[str, str]
    included: dict[str, str]
    excluded: dict[str, str]
    takes: NotRequired[dict[str, dict[str, list[str]]]]
    waits_for: NotRequired[dict[str, dict[str, Any]]]


class Parent(TypedDict):
    """Where a flow lies inside another: the work item that it is."""

    flow_id: str
    step_id: str
    work_id: str


class Compensated(TypedDict):
    """How far the undoing of a step is: pending, active, completed, failed, or cancelled when it was given up."""

    step_id: str
    status: str


class Flow(TypedDict):
    """A flow with its steps and their work items."""

    flow_id: str
    status: str
    goals: list[str]
    init: dict[str, Any]
    outputs: dict[str, Any]
    error: dict[str, Any] | None
    metadata: dict[str, Any]
    labels: dict[str, str]
    created_at: str
    finished_at: str | None
    pruned_at: str | None
    steps: dict[str, StepRun]
    plan: NotRequired[Plan]
    parent: NotRequired[Parent | None]
    deadline_at: NotRequired[str | None]
    compensation: NotRequired[list[Compensated]]


class StartedFlow(TypedDict):
    """The answer to a start."""

    flow_id: str
    status: str
    goals: list[str]
    plan: Plan
    created_at: str


class FlowResult(TypedDict):
    """How a flow ended; while it has not, only ``flow_id`` and ``status`` say something."""

    flow_id: str
    status: str
    outputs: NotRequired[dict[str, Any]]
    error: NotRequired[dict[str, Any] | None]


class Event(TypedDict):
    """One entry of the journal."""

    seq: int
    type: str
    at: str
    flow_id: str
    step_id: str | None
    work_id: str | None
    attempt: int | None
    data: dict[str, Any] | None


class FlowSummary(TypedDict):
    """A flow as a list shows it."""

    flow_id: str
    status: str
    goals: list[str]
    created_at: str
    outputs: NotRequired[dict[str, Any]]
    error: NotRequired[dict[str, Any] | None]


class FlowPage(TypedDict):
    flows: list[FlowSummary]
    next_cursor: str | None


class EventPage(TypedDict):
    events: list[Event]
    next_cursor: str | None


class WorkPage(TypedDict):
    work: list[WorkItem]
    next_cursor: str | None


class RedrivenFlow(TypedDict):
    """A flow that goes on: ``work`` are its new work items."""

    flow_id: str
    status: str
    work: list[str]


class RedrivenWork(TypedDict):
    """The new work item, and the failed one in whose place it is."""

    work_id: str
    redrive_of: str
    flow_id: NotRequired[str]


class RedrivenByFilter(TypedDict):
    """How many failed work items fit, how many of them were redriven, and in which flows they are."""

    matched: int
    redriven: int
    flows: list[str]


class Schedule(TypedDict):
    """When flows start by themselves, what comes next, and what came of it last."""

    schedule_id: str
    cron: str | None
    timezone: str | None
    every_ms: int | None
    flow: dict[str, Any]
    catch_up: str
    enabled: bool
    next_at: str | None
    last_at: str | None
    last_flow_id: str | None
    last_error: dict[str, Any] | None
    upcoming: list[str]


class SchedulePage(TypedDict):
    schedules: list[Schedule]
    next_cursor: str | None
