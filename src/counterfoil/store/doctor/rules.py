"""The doctor's rules: what must be true of every flow, whichever store it lies in.

A flow's records are compared with what its journal tells, by the same functions that the engine itself applies events
with, and checked against the invariants that no crash, race or retry may break.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace

from counterfoil.domain.journal.events import Event, EventType, apply
from counterfoil.domain.journal.evolving_hooks import evolve_hook, hook_id_of_item
from counterfoil.domain.records import (
    COOPERATIVE,
    GATED,
    GATED_STEP,
    UNDOING,
    Approval,
    Flow,
    Gate,
    Hook,
    Reconciliation,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.states import (
    FINAL_FLOWS,
    FINAL_STEPS,
    FINAL_WORK,
    ApprovalStatus,
    HookStatus,
    IllegalMove,
    StepStatus,
    WorkStatus,
)
from counterfoil.store.doctor.effect_rules import granted_attempts, repeated_effects, unsettled_problems
from counterfoil.store.doctor.hook_rules import hook_problems, shown_hook
from counterfoil.store.doctor.run_rules import journaled_key


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be."""

    invariant: str
    subject: str
    message: str


@dataclass
class FlowRecords:
    """Everything of one flow, as the store holds it."""

    flow: Flow | None
    steps: dict[str, StepRun] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    approvals: dict[str, Approval] = field(default_factory=dict)
    hooks: dict[str, Hook] = field(default_factory=dict)
    reconciliations: dict[str, Reconciliation] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    run_key: str | None = None
    pruned: bool = False
    """What the flow carried is gone, its journal with it."""


_Kept = Flow | StepRun | Work | Gate | Approval | Hook


def check_flow(flow_id: str, records: FlowRecords, versions: dict[str, StepVersion]) -> Iterator[Finding]:
    """All findings of one flow."""
    yield from _check_rest(flow_id, records)
    granted = granted_attempts(records.events)
    for work in records.work.values():
        yield from _check_work(work, versions, records.reconciliations.get(work.work_id), granted[work.work_id])
    yield from _check_approvals(records)
    for work_id, problem in unsettled_problems(records.work, records.reconciliations):
        yield Finding("unsettled", work_id, problem)
    for work_id, problem in repeated_effects(records.events, records.work, versions):
        yield Finding("unsafe_once", work_id, problem)
    for name, problem in hook_problems(records.hooks, records.work):
        yield Finding("hooks", name, problem)
    if not records.pruned:
        yield from _check_journal(flow_id, records)


def _check_rest(flow_id: str, records: FlowRecords) -> Iterator[Finding]:
    """No active flow is stuck; no step of a final flow is open."""
    flow = records.flow
    if flow is None:
        yield Finding("journal", flow_id, "the journal has events of a flow that is not in the store")
        return
    open_work = [work for work in records.work.values() if work.status not in FINAL_WORK]
    open_steps = [step for step in records.steps.values() if step.status not in FINAL_STEPS]
    if flow.status in FINAL_FLOWS:
        for step in open_steps:
            yield Finding("final_flow", f"{flow_id}/{step.step_id}", f"step is {step.status} in a {flow.status} flow")
        for work in open_work:
            yield Finding("final_flow", work.work_id, f"work is {work.status} in a {flow.status} flow")
    elif not open_work and flow.plan != COOPERATIVE:  # a workflow may rest: what comes next, its agent says
        yield Finding("stuck_flow", flow_id, f"flow is {flow.status}, but nothing in it is open: it can never end")
    if flow.open_steps != len(open_steps):
        message = f"counts {flow.open_steps} open steps, there are {len(open_steps)}"
        yield Finding("counters", flow_id, message)
    for step in records.steps.values():
        open_items = sum(1 for work in open_work if work.step_id == step.step_id and work.undoes is None)
        if step.open_items != open_items:
            message = f"counts {step.open_items} open items, there are {open_items}"
            yield Finding("counters", f"{flow_id}/{step.step_id}", message)
        if step.status is StepStatus.ACTIVE and 0 < step.open_items == step.waiting_items:
            yield Finding("stuck_flow", f"{flow_id}/{step.step_id}", "each open item waits until another one ends")


def _check_work(
    work: Work, versions: dict[str, StepVersion], unknown: Reconciliation | None, granted: int
) -> Iterator[Finding]:
    agents = work.version == GATED  # the next attempt is the agent's
    waits = work.due_at is not None or work.hold is not None or (unknown is not None and unknown.due_at is not None)
    if work.status is WorkStatus.NOT_COMPLETED and not waits and not agents:
        yield Finding("not_completed", work.work_id, "not completed, without a next attempt and without a hold")
    if work.owner is not None and work.status is not WorkStatus.ACTIVE:
        yield Finding("active", work.work_id, f"is {work.status}, but a node holds it as in flight")
    if work.status in FINAL_WORK and work.recorded_at is None:
        yield Finding("one_outcome", work.work_id, f"is {work.status}, but has no recorded_at")
    version = GATED_STEP if agents else versions.get(work.version.removesuffix(UNDOING))
    is_flow = version is not None and version.definition.kind == "flow"
    if work.status is WorkStatus.ACTIVE and work.due_at is None and not is_flow:
        yield Finding("active", work.work_id, "active, but without a deadline: it would wait forever")
    if version is None:
        yield Finding("versions", work.work_id, "was created from a step version that is not in the store")
        return
    # A limit that the step inherits depends on the settings of the engine that sent it, which are not known here.
    definition = version.definition if work.undoes is None else version.definition.undoing()
    retries = definition.work.max_retries
    granted = max(granted, 0 if unknown is None else unknown.granted)
    if retries is not None and 0 <= retries < work.attempt - 1 - granted:
        yield Finding("attempts", work.work_id, f"was dispatched {work.attempt} times, but {retries + 1} are allowed")


def _check_approvals(records: FlowRecords) -> Iterator[Finding]:
    """Whatever is held waits for an answer that can still come; no approval is pending for what is not held."""
    for work in records.work.values():
        approval = records.approvals.get(work.hold or "")
        if work.status is WorkStatus.HELD and (approval is None or approval.status is not ApprovalStatus.PENDING):
            yield Finding("held", work.work_id, "is held, but has no pending approval")
    for approval in records.approvals.values():
        held = records.work.get(approval.work_id)
        if approval.status is ApprovalStatus.PENDING and (held is None or held.hold != approval.approval_id):
            yield Finding("held", approval.approval_id, "is pending, but no work item is held for it")


def _check_journal(flow_id: str, records: FlowRecords) -> Iterator[Finding]:
    """The journal alone rebuilds the state, each receipt has at most one outcome, each attempt one intent."""
    hearing = _Told()
    for event in records.events:
        subject = event.work_id or (f"{flow_id}/{event.step_id}" if event.step_id else flow_id)
        try:
            hearing.hear(event)
        except IllegalMove as move:
            yield Finding("one_outcome", subject, f"the journal has an illegal transition: {move}")
            return
        except (AssertionError, KeyError, AttributeError, TypeError) as error:
            yield Finding("journal", subject, f"{event.type} cannot be applied: {type(error).__name__} {error}")
            return
    told = hearing.records
    if journaled_key(records.events) != records.run_key:
        yield Finding("run_keys", flow_id, "was started with another run key than the store has for it")
    yield from _differences(flow_id, told.flow, records.flow, "flow")
    for step_id in sorted(records.steps.keys() | told.steps.keys()):
        yield from _differences(f"{flow_id}/{step_id}", told.steps.get(step_id), records.steps.get(step_id), "step")
    for work_id in sorted(records.work.keys() | told.work.keys()):
        kept = records.work.get(work_id)
        yield from _differences(work_id, _with_last_heartbeat(told.work.get(work_id), kept), kept, "work item")
    for step_id in sorted(records.gates.keys() | told.gates.keys()):
        yield from _differences(f"{flow_id}/{step_id}", told.gates.get(step_id), records.gates.get(step_id), "gate")
    for name in sorted(records.approvals.keys() | told.approvals.keys()):
        yield from _differences(name, told.approvals.get(name), records.approvals.get(name), "approval")
    for name in sorted(records.hooks.keys() | told.hooks.keys()):
        yield from _differences(shown_hook(name), told.hooks.get(name), records.hooks.get(name), "hook")


class _Told:
    """What the journal tells, as far as it has been read."""

    def __init__(self) -> None:
        self.records = FlowRecords(None)

    def draft_work(self, work_id: str) -> Work:
        return self.records.work[work_id]

    def draft_step(self, flow_id: str, step_id: str) -> StepRun:
        return self.records.steps[step_id]

    def draft_flow(self, flow_id: str) -> Flow:
        assert self.records.flow is not None
        return self.records.flow

    def create_work(self, work: Work) -> None:
        self.records.work[work.work_id] = work

    def create_flow(self, flow: Flow, steps: list[StepRun]) -> None:
        self.records.flow = flow
        self.records.steps = {step.step_id: step for step in steps}

    def create_step(self, step: StepRun) -> None:
        self.records.steps[step.step_id] = step

    def draft_gate(self, flow_id: str, step_id: str) -> Gate:
        return self.records.gates[step_id]

    def create_gate(self, gate: Gate) -> None:
        self.records.gates[gate.step_id] = gate

    def draft_approval(self, approval_id: str) -> Approval:
        return self.records.approvals[approval_id]

    def create_approval(self, approval: Approval) -> None:
        self.records.approvals[approval.approval_id] = approval

    def open_reconciliation(self, event: Event) -> None:
        """Its record is compared with the state of the item, not with the journal."""

    close_reconciliation = open_reconciliation

    def release_key(self, work: Work, event: Event) -> None:
        """Keys and tokens are shared by flows: no journal of one flow tells all of them. A hook ends with its item."""
        if work.undoes is not None:
            return
        redrives = self.records.steps[work.step_id].redrives
        hook = self.records.hooks.get(hook_id_of_item(work, redrives, self.records.hooks.get))
        if hook is not None and hook.status is not HookStatus.ENDED:
            evolve_hook(hook, event)

    def find_hook(self, hook_id: str) -> Hook | None:
        return self.records.hooks.get(hook_id)

    def draft_hook(self, hook_id: str) -> Hook:
        return self.records.hooks[hook_id]

    def create_hook(self, hook: Hook) -> None:
        self.records.hooks[hook.hook_id] = hook

    def hear(self, event: Event) -> None:
        if event.type in (EventType.WORK_DISPATCHED, EventType.WORK_GRANTED):
            work = self.draft_work(event.work_id or "")
            if event.attempt != work.attempt + 1:
                raise IllegalMove(f"attempt {event.attempt} follows attempt {work.attempt}")
        apply(event, self)


def _with_last_heartbeat(told: Work | None, kept: Work | None) -> Work | None:
    """The journal keeps one heartbeat in a while, the item the last one: it may have come on, its deadline moved on."""
    if told is None or kept is None:
        return told
    later = replace(told, progress=kept.progress, message=kept.message)
    if told.deadline_at is not None and kept.deadline_at is not None and kept.deadline_at > told.deadline_at:
        later.deadline_at = later.due_at = kept.deadline_at
    return later


def _differences(subject: str, told: _Kept | None, kept: _Kept | None, what: str) -> Iterator[Finding]:
    if told is None and kept is not None:
        yield Finding("journal", subject, f"the journal has no events of this {what}")
    elif kept is None and told is not None:
        yield Finding("journal", subject, f"the journal has events of a {what} that is not in the store")
    elif told != kept and told is not None and kept is not None:
        names = [item.name for item in fields(told) if getattr(kept, item.name) != getattr(told, item.name)]
        shown = ", ".join(
            f"{name} is {getattr(kept, name)!r}, in the journal {getattr(told, name)!r}" for name in names
        )
        yield Finding("journal", subject, f"the journal gives a different state: {shown}")
