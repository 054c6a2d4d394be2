"""The records that the engine keeps: flow, step in a flow, work item. State only; the rules are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from counterfoil.domain.canonical import digest
from counterfoil.domain.expressions.predicates import Predicate
from counterfoil.domain.states import ApprovalStatus, Decision, FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults


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
    """Its plan, by id; None: of a time when every step was a goal and took what the flow was started with. The plan of
    a workflow is ``COOPERATIVE``: an agent says what comes next, and when it ends."""
    parent: dict[str, Any] | None = None
    """The work item of another flow that this one is: flow_id, step_id, work_id, depth."""
    deadline_at: int | None = None
    compensation: dict[str, Any] | None = None
    """How far it is undone: ``ending``, the state that comes after, and ``steps``, in the order of their undoing, each
    with step_id, status, open and failed items. Never changed in place."""
    redrives: int = 0


@dataclass(slots=True)
class Gate(Record):
    """What the gate knows of a step that an agent runs itself, beside the step and its work."""

    flow_id: str
    step_id: str
    work_id: str
    """The item that the last decision is about."""
    idempotency_key: str
    """The caller's, or empty; fixed by the first call."""
    gate_count: int
    completion_count: int
    first_at: int
    last_at: int
    decision: Decision
    """What the last call was told."""
    standing: Decision
    """What the same question will be told: a decision of people counts from when it was made."""
    decision_id: str
    """The evaluation that the standing decision is from."""
    input_digest: str
    approval_id: str | None = None
    holder: str | None = None
    """Who has claimed the item: as long as it is active, and its deadline has not passed."""
    completed_at: int | None = None
    completed_work_id: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What the standing decision was told with: reason, policies, name and type of the step. Never changed in place."""


@dataclass(slots=True)
class Approval(Record):
    """One question to people: whether one attempt of one work item can proceed, with the arguments of this digest."""

    approval_id: str
    flow_id: str
    step_id: str
    work_id: str
    attempt: int
    digest: str
    status: ApprovalStatus
    requested_at: int
    expires_at: int
    approvals: int
    """How many different people must agree."""
    separate_requester: bool
    severity: str
    requester: str | None = None
    """Whose key asked; None: the engine did, for a flow that nobody's key started."""
    reason: str | None = None
    policies: list[dict[str, Any]] = field(default_factory=list)
    arguments: dict[str, Any] | None = None
    reviews: list[dict[str, Any]] = field(default_factory=list)
    """Who said what: by, verdict, comment, at. Never changed in place."""
    decided_at: int | None = None


def _copier(record: type[Any]) -> Callable[[Any], Any]:
    """A function that copies such a record, written out field by field, as dataclasses write ``__init__``.

    Every change begins with a copy, and any way that looks the fields up by their names takes three times as long.
    """
    lines = [f"    copy.{item.name} = self.{item.name}" for item in fields(record)]
    made: dict[str, Any] = {"record": record, "new": object.__new__}
    exec("\n".join(["def draft(self):", "    copy = new(record)", *lines, "    return copy"]), made)  # noqa: S102
    function: Callable[[Any], Any] = made["draft"]
    return function


for _record in (Work, StepRun, Flow, Gate, Approval):
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


COOPERATIVE = "cooperative"
"""The plan of every flow that an agent runs itself: no step, until the agent asks for it."""
GATED = "gate"
"""The version of every step that an agent runs itself: nothing is called, the agent asks and reports."""
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
        work = definition.work.resolve(defaults)
        return cls(
            version=version or version_of(step_id, definition),
            step_id=step_id,
            definition=definition,
            work=work,
            lane=_lane_of(step_id, definition.endpoint or "", work),
        )

    @property
    def is_gated(self) -> bool:
        """Whether an agent runs it: then there is nothing to send, and the next attempt is the agent's."""
        return self.version == GATED

    def undoing(self, defaults: WorkDefaults) -> StepVersion:
        """The version of the step that undoes this one."""
        return StepVersion.of(self.step_id, self.definition.undoing(), defaults, self.version + UNDOING)

    @cached_property
    def predicate(self) -> Predicate | None:
        """Asked of every item before it is made; None: the step always runs."""
        return self.definition.compiled_predicate()


GATED_STEP = StepVersion(
    version=GATED,
    step_id="",
    definition=StepDefinition.model_construct(kind="gate"),  # type: ignore[arg-type]  # nobody can register one
    work=WorkDefaults(max_retries=-1),
    lane=GATED,
)
"""Every node knows it: no store holds it."""


def version_of(step_id: str, definition: StepDefinition) -> str:
    """The name of a definition: the same content has the same name on every node."""
    return digest([step_id, definition.model_dump(mode="json", by_alias=True, exclude_unset=True)])[:32]


def _lane_of(step_id: str, endpoint: str, work: WorkDefaults) -> str:
    """What dispatches are fair between: a step, its endpoint's host, and its limits over all flows, if it has any.

    All work of a lane has the same limits, so an item that must wait for them never stands before one that need not.
    (Work of earlier releases has no limits in its lane.)
    """
    lane = f"{step_id}@{urlsplit(endpoint).netloc.rpartition('@')[2].lower()}"
    if work.parallelism is not None:
        lane += f"#parallelism={work.parallelism}"
    if work.rate_limit is not None:
        lane += f"#rate={work.rate_limit.count}/{work.rate_limit.per_ms}"
    return lane


def host_of(lane: str) -> str:
    """The endpoint host of a lane."""
    return lane.partition("@")[2].partition("#")[0]


def step_of(lane: str) -> str:
    """The step of a lane."""
    return lane.partition("@")[0]


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """What a caller's key stands for: a workflow that it made, or the step that it was first used for."""

    key_id: str
    flow_id: str
    step_id: str | None
    digest: str | None
    """Of what the workflow was made from; the same key with anything else is refused."""
    created_at: int
    expires_at: int | None


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
