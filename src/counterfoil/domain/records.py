"""The records that the engine keeps: flows, their steps, work items, gates and approvals. State only, no rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from counterfoil.domain.canonical import digest
from counterfoil.domain.expressions.predicates import Predicate
from counterfoil.domain.states import ApprovalStatus, Decision, FlowStatus, HookStatus, StepStatus, WorkStatus
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults


class Record:
    """A record that a batch may change: ``draft`` returns a copy to change, and the original stays as it was."""

    __slots__ = ()

    def draft(self) -> Self:
        raise NotImplementedError  # set below for each kind of record


@dataclass(slots=True)
class Work(Record):
    """One unit of work of a step in a flow. It has one receipt, one idempotency key, its attempts and one outcome."""

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
    """When the engine must look at it again: an active item at its next deadline, any other at its next attempt."""
    deadline_at: int | None = None
    owner: str | None = None
    """The node that sends the current attempt; None as soon as it is known whether the endpoint accepted it."""
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
    """The arguments of the call; None: they follow from the inputs of the flow."""
    redrive_of: str | None = None
    """The item that ended without success and that this one replaces."""
    undoes: str | None = None
    """The item whose effect this one compensates; its arguments are then the arguments and the outputs of that item."""
    child_flow_id: str | None = None
    """The sub-flow that runs it, if its step is of kind ``flow``."""


@dataclass(slots=True)
class StepRun(Record):
    """A step in a flow. It has counters, so that no decision has to load all its items."""

    flow_id: str
    step_id: str
    version: str
    status: StepStatus
    goal: bool
    items: int = 0
    """The number of items: one for each element that the step fans out over, or one."""
    open_items: int = 0
    failed_items: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    error: dict[str, Any] | None = None
    ready_at: int | None = None
    """Since when all required inputs are available, while the step waits for optional ones."""
    due_at: int | None = None
    """When it stops waiting for optional inputs."""
    released: int | None = None
    """The index of the last item that was released for sending; None: all items were released at the start."""
    waiting_items: int = 0
    """Open items that are not released yet, because of the limit of active items in one flow."""
    redrives: int = 0
    outputs: dict[str, Any] | None = None
    """The outputs that the step gave to the flow; only a completed step has any. Commands that need only the counters
    do not load them: a completed step does not change any more."""


@dataclass(slots=True)
class Flow(Record):
    """One run of a plan towards one or more goals."""

    flow_id: str
    status: FlowStatus
    created_at: int
    open_steps: int = 0
    error: dict[str, Any] | None = None
    finished_at: int | None = None
    plan: str | None = None
    """The id of its plan; None: a flow of an early release, in which every step was a goal and took the inputs of the
    flow. The plan of a workflow is ``COOPERATIVE``: its agent decides which step comes next and when the workflow
    ends."""
    parent: dict[str, Any] | None = None
    """For a sub-flow, the work item that started it: flow_id, step_id, work_id, depth."""
    deadline_at: int | None = None
    compensation: dict[str, Any] | None = None
    """The progress of compensation: ``ending``, the state of the flow afterwards, and ``steps`` in the order of
    compensation, each with step_id, status, and its numbers of open and failed items. Never changed in place."""
    redrives: int = 0


@dataclass(slots=True)
class Gate(Record):
    """The gate's record of a step that an agent runs, beside the step and its work items."""

    flow_id: str
    step_id: str
    work_id: str
    """The item that the last decision concerns."""
    idempotency_key: str
    """The caller's key, or empty; fixed by the first call."""
    gate_count: int
    completion_count: int
    first_at: int
    last_at: int
    decision: Decision
    """The answer to the last call."""
    standing: Decision
    """The answer to the next call with the same input: a decision of reviewers counts as soon as it is made."""
    decision_id: str
    """The evaluation that led to the standing decision."""
    input_digest: str
    approval_id: str | None = None
    holder: str | None = None
    """The agent that has claimed the item, while the item is active and its deadline has not passed."""
    completed_at: int | None = None
    completed_work_id: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What the standing decision was based on: reason, policies, name and type of the step; and how often a run was
    resumed from the step. Never changed in place."""


@dataclass(slots=True)
class Approval(Record):
    """A request to reviewers to approve one attempt of one work item with the arguments of this digest."""

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
    """How many different reviewers must approve."""
    separate_requester: bool
    severity: str
    requester: str | None = None
    """The name of the API key that led to the request; None: the flow was started without a key, for example by a
    schedule."""
    reason: str | None = None
    policies: list[dict[str, Any]] = field(default_factory=list)
    arguments: dict[str, Any] | None = None
    reviews: list[dict[str, Any]] = field(default_factory=list)
    """The reviews: by, verdict, comment, at. Never changed in place."""
    decided_at: int | None = None


@dataclass(slots=True)
class Hook(Record):
    """What a hook step waits for, and what has come: one for each item and each run of its step in a flow."""

    hook_id: str
    flow_id: str
    step_id: str
    item: int
    status: HookStatus
    token_id: str
    """Names the token; the token of a made hook does not follow from it."""
    token: str | None
    """The token as text; None: the engine makes it, and stores it nowhere."""
    collect: int
    created_at: int
    work_id: str | None = None
    """Its work item; None: the step has not started."""
    received: int = 0
    size: int = 0
    """The bytes of the payloads that it keeps."""
    enough: bool = False
    """Whether it takes no more payloads: as many as it collects have come, or ``until`` was true."""
    registered_at: int | None = None
    deadline_at: int | None = None


def _copier(record: type[Any]) -> Callable[[Any], Any]:
    """Generate a function that copies such a record field by field, as dataclasses generate ``__init__``.

    Every change begins with a copy, and a copy that looks up the fields by name takes three times as long.
    """
    lines = [f"    copy.{item.name} = self.{item.name}" for item in fields(record)]
    made: dict[str, Any] = {"record": record, "new": object.__new__}
    exec("\n".join(["def draft(self):", "    copy = new(record)", *lines, "    return copy"]), made)  # noqa: S102
    function: Callable[[Any], Any] = made["draft"]
    return function


for _record in (Work, StepRun, Flow, Gate, Approval, Hook):
    _record.draft = _copier(_record)  # type: ignore[assignment, method-assign]


@dataclass(frozen=True, slots=True)
class FlowInputs:
    """The values that a flow was started with; they never change."""

    flow_id: str
    goals: list[str]
    init: dict[str, Any]
    metadata: dict[str, Any]
    labels: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """``deadline_ms``, ``on_deadline`` and ``compensate``, as far as the request set them."""


COOPERATIVE = "cooperative"
"""The plan of every workflow: it has no steps until the agent calls the gate for one."""
GATED = "gate"
"""The version of every step of a workflow: the engine calls no endpoint, the agent runs the step and reports."""
UNDOING = "~"
"""The suffix of the version of a compensating step: its definition follows from that of the step that it undoes."""


@dataclass(frozen=True)
class StepVersion:
    """A step definition as a flow uses it: immutable and named by its content, so that caches never go stale."""

    version: str
    step_id: str
    definition: StepDefinition
    work: WorkDefaults
    lane: str

    @classmethod
    def of(
        cls, step_id: str, definition: StepDefinition, defaults: WorkDefaults, version: str | None = None
    ) -> StepVersion:
        """``version``: the name under which it was stored, if it was."""
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
        """Whether an agent runs it: then there is nothing to send, and the agent decides about the next attempt."""
        return self.version == GATED

    @cached_property
    def shares(self) -> bool:
        """Whether its items share something with other flows: the key of an effect, or the token of a hook."""
        return self.definition.kind == "hook" or self.definition.effect.dedupes

    def undoing(self, defaults: WorkDefaults) -> StepVersion:
        """The version of the step that compensates this one."""
        return StepVersion.of(self.step_id, self.definition.undoing(), defaults, self.version + UNDOING)

    @cached_property
    def predicate(self) -> Predicate | None:
        """Evaluated for every item before it is created; None: the step always runs."""
        return self.definition.compiled_predicate()


GATED_STEP = StepVersion(
    version=GATED,
    step_id="",
    definition=StepDefinition.model_construct(kind="gate"),  # type: ignore[arg-type]  # cannot be registered
    work=WorkDefaults(max_retries=-1),
    lane=GATED,
)
"""Built in on every node, so it is not in the store."""


def version_of(step_id: str, definition: StepDefinition) -> str:
    """The name of a definition: the same content has the same name on every node."""
    return digest([step_id, definition.model_dump(mode="json", by_alias=True, exclude_unset=True)])[:32]


def _lane_of(step_id: str, endpoint: str, work: WorkDefaults) -> str:
    """The unit of fair dispatch: a step, the host of its endpoint, and its limits over all flows, if it has any.

    All work of a lane has the same limits, so an item that must wait for them never delays an item that need not. (Work
    of earlier releases has no limits in its lane.)
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
    """What a caller's key refers to: the workflow that it created, or the step that used it first."""

    key_id: str
    flow_id: str
    step_id: str | None
    digest: str | None
    """The digest of the request that created the workflow; the same key with another request is refused."""
    created_at: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class KeyedFlow:
    """A flow with a run key. Whether it owns the key follows from its state, if no other flow has claimed it since."""

    flow_id: str
    run_key: str
    claim: int
    """The number of the claim among those on the same key: the flow with the highest one claimed the key last."""
    digest: str
    """Of its goals and its init: another start with the same key must have the same one."""
    retain_ms: int
    """How long after its end it still owns the key."""
    retain_failed: bool
    """Whether it does so after a failure or a cancellation, too."""


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What is known of a work item whose outcome is, or was, unknown. It stays until the flow of the item is pruned."""

    work_id: str
    flow_id: str
    step_id: str
    hold: str | None
    """``reconcile`` or ``unsafe_once`` while the item waits to be settled: the engine never repeats it by itself."""
    cause: str
    attempt: int
    since: int
    due_at: int | None
    """When ``status_url`` is asked next; None: not at all."""
    probes: int = 0
    probed_at: int | None = None
    probe_state: str | None = None
    granted: int = 0
    """Attempts that a person asked for: they do not count against the retries of the work config."""


@dataclass(frozen=True, slots=True)
class DedupRecord:
    """What work items with one key share: which of them is in flight, and later its result."""

    dedup_id: str
    step_id: str
    idempotency_key: str
    state: str
    """``pending``, ``success``, ``failed``; ``free``: no item owns the key; ``unknown``: its owner was cancelled, and
    may have had an effect."""
    work_id: str | None
    """The owner: the item in flight, or the one whose result this is."""
    flow_id: str | None
    outcome: dict[str, Any] | None = None
    """``result`` and ``error`` of the owner."""
    recorded_at: int | None = None
    expires_at: int | None = None
    """When it is forgotten; None: not while it is pending, or never (``forever``)."""
    waiting: int = 0
    """How many items wait for it."""
    wake_at: int | None = None
    """Since when its waiting items can go on."""


@dataclass(frozen=True, slots=True)
class DedupWaiter:
    """A work item that waits for the result of another one with the same key."""

    work_id: str
    flow_id: str
    dedup_id: str
    since: int


@dataclass(frozen=True, slots=True)
class HookToken:
    """A token that a hook owns, and the hooks that wait to own it. It exists as long as it has an owner."""

    token_id: str
    hook_id: str
    """The owner. It may still be queued: then a command of its own registers it (``wake_at``)."""
    flow_id: str
    step_id: str
    work_id: str
    queue: list[list[str]] = field(default_factory=list)
    """The hooks that wait, in order: hook, flow, step and work item of each. Never changed in place."""
    wake_at: int | None = None
    """Since when the owner, which had to wait for the token, can be registered."""


@dataclass(frozen=True, slots=True)
class HookPayload:
    """A payload that a hook keeps: one of several that it collects, or one that came before its step started."""

    payload_id: str
    flow_id: str
    payload: Any


@dataclass(frozen=True, slots=True)
class HookDelivery:
    """A delivery id that a hook has taken, kept until the flow is pruned: the same one again is a duplicate."""

    delivery_key: str
    """Of the hook and the delivery id; or of the token and the delivery id, for when the hook has ended."""
    flow_id: str
    step_id: str
    hook_id: str


@dataclass(frozen=True)
class CancelCall:
    """A cancellation to report to a worker: kept until it was delivered or given up."""

    call_id: str
    flow_id: str
    step_id: str
    work_id: str
    url: str
    body: dict[str, Any]
    attempt: int
    due_at: int
