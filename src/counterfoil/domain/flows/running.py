"""Runs a step of a flow: creates its work items from its inputs, and its outputs from their outcomes.

Every step passes through its states in the journal, even if it ends at once: skipped by its predicate, failed by its
inputs, or completed with no items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from counterfoil.domain.effects.keys import idempotency_key
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.expressions.predicates import PredicateFailed
from counterfoil.domain.flows.fan_out import FanOutError, fanned_out, gathered
from counterfoil.domain.flows.launch import LINKS, Launch, launch
from counterfoil.domain.flows.requests import arguments_for, declared_outputs, invalid_inputs
from counterfoil.domain.flows.reviving import revive
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.hooks.ownership import open_hook
from counterfoil.domain.journal.events import Event, EventType, step_event
from counterfoil.domain.records import StepRun, StepVersion, Work
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps.checks import Findings, Inspection
from counterfoil.domain.steps.definitions import DEEPEST_FLOW
from counterfoil.domain.work.decisions import cancel, fail, work_event
from counterfoil.domain.work.dispatching import dispatch_at_once

INHERITED = ("compensate", "started_by", LINKS)
"""Options that a sub-flow takes over."""


def start_step(view: FlowView, step: StepRun, now: int) -> list[str]:
    """Begin a step that is ready: it becomes active or ends at once. Returns the sub-flows that it started."""
    version = view.version(step.version)
    definition = version.definition
    values, from_init = _values(view, step)
    try:
        arguments = arguments_for(definition, values)
        if not from_init:
            _refuse_invalid(version, values, view.findings)
        items = fanned_out(definition, arguments, view.rules.max_fan_out) if definition.fans_out else [arguments]
        wanted = [version.predicate is None or version.predicate.holds(item) for item in items]
    except _CannotStart as refusal:
        _fail_at_start(view, step, now, refusal.code, str(refusal))
        return []
    except FanOutError as error:
        _fail_at_start(view, step, now, "INVALID_INPUT", str(error))
        return []
    except PredicateFailed as error:
        _fail_at_start(view, step, now, "PREDICATE_FAILED", f"the predicate cannot be evaluated: {error}")
        return []
    if not definition.fans_out and not wanted[0]:
        view.record(step_event(step, EventType.STEP_SKIPPED, now, {"reason": "its predicate is false"}))
        return []
    own = None if from_init and not definition.fans_out else items
    return _start_items(view, step, version, _Items(items, wanted, own), now)


class _CannotStart(ValueError):
    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class _Items:
    """The input from which the items of a step are created."""

    def __init__(self, arguments: list[dict[str, Any]], wanted: list[bool], own: list[dict[str, Any]] | None) -> None:
        self.arguments = arguments
        self.wanted = wanted
        """Whether the predicate holds, for each item."""
        self.own = own
        """The arguments again, if the items must store them; None: they follow from the inputs of the flow."""


def _values(view: FlowView, step: StepRun) -> tuple[dict[str, Any], bool]:
    """All values that the step may take, and whether they all come from the inputs of the flow."""
    flow = view.flow(step.flow_id)
    plan = view.plan_of(flow)
    init = view.inputs(step.flow_id).init
    bringers = dict(plan.requires.get(step.step_id, {}))
    for name, option in plan.options.get(step.step_id, {}).items():
        bringers[name] = option["of"]
    if not bringers:
        return init, True
    values = dict(init)
    view.want_steps(step.flow_id, (source for sources in bringers.values() for source in sources))
    for name, sources in bringers.items():
        for source in sources:
            if view.step_run(step.flow_id, source).status is not StepStatus.COMPLETED:
                continue
            outputs = view.outputs(step.flow_id, source)
            if name in outputs:
                values[name] = outputs[name]
                break
    return values, False


def _refuse_invalid(version: StepVersion, values: dict[str, Any], findings: Findings) -> None:
    """The inputs of the flow were checked at its start; outputs of a step only against that step's declaration."""
    inspection = Inspection(findings)
    wrong = invalid_inputs(version.definition, values, inspection)
    inspection.close()
    for name, problem in wrong:
        raise _CannotStart("INVALID_INPUT", f"{name} {problem}")


def _fail_at_start(view: FlowView, step: StepRun, now: int, code: str, message: str) -> None:
    error = {"code": code, "message": message, "step_id": step.step_id}
    view.record(step_event(step, EventType.STEP_STARTED, now, {"items": 0}))
    view.record(step_event(step, EventType.STEP_FAILED, now, {"error": error}))


def _start_items(view: FlowView, step: StepRun, version: StepVersion, items: _Items, now: int) -> list[str]:
    before, undone = _earlier_items(view, step) if step.redrives else ({}, Counter())
    kept = {item for item, work in before.items() if _stays(work, items)}
    numbers = [item for item in range(len(items.arguments)) if item not in kept]
    limit = version.definition.fan_out.parallelism if version.definition.fans_out else None
    runnable = [item for item in numbers if items.wanted[item]]
    released = set(numbers if limit is None else runnable[:limit])
    data: dict[str, Any] = {"items": len(items.arguments), "open": len(numbers)}
    if len(released) < len(runnable):
        data |= {"released": max(released, default=-1), "waiting": len(runnable) - len(released)}
    view.record(step_event(step, EventType.STEP_STARTED, now, data))
    children: list[str] = []
    for item in numbers:
        earlier = before.get(item)
        work = _create(view, step, version, items, item, earlier, now, waits=item not in released, undone=undone[item])
        if not items.wanted[item]:
            view.record(cancel(work, now, "its predicate is false"))
        elif item in released:
            children += send(view, work, version, now)
    return children


def _earlier_items(view: FlowView, step: StepRun) -> tuple[dict[int, Work], Counter[int]]:
    """The last item at each index that was not compensated, and how many were compensated there."""
    work_of_step = view.work_of_step(step.flow_id, step.step_id)
    undone = undone_work(work_of_step)
    times = Counter(work.item for work in work_of_step if work.work_id in undone)
    return latest_items(work_of_step), times


def _stays(work: Work, items: _Items) -> bool:
    """Whether an item that succeeded before a redrive can stay: not if its arguments have changed."""
    if work.status is not WorkStatus.SUCCEEDED or work.item >= len(items.arguments):
        return False
    return items.own is None or work.arguments == items.own[work.item]


def _create(
    view: FlowView,
    step: StepRun,
    version: StepVersion,
    items: _Items,
    item: int,
    earlier: Work | None,
    now: int,
    *,
    waits: bool,
    undone: int,
) -> Work:
    definition, arguments = version.definition, items.arguments[item]
    data: dict[str, Any] = {
        "item": item,
        "version": version.version,
        "lane": version.lane,
        "idempotency_key": idempotency_key(
            step.flow_id,
            item,
            step.step_id,
            definition,
            arguments,
            given=view.inputs(step.flow_id).options.get("init_keys", {}).get(step.step_id),
            undone=undone,
        ),
    }
    if items.own is not None:
        data["arguments"] = items.own[item]
    if waits:
        data["waits"] = True
    if earlier is not None:
        data["redrive_of"] = earlier.work_id
    work_id = view.new_id()
    view.record(Event(EventType.WORK_CREATED, now, step.flow_id, step.step_id, work_id, 0, data))
    return view.work(work_id)


def send(view: FlowView, work: Work, version: StepVersion, now: int) -> list[str]:
    """Begin a new item: dispatch it if there is room, start its sub-flow, or open its hook.

    Returns the flows to settle then: its sub-flow, or the flow whose hook it has superseded.
    """
    if version.definition.kind == "hook":
        return open_hook(view, work, version, now)
    if version.definition.kind == "flow" and work.undoes is None:
        return _delegate(view, work, version, now)
    dispatch_at_once(view, work, version, now)
    return []


def _delegate(view: FlowView, work: Work, version: StepVersion, now: int) -> list[str]:
    """Run the item as a sub-flow: a new one, or the revived one of an earlier item in its place."""
    depth = 1 + (view.flow(work.flow_id).parent or {"depth": 0})["depth"]
    parent = {"flow_id": work.flow_id, "step_id": work.step_id, "work_id": work.work_id, "depth": depth}
    earlier = _child_to_revive(view, work)
    if earlier is not None:
        view.record(work_event(work, EventType.WORK_DELEGATED, now, {"child_flow_id": earlier}))
        revive(view, earlier, now, parent)
        return [earlier]
    view.record(work_event(work, EventType.WORK_DELEGATED, now, {"child_flow_id": work.work_id}))
    work = view.work(work.work_id)
    if depth > DEEPEST_FLOW:
        message = f"sub-flows are nested more than {DEEPEST_FLOW} levels deep"
        view.record(fail(work, now, "FLOW_TOO_DEEP", message, "flow"))
        return []
    try:
        launch(view, _child(view, work, version, parent), now)
    except CounterfoilError as refusal:
        view.record(fail(work, now, refusal.code, f"the sub-flow cannot start: {refusal.message}", "flow"))
        return []
    return [work.work_id]


def _child_to_revive(view: FlowView, work: Work) -> str | None:
    """The sub-flow of an earlier item in its place, unless it never began, or completed with invalid outputs."""
    if work.redrive_of is None:
        return None
    child_id = view.work(work.redrive_of).child_flow_id
    child = None if child_id is None else view.find_flow(child_id)
    return child_id if child is not None and child.status in (FlowStatus.FAILED, FlowStatus.CANCELLED) else None


def _child(view: FlowView, work: Work, version: StepVersion, parent: dict[str, Any]) -> Launch:
    """A sub-flow has the id of the first work item that it runs for."""
    definition, inputs = version.definition, view.inputs(work.flow_id)
    assert definition.flow is not None
    arguments = work.arguments if work.arguments is not None else arguments_for(definition, inputs.init)
    return Launch(
        flow_id=work.work_id,
        goals=list(definition.flow.goals),
        init={name: arguments[source] for name, source in definition.flow.inputs.items()},
        metadata=inputs.metadata,
        labels=inputs.labels,
        options={key: value for key, value in inputs.options.items() if key in INHERITED},
        parent=parent,
    )


def release_items(view: FlowView, step: StepRun, version: StepVersion, now: int) -> list[str]:
    """Release as many waiting items as there is room for; returns the sub-flows that began."""
    limit = version.definition.fan_out.parallelism
    assert limit is not None
    room = min(limit - (step.open_items - step.waiting_items), step.waiting_items)
    children: list[str] = []
    if room <= 0:
        return children
    for _, work in zip(range(room), view.waiting_items(step), strict=False):
        view.record(work_event(work, EventType.WORK_RELEASED, now, {"item": work.item}))
        children += send(view, view.work(work.work_id), version, now)
    return children


def outputs_of(view: FlowView, step: StepRun, version: StepVersion, last: Work | None) -> dict[str, Any]:
    """The outputs of a step whose items have all ended: lists in the order of its input if it fans out.

    ``last``: the item that ended last, if one has ended now. A step that does not fan out has a single item; if it did
    not end now, it was kept over a redrive.
    """
    definition = version.definition
    if not definition.fans_out:
        if last is not None:
            return declared_outputs(definition, (last.result or {}).get("outputs") or {})
        kept = dict(_outcomes(1, view.work_of_step(step.flow_id, step.step_id)))  # kept over a redrive
        return declared_outputs(definition, kept.get(0, {}))
    if not definition.outputs or not step.items:
        return gathered(definition, step.items, ())
    return dict(gathered(definition, step.items, _outcomes(step.items, view.work_of_step(step.flow_id, step.step_id))))


def _outcomes(count: int, items: Iterable[Work]) -> Iterator[tuple[int, Any]]:
    """Index and outputs of items that succeeded. The last item at each index counts, because of redrives."""
    for item, work in latest_items(items).items():
        if item < count and work.status is WorkStatus.SUCCEEDED:
            yield item, (work.result or {}).get("outputs") or {}


def latest_items(work_of_step: Iterable[Work]) -> dict[int, Work]:
    """The last item at each index that was not compensated."""
    items = list(work_of_step)
    undone = undone_work(items)
    return {work.item: work for work in items if work.undoes is None and work.work_id not in undone}


def undone_work(work_of_step: Iterable[Work]) -> set[str]:
    """The items whose effect was compensated. A compensation that failed does not count."""
    return {work.undoes for work in work_of_step if work.undoes is not None and work.status is WorkStatus.SUCCEEDED}
