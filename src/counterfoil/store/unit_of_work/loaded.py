"""What a batch has loaded so far: records as the store holds them, and of what it is known that all was loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.records import (
    Approval,
    CancelCall,
    Flow,
    FlowInputs,
    Gate,
    KeyOwner,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.schedules import Schedule
from counterfoil.domain.steps.checks import Findings
from counterfoil.domain.steps.register import Register
from counterfoil.domain.subscriptions.definitions import Delivery, Subscription
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.unit_of_work.rates import Rates
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.store.unit_of_work.shelf import Shelf


class Loaded:
    """What was loaded first stays: a later load must not undo what the batch has decided meanwhile."""

    def __init__(self, known: DefinitionCache) -> None:
        self._known = known
        self._flows: dict[str, Flow | None] = {}
        self._steps: dict[tuple[str, str], StepRun] = {}
        self._outputs: dict[tuple[str, str], dict[str, Any]] = {}
        self._work: dict[str, Work | None] = {}
        self._work_of: dict[str, dict[str, None]] = {}
        self._inputs: dict[str, FlowInputs] = {}
        self._plans: dict[str, Plan] = {}
        self._current: dict[str, str | None] = {}
        self._register: Register | None = None
        self._calls: dict[str, CancelCall | None] = {}
        self._active: dict[str, int] = {}
        self._found: dict[Find, list[tuple[Any, ...]]] = {}
        self._open_known: set[str] = set()
        self._whole_known: set[str] = set()
        self._step_work_known: set[str] = set()
        self.touched_shelves: set[Shelf[Any]] = set()
        self.schedules: Shelf[Schedule] = Shelf("schedules", self.touched_shelves)
        self.gates: Shelf[Gate] = Shelf("gates", self.touched_shelves)
        self.approvals: Shelf[Approval] = Shelf("approvals", self.touched_shelves)
        self.keys: Shelf[KeyOwner] = Shelf("keys", self.touched_shelves)
        self.kept_policies: Shelf[KeptPolicy] = Shelf("policies", self.touched_shelves)
        self.subscriptions: Shelf[Subscription] = Shelf("subscriptions", self.touched_shelves)
        self.deliveries: Shelf[Delivery] = Shelf("deliveries", self.touched_shelves)
        self.rates = Rates()
        self.revisions: dict[str, int] = {}
        """How often each loaded flow had changed, on a store that several nodes write to."""
        self.findings: Findings = known.findings

    def add_whole(self, work: Work, step: StepRun, flow: Flow, revision: int) -> None:
        """A work item with its step and flow, as they are at this revision."""
        work_id, flow_id = work.work_id, work.flow_id
        if work_id not in self._work:
            self._work[work_id] = work
            self._work_of.setdefault(flow_id, {})[work_id] = None
        self._steps.setdefault((flow_id, work.step_id), step)
        self._flows.setdefault(flow_id, flow)
        self.revisions[flow_id] = revision

    def add_flow(self, flow_id: str, flow: Flow | None) -> None:
        self._flows.setdefault(flow_id, flow)

    def add_step_run(self, step: StepRun) -> None:
        self._steps.setdefault((step.flow_id, step.step_id), step)

    def add_outputs(self, flow_id: str, step_id: str, outputs: dict[str, Any] | None) -> None:
        self._outputs.setdefault((flow_id, step_id), outputs or {})

    def add_work(self, work_id: str, work: Work | None) -> None:
        if work_id not in self._work:
            self._work[work_id] = work
            if work is not None:
                self._work_of.setdefault(work.flow_id, {})[work_id] = None

    def add_inputs(self, inputs: FlowInputs) -> None:
        self._inputs.setdefault(inputs.flow_id, inputs)

    def add_current(self, step_id: str, version: str | None) -> None:
        self._current.setdefault(step_id, version)

    def add_version(self, version: str, definition: StepVersion) -> None:
        self._known.versions.setdefault(version, definition)

    def knows_version(self, version: str) -> bool:
        return version in self._known.versions

    def add_register(self, revision: int, versions: Iterable[str] | None) -> None:
        """The register is at this revision, and has these steps; None: it is the one that was known.

        If another batch has seen a newer one in the meantime, that is what will be asked for.
        """
        if versions is not None:
            self._register = Register(revision, (self._known.versions[version] for version in versions))
            if revision > self._known.register.revision:
                self._known.register = self._register
        elif self._known.register.revision == revision:
            self._register = self._known.register

    def add_plan(self, plan: Plan) -> None:
        self._known.learn_plans([plan])
        self._plans[plan.plan_id] = plan

    def add_call(self, call_id: str, call: CancelCall | None) -> None:
        self._calls.setdefault(call_id, call)

    def add_active_count(self, step_id: str, count: int) -> None:
        self._active.setdefault(step_id, count)

    def add_found(self, find: Find, rows: list[tuple[Any, ...]]) -> None:
        self._found.setdefault(find, rows)

    def know_open(self, flow_ids: Iterable[str]) -> None:
        """All open work and steps of these flows have been loaded."""
        self._open_known.update(flow_ids)

    def know_whole(self, flow_ids: Iterable[str]) -> None:
        """All steps of these flows have been loaded."""
        self._whole_known.update(flow_ids)

    def know_step_work(self, keys: Iterable[str]) -> None:
        """All items of these steps have been loaded."""
        self._step_work_known.update(keys)
