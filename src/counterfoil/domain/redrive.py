"""Redrive: a flow that failed goes on from what failed; what completed is kept, unless it was undone.

Steps that failed or were cancelled are pending again, and settling begins them as if they never had been: with new work
items and new receipts, in the place of those that ended without success.
"""

from __future__ import annotations

from collections.abc import Iterable

from counterfoil.domain.errors import FlowNotFailed, WorkNotFailed
from counterfoil.domain.events import Event, EventType
from counterfoil.domain.model import Flow, StepRun
from counterfoil.domain.running import step_event
from counterfoil.domain.settle import settle
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.view import FlowView

_GOES_AGAIN = (StepStatus.FAILED, StepStatus.CANCELLED)


def redrive_flow(view: FlowView, flow_id: str, now: int) -> list[str]:
    """Let a failed flow go on; returns its new work items."""
    flow = view.flow(flow_id)
    if flow.status is not FlowStatus.FAILED:
        raise FlowNotFailed(f"the flow is {flow.status}", flow_id=flow_id, status=flow.status)
    options = view.inputs(flow_id).options
    if options.get("pruned"):
        raise FlowNotFailed("what the flow was started with is no longer kept", flow_id=flow_id, status=flow.status)
    undone = _undone(flow)
    again = [step for step in view.steps_of(flow_id) if step.status in _GOES_AGAIN or step.step_id in undone]
    deadline_ms = options.get("deadline_ms")
    data = {} if deadline_ms is None else {"deadline_at": now + deadline_ms}
    view.record(Event(EventType.FLOW_REDRIVEN, now, flow_id, data=data))
    return _go_again(view, flow_id, again, now)


def redrive_work(view: FlowView, work_id: str, now: int) -> str:
    """Make another item in the place of one that failed; returns it.

    It takes its step along, and so all that failed of it; and its flow, if that has failed.
    """
    work = view.work(work_id)
    flow = view.flow(work.flow_id)
    step = view.step_run(work.flow_id, work.step_id)
    if work.status is not WorkStatus.FAILED or work.undoes is not None or step.status is not StepStatus.FAILED:
        raise WorkNotFailed(f"the work item is {work.status}, its step {step.status}", work_id=work_id)
    if flow.status is FlowStatus.ACTIVE:
        _go_again(view, work.flow_id, _behind(view, flow, step), now)
    else:
        redrive_flow(view, work.flow_id, now)
    for new in view.touched_work(work.flow_id):
        if new.redrive_of == work_id:
            return new.work_id
    raise WorkNotFailed("another item has succeeded in its place", work_id=work_id)


def _undone(flow: Flow) -> set[str]:
    """Steps that completed, and of which something is undone."""
    steps = flow.compensation["steps"] if flow.compensation is not None else []
    return {step["step_id"] for step in steps if step["status"] in ("completed", "failed")}


def _behind(view: FlowView, flow: Flow, step: StepRun) -> list[StepRun]:
    """A step that failed, and all that was cancelled for that."""
    plan = view.plan_of(flow)
    seen = {step.step_id: step}
    queue = [step.step_id]
    while queue:
        near = [each for each in plan.neighbours.get(queue.pop(), ()) if each not in seen]
        view.want_steps(flow.flow_id, near)
        for other in near:
            found = view.step_run(flow.flow_id, other)
            if found.status is StepStatus.CANCELLED:
                seen[other] = found
                queue.append(other)
    return list(seen.values())


def _go_again(view: FlowView, flow_id: str, steps: Iterable[StepRun], now: int) -> list[str]:
    before = {work.work_id for work in view.touched_work(flow_id)}
    steps = list(steps)
    for step in steps:
        view.record(step_event(step, EventType.STEP_REDRIVEN, now, {}))
    order = {step_id: place for place, step_id in enumerate(view.plan_of(view.flow(flow_id)).steps)}
    steps.sort(key=lambda step: order.get(step.step_id, 0))
    settle(view, flow_id, now, look_at=[step.step_id for step in steps])
    return [work.work_id for work in view.touched_work(flow_id) if work.work_id not in before]
