"""The records that the engine keeps: flow, step in a flow, work item. State only; the rules are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from counterfoil.domain.canonical import digest
from counterfoil.domain.predicates import Predicate
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps import StepDefinition, WorkDefaults


class Record:
    """Something that a batch may change: ``draft`` gives a copy to change, the original stays as it was."""

    __slots__ = ()

    def draft(self) -> Self:
        raise NotImplementedError  # each kind of record is given its own below


@dataclass(slots=True)
class Work(Record):
    """One unit of a step in a flow: it owns the receipt, the key, the attempts and the single outcome."""

    work_id: str
    flow_id: str
    step_id: str
    item: int
    version: str
    status: WorkStatus
    attempt: int
    idempotency_key: str
    lane: str
    created_at: int
    due_at: int | None = None
    """When the engine must look again: the next attempt of what is not active, the nearest clock of what is."""
    deadline_at: int | None = None
    owner: str | None = None
    """The node that is sending the present attempt; None as soon as it is known to be taken or not."""
    first_sent_at: int | None = None
    sent_at: int | None = None
    acknowledged_at: int | None = None
    progress: float | None = None
    message: str | None = None
    hold: str | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    recorded_at: int | None = None
    arguments: dict[str, Any] | None = None
    """What it is called with; None: what follows from what the flow was started with."""
    redrive_of: str | None = None
    """The item that ended without success and that this one stands in for."""
    undoes: str | None = None
    """The item whose effect this one undoes; its arguments are then those of the other, with what that gave."""
    child_flow_id: str | None = None
    """The flow that it is, if its step is of kind ``flow``."""


@dataclass(slots=True)
class StepRun(Record):
    """A step in a flow. Counters, so that no decision has to look at all its items."""

    flow_id: str
    step_id: str
    version: str
    status: StepStatus
    goal: bool
    items: int = 0
    """Places of its lists: one for each element that it fans out over, or one."""
    open_items: int = 0
    failed_items: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error: dict[str, Any] | None = None
    ready_at: int | None = None
    """Since when all that it requires is there, while it waits for something optional."""
    due_at: int | None = None
    """When it waits no longer."""
    released: int | None = None
    """The last item that was released to be sent; None: all were from the beginning."""
    waiting_items: int = 0
    """Open items that are not released yet, because so many of this flow's may be out at once."""
    redrives: int = 0
    outputs: dict[str, Any] | None = None
    """What it gave to the flow. Only a completed step has any, and who loads a step for its counters does not load
    them: a completed step changes no more."""


@dataclass(slots=True)
class Flow(Record):
    """One run towards goals."""

    flow_id: str
    status: FlowStatus
    created_at: int
    open_steps: int = 0
    error: dict[str, Any] | None = None
    finished_at: int | None = None
    plan: str | None = None
    """Its plan, by id; None: of a time when every step was a goal and took what the flow was started with."""
    parent: dict[str, Any] | None = None
    """The work item of another flow that this one is: flow_id, step_id, work_id, depth."""
    deadline_at: int | None = None
    compensation: dict[str, Any] | None = None
    """How far it is undone: ``ending``, the state that comes after, and ``steps``, in the order of their undoing, each
    with step_id, status, open and failed items. Never changed in place."""
    redrives: int = 0


def _copier(record: type[Any]) -> Callable[[Any], Any]:
    """A function that copies such a record, written out field by field, as dataclasses write ``__init__``.

    Every change begins with a copy, and any way that looks the fields up by their names takes three times as long.
    """
    lines = [f"    copy.{item.name} = self.{item.name}" for item in fields(record)]
    made: dict[str, Any] = {"record": record, "new": object.__new__}
    exec("\n".join(["def draft(self):", "    copy = new(record)", *lines, "    return copy"]), made)  # noqa: S102
    function: Callable[[Any], Any] = made["draft"]
    return function


for _record in (Work, StepRun, Flow):
    _record.draft = _copier(_record)  # type: ignore[assignment, method-assign]


@dataclass(frozen=True, slots=True)
class FlowInputs:
    """What a flow was started with; never changes."""

    flow_id: str
    goals: list[str]
    init: dict[str, Any]
    metadata: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """``deadline_ms``, ``on_deadline`` and ``compensate``, where the start said something of them."""


UNDOING = "~"
"""Ends the version of the step that undoes another: its definition follows from the other's."""


@dataclass(frozen=True)
class StepVersion:
    """A step definition as a flow uses it: immutable, named by its content, so caches never go stale."""

    version: str
    step_id: str
    definition: StepDefinition
    work: WorkDefaults
    lane: str

    @classmethod
    def of(
        cls, step_id: str, definition: StepDefinition, defaults: WorkDefaults, version: str | None = None
    ) -> StepVersion:
        """``version``: the name under which it was stored, where it was."""
        return cls(
            version=version or version_of(step_id, definition),
            step_id=step_id,
            definition=definition,
            work=definition.work.resolve(defaults),
            lane=f"{step_id}@{urlsplit(definition.endpoint or '').netloc.rpartition('@')[2].lower()}",
        )

    def undoing(self, defaults: WorkDefaults) -> StepVersion:
        """The version of the step that undoes this one."""
        return StepVersion.of(self.step_id, self.definition.undoing(), defaults, self.version + UNDOING)

    @cached_property
    def predicate(self) -> Predicate | None:
        """Asked of every item before it is made; None: the step always runs."""
        return self.definition.compiled_predicate()


def version_of(step_id: str, definition: StepDefinition) -> str:
    """The name of a definition: the same content has the same name on every node."""
    return digest([step_id, definition.model_dump(mode="json", by_alias=True, exclude_unset=True)])[:32]


def host_of(lane: str) -> str:
    """The endpoint host of a lane. A lane is what dispatches are fair between: a step and its host."""
    return lane.partition("@")[2]


def step_of(lane: str) -> str:
    """The step of a lane."""
    return lane.partition("@")[0]


@dataclass(frozen=True)
class CancelCall:
    """A cancellation that a worker is to be told of: durable until it was delivered or given up."""

    call_id: str
    flow_id: str
    step_id: str
    work_id: str
    url: str
    body: dict[str, Any]
    attempt: int
    due_at: int
