"""The unit of work of one batch: what was loaded, and what its commands have changed so far.

Commands of one batch are decided one after the other against the same unit, so that the second of two reports on one
receipt sees the first. A command changes records in their place: ``keep`` makes that part of what the batch writes,
``discard`` puts back what was there before, which is how one refused command never spoils the others.

A decision that looks at something not loaded raises ``NotLoaded``; the batch then loads everything that was missed at
once and decides that command again. Decisions are pure, so deciding twice is safe.

Which kinds of records there are is declared in store/kinds. What this class adds to ``Records`` is how decisions see
them (domain/flows/view.py, domain/journal/events.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from uuid_utils import uuid7

from counterfoil.domain.errors import UnknownFlow
from counterfoil.domain.flows.planning import NO_PLAN, Plan
from counterfoil.domain.flows.sharing import release_shared
from counterfoil.domain.flows.view import FlowRules
from counterfoil.domain.gate.cooperative import COOPERATIVE_PLAN
from counterfoil.domain.journal.events import APPLY, Event
from counterfoil.domain.policies.controls import Controls, KeptPolicy
from counterfoil.domain.policies.policy_set import PolicySet
from counterfoil.domain.records import (
    COOPERATIVE,
    UNDOING,
    Approval,
    CancelCall,
    Flow,
    FlowInputs,
    Gate,
    KeyedFlow,
    KeyOwner,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.states import FINAL_WORK, OPEN_STEPS, WorkStatus
from counterfoil.domain.steps.checks import Findings
from counterfoil.domain.steps.definitions import RateLimit
from counterfoil.domain.steps.register import Register
from counterfoil.domain.subscriptions.definitions import Audience, Delivery
from counterfoil.domain.work.capacity import NO_CAPACITY, Capacity
from counterfoil.domain.work.rates import SentTimes
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.kinds.approvals import APPROVALS
from counterfoil.store.kinds.definitions import CURRENT, PLANS, VERSIONS
from counterfoil.store.kinds.flows import FLOWS, INPUTS, KEYED_FLOWS, PRUNED, RUN_KEYS, PrunedFlow
from counterfoil.store.kinds.gate import GATES, KEYS
from counterfoil.store.kinds.kind import Kind
from counterfoil.store.kinds.policies import POLICIES, POLICY_VERSIONS
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.kinds.subscriptions import DELIVERIES, SUBSCRIPTIONS
from counterfoil.store.kinds.work import ACTIVE, CALLS, RATES, WORK
from counterfoil.store.unit_of_work.changes import Changes
from counterfoil.store.unit_of_work.effect_records import EffectRecords
from counterfoil.store.unit_of_work.hook_records import HookRecords
from counterfoil.store.unit_of_work.read_set import Find, NotLoaded, ReadSet, missing, step_key
from counterfoil.store.unit_of_work.records import Records

Key = TypeVar("Key")
R = TypeVar("R")

RELEASED_TOGETHER = 64
"""Waiting items are looked up in groups of so many: the commands of a batch release from the same ones."""


def new_id() -> str:
    """A name that is unique everywhere, and sorts by when it was made."""
    return uuid7().hex


@dataclass(slots=True)
class Completeness:
    """Of what it is known that all of it was loaded."""

    open_flows: set[str] = field(default_factory=set)
    """Flows with all their open work and open steps."""
    whole_flows: set[str] = field(default_factory=set)
    """Flows with all their steps."""
    step_work: set[str] = field(default_factory=set)
    """Steps in flows with all items that they ever had, by ``step_key``."""


class UnitOfWork(EffectRecords, HookRecords):
    """Loaded records, what the present command changes, and everything that the batch will write."""

    def __init__(self, definitions: DefinitionCache | dict[str, StepVersion]) -> None:
        if not isinstance(definitions, DefinitionCache):
            definitions = DefinitionCache(definitions)
        self.definitions = definitions
        self.changes = Changes()
        self._records: dict[Kind[Any, Any], Records[Any, Any]] = {}
        self._changed: list[Records[Any, Any]] = []
        """The kinds that the present command has changed."""
        self._events: list[Event] = []
        """What the present command has recorded."""
        self._flows = self.records(FLOWS)
        self._steps = self.records(STEPS)
        self._work = self.records(WORK)
        self._inputs = self.records(INPUTS)
        self._pruned = self.records(PRUNED).current
        self._work_of: dict[str, dict[str, None]] = {}
        """Ids of work by flow. Some may be of work that a refused command has made."""
        self._outputs: dict[tuple[str, str], dict[str, Any]] = {}
        self._found: dict[Find, list[tuple[Any, ...]]] = {}
        self.complete = Completeness()
        self.revisions: dict[str, int] = {}
        """How often each loaded flow had changed, on a store that several nodes write to."""
        self._register: Register | None = None
        self._controls: Controls | None = definitions.controls
        """As they were when the batch began: it decides by the same ones from the first command to the last."""
        self.findings: Findings = definitions.findings
        self.capacity: Capacity = NO_CAPACITY
        self.rules = FlowRules()
        self.new_id: Callable[[], str] = new_id
        self.node_id = ""
        """The node that decides, and so sends what is claimed here."""

    # Records -----------------------------------------------------------------------------------------------------

    def records(self, kind: Kind[Key, R]) -> Records[Key, R]:
        """The records of a kind."""
        records = self._records.get(kind)
        if records is None:
            records = self._records[kind] = Records(kind, self._changed)
        return records

    def keep(self) -> None:
        """The command was decided: what it changed is part of what the batch writes."""
        changes = self.changes
        if self._events:
            changes.events += self._events
            self._events.clear()
        for records in self._changed:
            records.keep(changes)
        self._changed.clear()

    def discard(self) -> None:
        """The command was refused: nothing of it remains."""
        self._events.clear()
        for records in self._changed:
            records.discard()
        self._changed.clear()

    def record(self, event: Event) -> None:
        """Apply an event to the records that it concerns and note it for the journal."""
        if event.flow_id in self._pruned:
            raise UnknownFlow
        APPLY[event.type](event, self)
        self._events.append(event)

    # Loading -----------------------------------------------------------------------------------------------------

    def add(self, kind: Kind[Any, R], record: R) -> None:
        """A record as it was loaded."""
        assert kind.key is not None
        self.records(kind).add(kind.key(record), record)

    def add_work(self, work: Work) -> None:
        work_id = work.work_id
        if self._work.peek(work_id) is None:
            self._work.add(work_id, work)
            self._work_of.setdefault(work.flow_id, {})[work_id] = None

    def add_whole(self, work: Work, step: StepRun, flow: Flow, revision: int) -> None:
        """A work item with its step and flow, as they are at this revision."""
        work_id, flow_id, items = work.work_id, work.flow_id, self._work.current
        if work_id not in items:
            items[work_id] = work
            self._work_of.setdefault(flow_id, {})[work_id] = None
        self._steps.current.setdefault((flow_id, work.step_id), step)
        self._flows.current.setdefault(flow_id, flow)
        self.revisions[flow_id] = revision

    def add_outputs(self, flow_id: str, step_id: str, outputs: dict[str, Any] | None) -> None:
        self._outputs.setdefault((flow_id, step_id), outputs or {})

    def add_found(self, find: Find, rows: list[tuple[Any, ...]]) -> None:
        self._found.setdefault(find, rows)

    def add_register(self, revision: int, versions: Iterable[str] | None) -> None:
        """The register is at this revision, and has these steps; None: it is the one that was known.

        If another batch has seen a newer one in the meantime, that is what will be asked for.
        """
        known = self.definitions
        if versions is not None:
            self._register = Register(revision, (known.versions[version] for version in versions))
            if revision > known.register.revision:
                known.register = self._register
        elif known.register.revision == revision:
            self._register = known.register

    def want_controls(self, needs: ReadSet) -> None:
        """Every batch knows the policies and subscriptions: a batch that has not seen them writes nothing."""
        if self._controls is None:
            needs.controls.add("-1")

    @property
    def controls_revision(self) -> int:
        """The revision that this batch has seen."""
        return -1 if self._controls is None else self._controls.revision

    def add_controls(self, controls: Controls) -> None:
        """Policies and subscriptions as they are now, if the batch has not seen them before."""
        if self._controls is None:
            self._controls = controls
        if controls.revision > self.definitions.controls_revision:
            self.definitions.controls = controls

    def forget_controls(self) -> None:
        """They have changed since this batch saw them: the next one looks again."""
        if self.definitions.controls_revision <= self.controls_revision:
            self.definitions.controls = None

    # Looking -----------------------------------------------------------------------------------------------------

    def find_flow(self, flow_id: str) -> Flow | None:
        return self._flows.get(flow_id)

    def flow(self, flow_id: str) -> Flow:
        flow = self._flows.current.get(flow_id)
        return self._flows.existing(flow_id) if flow is None else flow

    def loaded_flow(self, flow_id: str) -> Flow | None:
        """The flow as the batch leaves it, if it was loaded at all."""
        return self._flows.peek(flow_id)

    def step_run(self, flow_id: str, step_id: str) -> StepRun:
        step = self._steps.current.get((flow_id, step_id))
        return self._steps.existing((flow_id, step_id)) if step is None else step

    def want_steps(self, flow_id: str, step_ids: Iterable[str]) -> None:
        steps = self._steps.current
        lacking = (step_id for step_id in step_ids if (flow_id, step_id) not in steps)
        # A decision that looks at steps may begin one, with what the flow was started with.
        also = () if flow_id in self._inputs else [("inputs", flow_id)]
        missing("flow_steps", (step_key(flow_id, step_id) for step_id in lacking), also)

    def outputs(self, flow_id: str, step_id: str) -> dict[str, Any]:
        own = self.step_run(flow_id, step_id).outputs
        if own is not None:
            return own
        try:
            return self._outputs[(flow_id, step_id)]
        except KeyError:
            raise NotLoaded("flow_steps", step_key(flow_id, step_id)) from None

    def steps_of(self, flow_id: str) -> list[StepRun]:
        if flow_id not in self.complete.whole_flows:
            raise NotLoaded("whole_flows", flow_id)
        return [step for step in self._steps.values() if step.flow_id == flow_id]

    def open_steps(self, flow_id: str) -> list[StepRun]:
        if flow_id not in self.complete.open_flows:
            raise NotLoaded("open_flows", flow_id)
        return [step for step in self._steps.values() if step.flow_id == flow_id and step.status in OPEN_STEPS]

    def find_work(self, work_id: str) -> Work | None:
        return self._work.get(work_id)

    def work(self, work_id: str) -> Work:
        work = self._work.current.get(work_id)
        return self._work.existing(work_id) if work is None else work

    def touched_work(self, flow_id: str) -> list[Work]:
        current = self._work.current
        return [
            work for work_id in self._work.before if (work := current[work_id]) is not None and work.flow_id == flow_id
        ]

    def open_work(self, flow_id: str) -> list[Work]:
        if flow_id not in self.complete.open_flows:
            raise NotLoaded("open_flows", flow_id)
        return [item for item in self._loaded_work(flow_id) if item.status not in FINAL_WORK]

    def work_of_step(self, flow_id: str, step_id: str) -> list[Work]:
        if step_key(flow_id, step_id) not in self.complete.step_work and not self.begins_here(flow_id):
            raise NotLoaded("step_work", step_key(flow_id, step_id))
        items = [work for work in self._loaded_work(flow_id) if work.step_id == step_id]
        return sorted(items, key=lambda work: (work.created_at, work.work_id))

    def begins_here(self, flow_id: str) -> bool:
        return flow_id in self.changes.peek(FLOWS).new or self._flows.is_new(flow_id)

    def _loaded_work(self, flow_id: str) -> list[Work]:
        current = self._work.current
        return [work for work_id in self._work_of.get(flow_id, ()) if (work := current.get(work_id)) is not None]

    def waiting_items(self, step: StepRun) -> Iterator[Work]:
        """Items of a step that are not released yet, in their order."""
        first = (0 if step.released is None else step.released + 1) // RELEASED_TOGETHER * RELEASED_TOGETHER
        while first < step.items:
            for work in self._items_between(step, first, first + RELEASED_TOGETHER):
                if work.status is WorkStatus.PENDING and work.due_at is None and work.hold is None:
                    yield work
            first += RELEASED_TOGETHER

    def _items_between(self, step: StepRun, first: int, end: int) -> list[Work]:
        """All items of a run of a step begin together: a step that begins in this batch has none in the store."""
        if not self.begins_here(step.flow_id):
            find = Find.of("find_waiting_items", flow_id=step.flow_id, step_id=step.step_id, first=first, end=end)
            ids = [row[0] for row in self.found(find)]
            missing("work", (work_id for work_id in ids if work_id not in self._work))
            if ids:
                return [self.work(work_id) for work_id in ids]
        items = [work for work in self._loaded_work(step.flow_id) if work.step_id == step.step_id]
        return sorted((work for work in items if first <= work.item < end), key=lambda work: work.item)

    def inputs(self, flow_id: str) -> FlowInputs:
        return self._inputs.existing(flow_id)

    def labels(self) -> dict[str, dict[str, str]]:
        """The labels of flows, as far as they were loaded."""
        return {inputs.flow_id: inputs.labels for inputs in self._inputs.values()}

    def plan_of(self, flow: Flow) -> Plan:
        if flow.plan is None:
            return NO_PLAN
        if flow.plan == COOPERATIVE:
            return COOPERATIVE_PLAN
        return self.definitions.plans.get(flow.plan) or self.records(PLANS).existing(flow.plan)

    def version(self, version: str) -> StepVersion:
        found = self.definitions.versions.get(version) or self.definitions.version(version)
        if found is None:
            raise NotLoaded("versions", version.removesuffix(UNDOING))
        return found

    def current_version(self, step_id: str) -> StepVersion | None:
        version = self.records(CURRENT).get(step_id)
        return None if version is None else self.version(version)

    def register(self) -> Register:
        """All steps as they are registered now, with what this batch has put or taken out."""
        if self._register is None:
            raise NotLoaded("registers", str(self.definitions.register.revision))
        changed = (*self.changes.peek(CURRENT), *self.records(CURRENT).before)
        return self._register.with_changes({step_id: self.current_version(step_id) for step_id in changed})

    def call(self, call_id: str) -> CancelCall | None:
        return self.records(CALLS).get(call_id)

    def found(self, find: Find) -> list[tuple[Any, ...]]:
        """The rows of a search."""
        try:
            return self._found[find]
        except KeyError:
            raise NotLoaded("finds", find) from None

    def active_count(self, step_id: str) -> int:
        """How many items of a step are active, over all flows: as loaded, plus those claimed in this batch."""
        return self.records(ACTIVE).get(step_id) or 0

    def count_active(self, step_id: str) -> None:
        """One more item of the step becomes active in this batch."""
        self.records(ACTIVE).put(step_id, self.active_count(step_id) + 1)

    def sent_times(self, step_id: str) -> SentTimes:
        """When a step with a rate limit was sent last."""
        return self.records(RATES).get(step_id) or SentTimes()

    def count_sent(self, step_id: str, limit: RateLimit, now: int) -> None:
        """The present command sends one more."""
        self.records(RATES).put(step_id, self.sent_times(step_id).and_now(limit, now))

    def is_limited(self, version_id: str) -> bool:
        """Whether only so many items of a step may be active at once, as far as this batch had to know."""
        version = self.definitions.version(version_id)
        return version is None or version.work.parallelism is not None

    def find_gate(self, flow_id: str, step_id: str) -> Gate | None:
        return self.records(GATES).get(step_key(flow_id, step_id))

    def approval(self, approval_id: str) -> Approval:
        return self.records(APPROVALS).existing(approval_id)

    def delivery(self, delivery_id: str) -> Delivery | None:
        """What is still to be told; what goes with its flow in this very batch is gone."""
        found = self.records(DELIVERIES).get(delivery_id)
        return None if found is None or found.flow_id in self._pruned else found

    def find_key(self, key_id: str) -> KeyOwner | None:
        return self.records(KEYS).get(key_id)

    def last_claim(self, run_key: str) -> KeyedFlow | None:
        return self.records(RUN_KEYS).get(run_key)

    def controls(self) -> Controls:
        """Policies and subscriptions in force, with what this batch has put or taken out."""
        seen = self._controls
        if seen is None:
            raise NotLoaded("controls", "-1")
        policies, subscriptions = self._changed_now(POLICIES), self._changed_now(SUBSCRIPTIONS)
        return seen.with_changes(policies, subscriptions) if policies or subscriptions else seen

    def _changed_now(self, kind: Kind[Key, R]) -> dict[Key, R | None]:
        """The changed records of a kind, those of the present command among them."""
        changed, records = self.changes.peek(kind), self._records.get(kind)
        if records is None or not records.before:
            return changed
        return {**changed, **{key: records.current[key] for key in records.before}}

    def policies(self) -> PolicySet:
        return self.controls().policies

    def audience(self) -> Audience:
        """The subscriptions by event name; none in a unit that has never heard of controls."""
        return {} if self._controls is None else self.controls().audience

    # Changing ----------------------------------------------------------------------------------------------------

    def draft_work(self, work_id: str) -> Work:
        return self._work.draft(work_id)

    def draft_step(self, flow_id: str, step_id: str) -> StepRun:
        return self._steps.draft((flow_id, step_id))

    def draft_flow(self, flow_id: str) -> Flow:
        return self._flows.draft(flow_id)

    def draft_gate(self, flow_id: str, step_id: str) -> Gate:
        return self.records(GATES).draft(step_key(flow_id, step_id))

    def draft_approval(self, approval_id: str) -> Approval:
        return self.records(APPROVALS).draft(approval_id)

    def create_work(self, work: Work) -> None:
        self._work.put(work.work_id, work)
        self._work_of.setdefault(work.flow_id, {})[work.work_id] = None

    def create_flow(self, flow: Flow, steps: list[StepRun]) -> None:
        """A flow that begins here is known whole."""
        self._flows.put(flow.flow_id, flow)
        for step in steps:
            self.create_step(step)
        self.complete.open_flows.add(flow.flow_id)
        self.complete.whole_flows.add(flow.flow_id)

    def create_step(self, step: StepRun) -> None:
        self._steps.put((step.flow_id, step.step_id), step)

    def create_gate(self, gate: Gate) -> None:
        self.records(GATES).put(step_key(gate.flow_id, gate.step_id), gate)

    def create_approval(self, approval: Approval) -> None:
        self.records(APPROVALS).put(approval.approval_id, approval)

    def start_with(self, inputs: FlowInputs, plan: Plan) -> None:
        """Note what a new flow was started with."""
        self._inputs.put(inputs.flow_id, inputs)
        if plan.plan_id not in self.definitions.plans and not plan.is_cooperative:
            self.records(PLANS).put(plan.plan_id, plan)

    def call_later(self, call: CancelCall) -> None:
        self.records(CALLS).put(call.call_id, call)

    def forget_call(self, call_id: str) -> None:
        self.records(CALLS).put(call_id, None)

    def release_key(self, work: Work, event: Event) -> None:
        release_shared(self, work, event)

    def give_key(self, owner: KeyOwner) -> None:
        self.records(KEYS).put(owner.key_id, owner)

    def claim_run_key(self, claim: KeyedFlow) -> None:
        self.records(RUN_KEYS).put(claim.run_key, claim)
        self.records(KEYED_FLOWS).put(claim.flow_id, claim)

    def put_policy(self, policy: KeptPolicy) -> None:
        """Another version of a policy, or its end: each is kept."""
        self.records(POLICIES).put(policy.policy_id, policy)
        self.records(POLICY_VERSIONS).put((policy.policy_id, policy.version), policy)

    def put_current(self, step_id: str, version: StepVersion | None) -> None:
        """Make a version the current one of its step, or take the step out of the register."""
        self.records(CURRENT).put(step_id, None if version is None else version.version)
        if version is not None:
            self.records(VERSIONS).put(version.version, version)
            self.definitions.versions[version.version] = version  # named by its content, so true though it be refused

    def prune(self, flow_id: str, labels: dict[str, str] | None) -> None:
        """Take a flow with these labels out of the store; without labels: only what it carried."""
        self.records(PRUNED).put(flow_id, PrunedFlow(labels))
