"""The unit of one batch: what was loaded, and what its commands have changed so far.

Commands of one batch are decided one after the other against the same unit, so that the second of two reports on one
receipt sees the first. Each command works on drafts, which stand in the place of the records that it changes: ``keep``
leaves them there, ``discard`` puts the records back, which is how one bad command never spoils its neighbours.

A decision that looks at something not loaded raises ``NotLoaded``; the batch then loads everything that was missed at
once and decides that command again. Decisions are pure, so deciding twice is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from uuid_utils import uuid7

from counterfoil.domain.errors import UnknownFlow, UnknownWork
from counterfoil.domain.flows.planning import NO_PLAN, Plan
from counterfoil.domain.flows.view import FlowRules
from counterfoil.domain.gate.cooperative import COOPERATIVE_PLAN
from counterfoil.domain.journal.events import APPLY, Event
from counterfoil.domain.policies.guarding import may_be_sent
from counterfoil.domain.records import (
    COOPERATIVE,
    UNDOING,
    CancelCall,
    Flow,
    FlowInputs,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.states import FINAL_WORK, OPEN_STEPS, WorkStatus
from counterfoil.domain.steps.register import Register
from counterfoil.domain.subscriptions.notices import addressed, delivery, filtered_by_labels, notices_of
from counterfoil.domain.work.decisions import dispatch
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.unit_of_work.capacity import NO_CAPACITY, Capacity
from counterfoil.store.unit_of_work.changes import Drafted, Touched
from counterfoil.store.unit_of_work.guarded import Guarded
from counterfoil.store.unit_of_work.pruning import Pruning
from counterfoil.store.unit_of_work.read_set import Find, NotLoaded, missing, step_key

RELEASED_TOGETHER = 64
"""Waiting items are looked up in groups of so many: the commands of a batch release from the same ones."""


def new_id() -> str:
    """A name that is unique everywhere, and sorts by when it was made."""
    return uuid7().hex


class UnitOfWork(Guarded):
    """Loaded records, drafts of the present command, and everything that the batch will write."""

    def __init__(self, known: DefinitionCache | dict[str, StepVersion]) -> None:
        super().__init__(known if isinstance(known, DefinitionCache) else DefinitionCache(known))
        self._draft = Drafted()
        self._pruned = self.changes.pruned.ids
        self._touched_flows = Touched(self._flows)
        self._touched_steps = Touched(self._steps)
        self._touched_work = Touched(self._work)
        self.capacity: Capacity = NO_CAPACITY
        self.rules = FlowRules()
        self.new_id: Callable[[], str] = new_id
        self.pruning = Pruning()
        self.node_id = ""
        """The node that decides, and so sends what is claimed here."""

    # Looking -----------------------------------------------------------------------------------------------------

    def find_flow(self, flow_id: str) -> Flow | None:
        try:
            return self._flows[flow_id]
        except KeyError:
            raise NotLoaded("flows", flow_id) from None

    def flow(self, flow_id: str) -> Flow:
        flow = self._flows.get(flow_id) or self.find_flow(flow_id)
        if flow is None:
            raise UnknownFlow
        return flow

    def known_flow(self, flow_id: str) -> Flow | None:
        """The flow as the batch leaves it, if it was loaded at all."""
        return self._flows.get(flow_id)

    def step_run(self, flow_id: str, step_id: str) -> StepRun:
        try:
            return self._steps[flow_id, step_id]
        except KeyError:
            raise NotLoaded("flow_steps", step_key(flow_id, step_id)) from None

    def want_steps(self, flow_id: str, step_ids: Iterable[str]) -> None:
        steps = self._steps
        lacking = (step_id for step_id in step_ids if (flow_id, step_id) not in steps)
        # Whoever looks at steps may begin one, with what the flow was started with.
        also = () if flow_id in self._inputs or flow_id in self._draft.inputs else [("inputs", flow_id)]
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
        if flow_id not in self._whole_known:
            raise NotLoaded("whole_flows", flow_id)
        return [step for step in self._steps.values() if step.flow_id == flow_id]

    def open_steps(self, flow_id: str) -> list[StepRun]:
        if flow_id not in self._open_known:
            raise NotLoaded("open_flows", flow_id)
        return [step for step in self._steps.values() if step.flow_id == flow_id and step.status in OPEN_STEPS]

    def find_work(self, work_id: str) -> Work | None:
        try:
            return self._work[work_id]
        except KeyError:
            raise NotLoaded("work", work_id) from None

    def work(self, work_id: str) -> Work:
        work = self._work.get(work_id) or self.find_work(work_id)
        if work is None:
            raise UnknownWork
        return work

    def touched_work(self, flow_id: str) -> list[Work]:
        work_of_batch = self._work
        return [
            work
            for work_id in self._touched_work.before
            if (work := work_of_batch[work_id]) is not None and work.flow_id == flow_id
        ]

    def open_work(self, flow_id: str) -> list[Work]:
        if flow_id not in self._open_known:
            raise NotLoaded("open_flows", flow_id)
        return [item for item in self._known_work(flow_id) if item.status not in FINAL_WORK]

    def work_of_step(self, flow_id: str, step_id: str) -> list[Work]:
        if step_key(flow_id, step_id) not in self._step_work_known and not self._begins_here(flow_id):
            raise NotLoaded("step_work", step_key(flow_id, step_id))
        items = [work for work in self._known_work(flow_id) if work.step_id == step_id]
        return sorted(items, key=lambda work: (work.created_at, work.work_id))

    def _begins_here(self, flow_id: str) -> bool:
        return flow_id in self.changes.new.flows or flow_id in self._draft.new.flows

    def _known_work(self, flow_id: str) -> list[Work]:
        ids = dict.fromkeys(self._work_of.get(flow_id, ()))
        ids.update((work.work_id, None) for work in self.touched_work(flow_id))
        return [self.work(work_id) for work_id in ids]

    def waiting_items(self, step: StepRun) -> Iterator[Work]:
        """Items of a step that are not released yet, in their order."""
        first = (0 if step.released is None else step.released + 1) // RELEASED_TOGETHER * RELEASED_TOGETHER
        while first < step.items:
            for work in self._items_between(step, first, first + RELEASED_TOGETHER):
                if work.status is WorkStatus.PENDING and work.due_at is None:
                    yield work
            first += RELEASED_TOGETHER

    def _items_between(self, step: StepRun, first: int, end: int) -> list[Work]:
        if self._begins_here(step.flow_id):
            items = [work for work in self._known_work(step.flow_id) if work.step_id == step.step_id]
            return sorted((work for work in items if first <= work.item < end), key=lambda work: work.item)
        find = Find.of("find_waiting_items", flow_id=step.flow_id, step_id=step.step_id, first=first, end=end)
        ids = [row[0] for row in self.found(find)]
        missing("work", (work_id for work_id in ids if work_id not in self._work))
        return [self.work(work_id) for work_id in ids]

    def inputs(self, flow_id: str) -> FlowInputs:
        found = self._draft.inputs.get(flow_id) or self._inputs.get(flow_id)
        if found is None:
            raise NotLoaded("inputs", flow_id)
        return found

    def plan_of(self, flow: Flow) -> Plan:
        if flow.plan is None:
            return NO_PLAN
        if flow.plan == COOPERATIVE:
            return COOPERATIVE_PLAN
        plan = self._known.plans.get(flow.plan) or self._plans.get(flow.plan) or self._draft.plans.get(flow.plan)
        if plan is None:
            raise NotLoaded("plans", flow.plan)
        return plan

    def version(self, version: str) -> StepVersion:
        found = self._known.versions.get(version) or self._known.version(version)
        if found is None:
            raise NotLoaded("versions", version.removesuffix(UNDOING))
        return found

    def current_version(self, step_id: str) -> StepVersion | None:
        try:
            version = self._current[step_id]
        except KeyError:
            raise NotLoaded("steps", step_id) from None
        return None if version is None else self.version(version)

    def register(self) -> Register:
        """All steps as they are registered now, with what this batch has put or taken out."""
        if self._register is None:
            raise NotLoaded("registers", str(self._known.register.revision))
        return self._register.with_changes({**self.changes.current, **self._draft.current})

    def call(self, call_id: str) -> CancelCall | None:
        try:
            return self._calls[call_id]
        except KeyError:
            raise NotLoaded("calls", call_id) from None

    def found(self, find: Find) -> list[tuple[Any, ...]]:
        """The rows of a search."""
        try:
            return self._found[find]
        except KeyError:
            raise NotLoaded("finds", find) from None

    def active_count(self, step_id: str) -> int:
        """How many items of a step are active, over all flows: as loaded, plus those claimed in this batch."""
        try:
            return self._active[step_id]
        except KeyError:
            raise NotLoaded("active_counts", step_id) from None

    def count_active(self, step_id: str) -> None:
        """One more item of the step becomes active in this batch."""
        self._active[step_id] = self.active_count(step_id) + 1

    def is_limited(self, version_id: str) -> bool:
        """Whether only so many items of a step may be active at once, as far as this batch had to know."""
        version = self._known.version(version_id)
        return version is None or version.work.parallelism is not None

    # Telling -----------------------------------------------------------------------------------------------------

    def unlabelled(self) -> set[str]:
        """The flows whose labels must be known before anybody is told of what the batch has decided."""
        audience = self.audience()
        if not audience:
            return set()
        told = notices_of(self.changes.events, self.changes.approvals, audience)
        return filtered_by_labels(told, audience) - self._inputs.keys()

    def tell(self) -> None:
        """Every command was decided: note what subscribers are to be told of it, to be written with it."""
        audience = self.audience()
        if not audience:
            return
        changes = self.changes
        labels = {flow_id: inputs.labels for flow_id, inputs in self._inputs.items()}
        notices = notices_of(changes.events, changes.approvals, audience)
        for notice, subscription in addressed(notices, audience, labels):
            told = delivery(notice, subscription.subscription_id, f"msg_{self.new_id()}", changes.at)
            changes.deliveries[told.delivery_id] = told

    # Changing ----------------------------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        """Apply an event to the drafts that it concerns and note it for the journal."""
        if event.flow_id in self._pruned:
            raise UnknownFlow
        APPLY[event.type](event, self)
        self._draft.events.append(event)

    def draft_work(self, work_id: str) -> Work:
        work = self.work(work_id)
        before = self._touched_work.before
        if work_id not in before:
            before[work_id] = work
            work = self._work[work_id] = work.draft()
        return work

    def draft_step(self, flow_id: str, step_id: str) -> StepRun:
        key = (flow_id, step_id)
        step = self._steps.get(key) or self.step_run(flow_id, step_id)
        before = self._touched_steps.before
        if key not in before:
            before[key] = step
            step = self._steps[key] = step.draft()
        return step

    def draft_flow(self, flow_id: str) -> Flow:
        flow = self.flow(flow_id)
        before = self._touched_flows.before
        if flow_id not in before:
            before[flow_id] = flow
            flow = self._flows[flow_id] = flow.draft()
        return flow

    def create_work(self, work: Work) -> None:
        self._touched_work.put(work.work_id, work)
        self._draft.new.work.add(work.work_id)

    def create_flow(self, flow: Flow, steps: list[StepRun]) -> None:
        """A flow that begins here is known whole."""
        self._touched_flows.put(flow.flow_id, flow)
        self._draft.new.flows.add(flow.flow_id)
        for step in steps:
            self.create_step(step)
        self._open_known.add(flow.flow_id)
        self._whole_known.add(flow.flow_id)

    def create_step(self, step: StepRun) -> None:
        key = (step.flow_id, step.step_id)
        self._touched_steps.put(key, step)
        self._draft.new.steps.add(key)

    def start_with(self, inputs: FlowInputs, plan: Plan) -> None:
        """Note what a new flow was started with."""
        self._draft.inputs[inputs.flow_id] = inputs
        if plan.plan_id not in self._known.plans and not plan.is_cooperative:
            self._draft.plans[plan.plan_id] = plan

    def dispatch_at_once(self, work: Work, step: StepVersion, now: int) -> None:
        # A step with a limit over all flows is claimed by the sweep, which counts what is out.
        if not step.work.is_limited:
            self.inputs(work.flow_id)  # they are asked for when the batch has committed, and loading is over
            if may_be_sent(self, work, step, now) and self.capacity.take_at_once(work.lane):
                self.record(dispatch(work, step, self.node_id, now))

    def call_later(self, call: CancelCall) -> None:
        self._draft.calls[call.call_id] = call

    def forget_call(self, call_id: str) -> None:
        self._draft.calls[call_id] = None

    def put_current(self, step_id: str, version: StepVersion | None) -> None:
        """Make a version the current one of its step, or take the step out of the register."""
        self._draft.current[step_id] = version

    def keep(self) -> None:
        """The command was decided: its drafts become the unit's."""
        draft, changes = self._draft, self.changes
        if draft.is_unusual():
            self._keep_unusual(draft)
            self._draft = Drafted()
        changes.events += draft.events
        draft.events.clear()
        self._touched_flows.keep(changes.flows)
        self._touched_steps.keep(changes.steps)
        self._touched_work.keep(changes.work)
        if self.touched_shelves:
            self._keep_shelves()
        self.rates.keep(changes.rates)
        self.pruning.keep(changes.pruned)

    def _keep_unusual(self, draft: Drafted) -> None:
        """What only some commands have changed."""
        if draft.new.work:
            for work_id in self._touched_work.before:
                work = self.work(work_id)
                self._work_of.setdefault(work.flow_id, {})[work_id] = None
        self._inputs.update(draft.inputs)
        self._plans.update(draft.plans)
        self._calls.update(draft.calls)
        for step_id, version in draft.current.items():
            self._current[step_id] = None if version is None else version.version
            if version is not None:
                self._known.versions[version.version] = version
        self.changes.include(draft)

    def discard(self) -> None:
        """The command was refused: nothing of it remains."""
        self._draft = Drafted()
        self._touched_flows.take_back()
        self._touched_steps.take_back()
        self._touched_work.take_back()
        if self.touched_shelves:
            self._clear_shelves()
        self.rates.discard()
        self.pruning.discard()
