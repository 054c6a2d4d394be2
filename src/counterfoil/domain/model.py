"""The records that the engine keeps: flow, step in a flow, work item. State only; the rules are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from counterfoil.domain.canonical import digest
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps import StepDefinition, WorkDefaults


class Record:
    """Something that a batch may change: ``draft`` gives a copy to change, the original stays as it was."""

    __slots__ = ()
    values: ClassVar[attrgetter[tuple[Any, ...]]]
    """All fields of a record, in their order."""

    def draft(self) -> Self:
        return type(self)(*self.values(self))


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


@dataclass(slots=True)
class StepRun(Record):
    """A step in a flow. Counters, so that no decision has to look at all its items."""

    flow_id: str
    step_id: str
    version: str
    status: StepStatus
    goal: bool
    items: int = 0
    open_items: int = 0
    failed_items: int = 0
    started_at: int | None = None
    finished_at: int | None = None


@dataclass(slots=True)
class Flow(Record):
    """One run towards goals."""

    flow_id: str
    status: FlowStatus
    created_at: int
    open_steps: int = 0
    outputs: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    finished_at: int | None = None


for _record in (Work, StepRun, Flow):
    _record.values = staticmethod(attrgetter(*(item.name for item in fields(_record))))  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class FlowInputs:
    """What a flow was started with; never changes."""

    flow_id: str
    goals: list[str]
    init: dict[str, Any]
    metadata: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)


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
            lane=f"{step_id}@{urlsplit(definition.endpoint).netloc.rpartition('@')[2].lower()}",
        )


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
