"""The world of one batch: what was loaded, and what its commands have changed so far.

Commands of one batch are decided one after the other against the same world, so that the second of two reports on one
receipt sees the first. Each command works on drafts: ``keep`` makes them part of the world, ``discard`` drops them
without a trace, which is how one bad command never spoils its neighbours.

A decision that looks at something not loaded raises ``NotLoaded``; the batch then loads everything that was missed at
once and decides that command again. Decisions are pure, so deciding twice is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol

from counterfoil.domain.errors import UnknownFlow, UnknownWork
from counterfoil.domain.events import (
    ENDS_FLOW,
    ENDS_STEP,
    ENDS_WORK,
    Event,
    EventType,
    evolve_flow,
    evolve_step,
    evolve_work,
    flow_from,
    step_from,
    work_from,
)
from counterfoil.domain.model import CancelCall, Flow, FlowInputs, StepRun, StepVersion, Work
from counterfoil.domain.settle import step_is_open
from counterfoil.domain.states import FINAL_WORK
from counterfoil.store.changes import Changes, NewKeys
from counterfoil.store.needs import Find, NotLoaded


class Capacity(Protocol):
    """How many more dispatches may begin now. A batch has its own; what it takes is gone for its other commands."""

    def take(self, lane: str) -> bool:
        """A place for work that has waited for its turn."""
        ...

    def take_at_once(self, lane: str) -> bool:
        """A place for work that was made just now; none while others wait in its lane."""
        ...

    def note_full(self, step_id: str) -> None:
        """The step has as many items out as it may have."""
        ...

    def give_back(self) -> None:
        """The batch is over: what it took is free again, until what it has claimed is really sent."""
        ...


class _NoCapacity:
    def take(self, lane: str) -> bool:
        return False

    take_at_once = take

    def note_full(self, step_id: str) -> None:
        pass

    def give_back(self) -> None:
        pass


NO_CAPACITY: Capacity = _NoCapacity()


class World:
    """Loaded records, drafts of the present command, and everything that the batch will write."""

    def __init__(self, versions: dict[str, StepVersion]) -> None:
        self._versions = versions
        self._flows: dict[str, Flow | None] = {}
        self._steps: dict[tuple[str, str], StepRun] = {}
        self._work: dict[str, Work | None] = {}
        self._inputs: dict[str, FlowInputs] = {}
        self._current: dict[str, str | None] = {}
        self._calls: dict[str, CancelCall | None] = {}
        self._open_known: set[str] = set()
        self._work_of: dict[str, dict[str, None]] = {}
        self._draft_flows: dict[str, Flow] = {}
        self._draft_steps: dict[tuple[str, str], StepRun] = {}
        self._draft_work: dict[str, Work] = {}
        self._draft_new = NewKeys()
        self._draft_events: list[Event] = []
        self._draft_calls: dict[str, CancelCall | None] = {}
        self._draft_inputs: dict[str, FlowInputs] = {}
        self._draft_current: dict[str, StepVersion | None] = {}
        self._active: dict[str, int] = {}
        self._found: dict[Find, list[tuple[Any, ...]]] = {}
        self.revisions: dict[str, int] = {}
        """How often each loaded flow had changed, on a store that several nodes write to."""
        self.capacity: Capacity = NO_CAPACITY
        self.node_id = ""
        """The node that decides, and so sends what is claimed here."""
        self.changes = Changes()

    # Loading -----------------------------------------------------------------------------------------------------

    def add_flow(self, flow_id: str, flow: Flow | None) -> None:
        self._flows.setdefault(flow_id, flow)

    def add_step_run(self, step: StepRun) -> None:
        self._steps.setdefault((step.flow_id, step.step_id), step)

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
        self._versions.setdefault(version, definition)

    def add_call(self, call_id: str, call: CancelCall | None) -> None:
        self._calls.setdefault(call_id, call)

    def add_active_count(self, step_id: str, count: int) -> None:
        self._active.setdefault(step_id, count)

    def add_found(self, find: Find, rows: list[tuple[Any, ...]]) -> None:
        self._found.setdefault(find, rows)

    def know_open(self, flow_ids: Iterable[str]) -> None:
        """All open work and steps of these flows have been loaded."""
        self._open_known.update(flow_ids)

    # Looking -----------------------------------------------------------------------------------------------------

    def find_flow(self, flow_id: str) -> Flow | None:
        draft = self._draft_flows.get(flow_id)
        if draft is not None:
            return draft
        try:
            return self._flows[flow_id]
        except KeyError:
            raise NotLoaded("flows", flow_id) from None

    def flow(self, flow_id: str) -> Flow:
        flow = self.find_flow(flow_id)
        if flow is None:
            raise UnknownFlow
        return flow

    def known_flow(self, flow_id: str) -> Flow | None:
        """The flow as the batch leaves it, if it was loaded at all."""
        return self._flows.get(flow_id)

    def step_run(self, flow_id: str, step_id: str) -> StepRun:
        key = (flow_id, step_id)
        draft = self._draft_steps.get(key)
        if draft is not None:
            return draft
        try:
            return self._steps[key]
        except KeyError:
            raise NotLoaded("open_flows", flow_id) from None

    def find_work(self, work_id: str) -> Work | None:
        draft = self._draft_work.get(work_id)
        if draft is not None:
            return draft
        try:
            return self._work[work_id]
        except KeyError:
            raise NotLoaded("work", work_id) from None

    def work(self, work_id: str) -> Work:
        work = self.find_work(work_id)
        if work is None:
            raise UnknownWork
        return work

    def inputs(self, flow_id: str) -> FlowInputs:
        return self._draft_inputs.get(flow_id) or self._inputs[flow_id]

    def want_inputs(self, flow_id: str) -> None:
        """Name what ``inputs`` will be asked for once the batch has committed, when loading is over."""
        if flow_id not in self._inputs and flow_id not in self._draft_inputs:
            raise NotLoaded("inputs", flow_id)

    def version(self, version: str) -> StepVersion:
        try:
            return self._versions[version]
        except KeyError:
            raise NotLoaded("versions", version) from None

    def current_version(self, step_id: str) -> StepVersion | None:
        try:
            version = self._current[step_id]
        except KeyError:
            raise NotLoaded("steps", step_id) from None
        return None if version is None else self.version(version)

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

    def is_limited(self, work: Work) -> bool:
        """Whether only so many items of its step may be active at once, as far as this batch had to know."""
        version = self._versions.get(work.version)
        return version is None or version.work.parallelism is not None

    def touched_work(self, flow_id: str) -> list[Work]:
        return [work for work in self._draft_work.values() if work.flow_id == flow_id]

    def open_work(self, flow_id: str) -> list[Work]:
        if flow_id not in self._open_known:
            raise NotLoaded("open_flows", flow_id)
        work = (self.work(work_id) for work_id in self._work_of.get(flow_id, ()))
        return [item for item in work if item.status not in FINAL_WORK]

    def open_steps(self, flow_id: str) -> list[StepRun]:
        if flow_id not in self._open_known:
            raise NotLoaded("open_flows", flow_id)
        keys = [key for key in {**self._steps, **self._draft_steps} if key[0] == flow_id]
        return [step for key in keys if step_is_open(step := self.step_run(*key))]

    # Changing ----------------------------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        """Apply an event to the drafts that it concerns and note it for the journal."""
        self._APPLY[event.type](self, event)
        self._draft_events.append(event)

    def _apply_to_work(self, event: Event) -> None:
        work_id = event.work_id or ""
        draft = self._draft_work.get(work_id)
        if draft is None:
            draft = self._draft_work[work_id] = self.work(work_id).draft()
        evolve_work(draft, event)

    def _end_work(self, event: Event) -> None:
        self._apply_to_work(event)
        self._apply_to_step(event)

    def _apply_to_step(self, event: Event) -> None:
        key = (event.flow_id, event.step_id or "")
        draft = self._draft_steps.get(key)
        if draft is None:
            draft = self._draft_steps[key] = self.step_run(*key).draft()
        evolve_step(draft, event)

    def _end_step(self, event: Event) -> None:
        self._apply_to_step(event)
        self._apply_to_flow(event)

    def _apply_to_flow(self, event: Event) -> None:
        draft = self._draft_flows.get(event.flow_id)
        if draft is None:
            draft = self._draft_flows[event.flow_id] = self.flow(event.flow_id).draft()
        evolve_flow(draft, event)

    def _create_work(self, event: Event) -> None:
        work = work_from(event)
        self._draft_work[work.work_id] = work
        self._draft_new.work.add(work.work_id)

    def _create_step(self, event: Event) -> None:
        step = step_from(event)
        self._draft_steps[(step.flow_id, step.step_id)] = step
        self._draft_new.steps.add((step.flow_id, step.step_id))

    def _create_flow(self, event: Event) -> None:
        self._draft_flows[event.flow_id] = flow_from(event)
        self._draft_new.flows.add(event.flow_id)

    def _note_only(self, event: Event) -> None:
        """It changes no record: the journal alone tells of it."""

    _APPLY: ClassVar[dict[EventType, Callable[[World, Event], None]]] = {
        EventType.FLOW_STARTED: _create_flow,
        EventType.STEP_STARTED: _create_step,
        EventType.WORK_CREATED: _create_work,
        EventType.CANCEL_DELIVERED: _note_only,
        EventType.CANCEL_UNDELIVERED: _note_only,
        EventType.WORK_DISPATCHED: _apply_to_work,
        EventType.WORK_ACKNOWLEDGED: _apply_to_work,
        EventType.WORK_HEARTBEAT: _apply_to_work,
        EventType.WORK_POSTPONED: _apply_to_work,
        EventType.WORK_NOT_COMPLETED: _apply_to_work,
        **dict.fromkeys(ENDS_WORK, _end_work),
        **dict.fromkeys(ENDS_STEP, _end_step),
        **dict.fromkeys(ENDS_FLOW, _apply_to_flow),
    }
    """What each event changes: the end of an item also counts in its step, the end of a step in its flow."""

    def start_with(self, inputs: FlowInputs) -> None:
        """Note what a new flow was started with. A flow that begins here is known whole."""
        self._draft_inputs[inputs.flow_id] = inputs
        self._open_known.add(inputs.flow_id)

    def call_later(self, call: CancelCall) -> None:
        self._draft_calls[call.call_id] = call

    def forget_call(self, call_id: str) -> None:
        self._draft_calls[call_id] = None

    def register(self, step_id: str, version: StepVersion | None) -> None:
        """Make a version the current one of its step, or take the step out of the register."""
        self._draft_current[step_id] = version

    def keep(self) -> None:
        """The command was decided: its drafts become the world's."""
        changes = self.changes
        if self._draft_new.any():
            changes.new.flows |= self._draft_new.flows
            changes.new.steps |= self._draft_new.steps
            changes.new.work |= self._draft_new.work
        for flow_id, flow in self._draft_flows.items():
            self._flows[flow_id] = changes.flows[flow_id] = flow
        for key, step in self._draft_steps.items():
            self._steps[key] = changes.steps[key] = step
        for work_id, work in self._draft_work.items():
            self._work[work_id] = changes.work[work_id] = work
            self._work_of.setdefault(work.flow_id, {})[work_id] = None
        for flow_id, inputs in self._draft_inputs.items():
            self._inputs[flow_id] = changes.inputs[flow_id] = inputs
        for call_id, call in self._draft_calls.items():
            self._calls[call_id] = changes.calls[call_id] = call
        for step_id, version in self._draft_current.items():
            changes.current[step_id] = version
            self._current[step_id] = None if version is None else version.version
            if version is not None:
                self._versions[version.version] = changes.versions[version.version] = version
        changes.events.extend(self._draft_events)
        self._clear()

    def discard(self) -> None:
        """The command was refused: nothing of it remains."""
        self._clear()

    def _clear(self) -> None:
        self._draft_events = []
        self._draft_work = {}
        self._draft_steps = {}
        self._draft_flows = {}
        if self._draft_new.any():
            self._draft_new = NewKeys()
            self._draft_inputs = {}
        if self._draft_calls:
            self._draft_calls = {}
        if self._draft_current:
            self._draft_current = {}
