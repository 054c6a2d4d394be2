"""Settle: brings a flow to its fixpoint after any change. The only module that begins and ends steps and flows.

Every command that changes a flow calls ``settle`` once, whatever it did; no call site has to know what comes next.
``settle`` reads what the command changed, counters, and the neighbours in the plan of steps that have ended, never all
items or all steps; so its cost does not grow with the flow. Only ending a flow early reads everything that is open.

A pending step is in one of four situations, which follow from the states of the steps that it waits for: ready;
waiting; skipped, because a required value will never come although no step failed; blocked, because a step failed. So a
flow never rests without open work: a waiting step always waits for an open step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from counterfoil.domain.flows.ending import cancel_items, end_early, go_on_undoing
from counterfoil.domain.flows.readiness import Blocked, Ready, Skipped, readiness
from counterfoil.domain.flows.running import outputs_of, release_items, start_step
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType, step_event
from counterfoil.domain.records import Flow, StepRun, StepVersion, Work
from counterfoil.domain.states import FINAL_FLOWS, FINAL_STEPS, OPEN_STEPS, FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.work.decisions import child_failed, child_succeeded
from counterfoil.domain.work.results import StepResult

# Looked up once: Python 3.11 takes five times as long for a member of an enumeration as for a name of the module, and
# every report runs this code.
_FLOW_ACTIVE, _STEP_ACTIVE = FlowStatus.ACTIVE, StepStatus.ACTIVE
_STEP_COMPLETED, _FLOW_COMPLETED = EventType.STEP_COMPLETED, EventType.FLOW_COMPLETED


def settle(view: FlowView, flow_id: str, now: int, *, look_at: Iterable[str] = ()) -> None:
    """Begin and end everything in a flow that can be begun or ended, and in its outer flows and sub-flows.

    ``look_at``: steps that may have become ready although no step that they wait for has changed.
    """
    flows: list[tuple[str, Iterable[str]]] = [(flow_id, look_at)]
    for settled_id, steps in flows:  # which grows during the loop
        settling = _Settling(view, settled_id, now)
        settling.run(steps)
        if settling.children:
            flows += [(child, _first_look(view, child, settled_id)) for child in settling.children]
        if settling.parent is None:
            continue
        flow = view.flow(settled_id)
        if flow.status in FINAL_FLOWS and _tell_parent(view, flow, now):
            flows.append((settling.parent["flow_id"], ()))


def _first_look(view: FlowView, flow_id: str, cause: str) -> Iterable[str]:
    """The steps to look at in a flow that another one has changed: all of a sub-flow, which has just begun."""
    flow = view.flow(flow_id)
    began = flow.parent is not None and flow.parent["flow_id"] == cause
    return view.plan_of(flow).steps if began else ()


def begin(view: FlowView, flow_id: str, now: int) -> None:
    """Settle a flow that has just been started."""
    settle(view, flow_id, now, look_at=view.plan_of(view.flow(flow_id)).steps)


class _Settling:
    """Brings one flow to its fixpoint."""

    __slots__ = ("_active", "_ended", "_flow_id", "_now", "_plan", "_view", "children", "parent")

    def __init__(self, view: FlowView, flow_id: str, now: int) -> None:
        self._view = view
        self._flow_id = flow_id
        self._now = now
        flow = view.flow(flow_id)
        self._plan = view.plan_of(flow)
        self.parent = flow.parent
        self._active = flow.status is _FLOW_ACTIVE
        """Whether the flow is active; only this object ends it while it runs."""
        self._ended: list[str] = []
        """Steps that have ended and whose neighbours are to be re-evaluated, in the order in which they ended."""
        self.children: list[str] = []
        """Sub-flows that began in this flow, and other flows that its steps have changed: they are settled next."""

    def run(self, look_at: Iterable[str]) -> None:
        view, flow_id = self._view, self._flow_id
        if not self._active:
            if view.flow(flow_id).status is FlowStatus.COMPENSATING:
                go_on_undoing(view, flow_id, self._now)
            return
        for work in view.touched_work(flow_id):
            if work.undoes is None:
                self._count(work.step_id, work)
        for step_id in look_at:
            self._look(step_id)
        for step_id in self._ended:  # which grows during the loop
            if self._goes_on():
                self._tell_neighbours(step_id)
        if self._goes_on() and not self._plan.is_cooperative and view.flow(flow_id).open_steps == 0:
            view.record(Event(_FLOW_COMPLETED, self._now, flow_id))

    def _goes_on(self) -> bool:
        return self._active

    def _step(self, step_id: str) -> StepRun:
        return self._view.step_run(self._flow_id, step_id)

    # Active steps -------------------------------------------------------------------------------------------------

    def _count(self, step_id: str, last: Work | None) -> None:
        """Complete or fail an active step if its items require it. ``last``: the item that has changed."""
        step = self._view.step_run(self._flow_id, step_id)
        if step.status is not _STEP_ACTIVE or not self._active:
            return
        version = self._view.version(step.version)
        fail_fast = version.definition.fail_fast
        waiting = 0  # most steps have no waiting items
        while step.waiting_items != waiting and not (step.failed_items and fail_fast):
            waiting = step.waiting_items
            self.children += release_items(self._view, step, version, self._now)  # some may end at once
            step = self._step(step_id)
        if step.failed_items and fail_fast:
            self._fail(step, self._failed_item(step_id))
        elif step.open_items == 0:
            self._complete(step, version, last)

    def _failed_item(self, step_id: str) -> Work:
        """The first item that failed in this command: the step ends with it."""
        return next(
            work
            for work in self._view.touched_work(self._flow_id)
            if work.step_id == step_id and work.undoes is None and work.status is WorkStatus.FAILED
        )

    def _fail(self, step: StepRun, work: Work) -> None:
        if step.open_items:
            others = [item for item in self._view.open_work(self._flow_id) if item.step_id == step.step_id]
            compensate = self._view.inputs(self._flow_id).options.get("compensate", True)
            reason = "another item of the step failed"
            cancel_items(self._view, others, self._now, reason, compensate=compensate)
        error = {**(work.error or {}), "step_id": step.step_id, "work_id": work.work_id}
        self._view.record(step_event(step, EventType.STEP_FAILED, self._now, {"error": error}))
        self._after(step.step_id)

    def _complete(self, step: StepRun, version: StepVersion, last: Work | None) -> None:
        outputs = outputs_of(self._view, step, version, last)
        if self._plan.rivals or self._plan.gives_anything:
            for name in self._given_already(step.step_id, outputs):
                del outputs[name]
        self._view.record(step_event(step, _STEP_COMPLETED, self._now, {"outputs": outputs}))
        self._note_end(step.step_id)

    def _given_already(self, step_id: str, outputs: dict[str, Any]) -> list[str]:
        """Values that another step has already given: the first outcome wins."""
        plan, view = self._plan, self._view
        rivals: dict[str, Iterable[str]] = {name: plan.rivals[name] for name in outputs if name in plan.rivals}
        if plan.gives_anything:
            rivals = dict.fromkeys(outputs, plan.steps)
        if not rivals:
            return []
        view.want_steps(self._flow_id, {other for others in rivals.values() for other in others})
        return [
            name
            for name, others in rivals.items()
            if any(
                other != step_id
                and self._step(other).status is StepStatus.COMPLETED
                and name in view.outputs(self._flow_id, other)
                for other in others
            )
        ]

    # Waiting steps ------------------------------------------------------------------------------------------------

    def _after(self, step_id: str) -> None:
        """Handle the end of a step. If a goal has failed, the flow fails."""
        step = self._step(step_id)
        if step.goal and step.error is not None and step.status in (StepStatus.FAILED, StepStatus.CANCELLED):
            compensate = self._view.inputs(self._flow_id).options.get("compensate", True)
            reason = "the flow failed"
            end_early(self._view, self._flow_id, self._now, "failed", reason, step.error, compensate=compensate)
            self._active = False
        else:
            self._note_end(step_id)

    def _note_end(self, step_id: str) -> None:
        """Queue the re-evaluation of its neighbours; a plan with a single step has none."""
        if step_id in self._plan.connected:
            self._ended.append(step_id)

    def _tell_neighbours(self, step_id: str) -> None:
        near = self._plan.neighbours.get(step_id)
        if near:
            self._view.want_steps(self._flow_id, near)
            for consumer in self._plan.consumers[step_id]:
                if self._active:
                    self._look(consumer)
        if self._active:
            self._let_go_of_sources(step_id)

    def _look(self, step_id: str) -> None:
        """Begin or end a pending step, or leave it waiting, depending on the steps that it waits for."""
        step = self._step(step_id)
        if step.status is not StepStatus.PENDING or not self._active:
            return
        situation = readiness(self._view, self._plan, step, self._now)
        if isinstance(situation, Ready):
            self._start(step)
        elif isinstance(situation, Skipped):
            self._view.record(step_event(step, EventType.STEP_SKIPPED, self._now, {"reason": situation.reason}))
            self._after(step_id)
        elif isinstance(situation, Blocked):
            data = {"reason": situation.reason, "error": situation.error}
            self._view.record(step_event(step, EventType.STEP_CANCELLED, self._now, data))
            self._after(step_id)
        elif (step.ready_at, step.due_at) != (situation.ready_at, situation.until):
            clock = {"ready_at": situation.ready_at, "until": situation.until}
            self._view.record(step_event(step, EventType.STEP_WAITING, self._now, clock))

    def _start(self, step: StepRun) -> None:
        self.children += start_step(self._view, step, self._now)
        step = self._step(step.step_id)
        if step.status in FINAL_STEPS:
            self._after(step.step_id)
            return
        self._count(step.step_id, None)  # skipped items and failed sub-flows have ended already
        self._let_go_of_sources(step.step_id)

    # Steps that are no longer needed ------------------------------------------------------------------------------

    def _let_go_of_sources(self, step_id: str) -> None:
        """End the sources of a step that has begun or ended, as far as no other step needs them.

        A pending source is skipped. An active one may finish, unless the step waited only for some of several: then it
        is cancelled.
        """
        sources = self._plan.sources.get(step_id)
        if not sources:
            return
        still_open = [source for source in sources if self._step(source).status in OPEN_STEPS]
        for source in still_open:
            step = self._step(source)
            if step.goal or not self._active:
                continue
            consumers = self._plan.consumers[source]
            self._view.want_steps(self._flow_id, consumers)
            if any(self._step(consumer).status is StepStatus.PENDING for consumer in consumers):
                continue
            lost = source in self._plan.waits.get(step_id, {}).get("of", ())
            self._leave_out(step, lost=lost, consumers=consumers)

    def _leave_out(self, step: StepRun, *, lost: bool, consumers: tuple[str, ...]) -> None:
        reason = "enough other steps have completed" if lost else "its outputs are no longer needed"
        if step.status is StepStatus.ACTIVE:
            if not lost:
                return
            items = [work for work in self._view.open_work(self._flow_id) if work.step_id == step.step_id]
            cancel_items(self._view, items, self._now, reason)
        blocked = any(self._step(consumer).status is StepStatus.CANCELLED for consumer in consumers)
        kind = EventType.STEP_CANCELLED if lost or blocked else EventType.STEP_SKIPPED
        self._view.record(step_event(step, kind, self._now, {"reason": reason}))
        self._after(step.step_id)


def _tell_parent(view: FlowView, flow: Flow, now: int) -> bool:
    """Report the end of a sub-flow as the outcome of its work item; False: that item has an outcome already."""
    assert flow.parent is not None
    work = view.work(flow.parent["work_id"])
    if work.status is not WorkStatus.ACTIVE:
        return False
    version = view.version(work.version)
    if flow.status is FlowStatus.COMPLETED:
        assert version.definition.flow is not None
        wanted = version.definition.flow.outputs
        values = _values_of(view, flow, wanted.values())
        result = StepResult(success=True, outputs={name: values.get(source) for name, source in wanted.items()})
        view.record(child_succeeded(work, version, result, now, view.findings))
    else:
        view.record(child_failed(work, flow, now))
    return True


def _values_of(view: FlowView, flow: Flow, names: Iterable[str]) -> dict[str, Any]:
    """Values of a completed flow: the outputs of its steps, and its inputs."""
    wanted = set(names)
    values = {name: value for name, value in view.inputs(flow.flow_id).init.items() if name in wanted}
    for step in view.steps_of(flow.flow_id):
        if step.status is StepStatus.COMPLETED:
            outputs = view.outputs(flow.flow_id, step.step_id)
            values.update({name: outputs[name] for name in wanted & outputs.keys()})
    return values
