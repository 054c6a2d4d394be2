"""Redrive: continues a failed flow with new work items, and new receipts, in place of the failed ones.

Redriving a sub-flow redrives the work item that started it, and so on up to the outermost flow. Otherwise its outcome
would have no effect, and the outer flow would do the same work again when it is redriven later.

A workflow is not redriven: its agent runs its steps, and calls the gate for another attempt.
"""

from __future__ import annotations

from counterfoil.domain.errors import FlowNotFailed, WorkNotFailed
from counterfoil.domain.flows.reviving import go_again, revive
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.records import COOPERATIVE, GATED, Flow, StepRun
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus


def redrive_flow(view: FlowView, flow_id: str, now: int) -> list[str]:
    """Continue a failed flow; returns its new work items."""
    flow = view.flow(flow_id)
    if flow.plan == COOPERATIVE:
        told = "an agent runs this workflow; the engine cannot redrive it"
        raise FlowNotFailed(told, flow_id=flow_id, status=flow.status)
    if flow.status is not FlowStatus.FAILED:
        raise FlowNotFailed(
            f"only a failed flow can be redriven; this one is {flow.status}", flow_id=flow_id, status=flow.status
        )
    if view.inputs(flow_id).options.get("pruned"):
        raise FlowNotFailed("the inputs of the flow have been pruned", flow_id=flow_id, status=flow.status)
    if flow.parent is not None:
        redrive_work(view, flow.parent["work_id"], now)
    else:
        settle(view, flow_id, now, look_at=revive(view, flow_id, now))
    return [work.work_id for work in view.touched_work(flow_id)]


def redrive_work(view: FlowView, work_id: str, now: int) -> str:
    """Create a work item in place of a failed one, and return it.

    This redrives its step, with all failed items of the step, and its flow, if that has failed.
    """
    work = view.work(work_id)
    flow = view.flow(work.flow_id)
    if work.version == GATED:
        raise WorkNotFailed("an agent runs this step; only that agent can begin another attempt", work_id=work_id)
    step = view.step_run(work.flow_id, work.step_id)
    if work.status is not WorkStatus.FAILED or work.undoes is not None or step.status is not StepStatus.FAILED:
        raise WorkNotFailed(
            f"only failed work can be redriven; this work item is {work.status}, its step {step.status}",
            work_id=work_id,
        )
    if flow.status is FlowStatus.ACTIVE:
        again = go_again(view, flow.flow_id, _behind(view, flow, step), now)
        settle(view, flow.flow_id, now, look_at=again)
    else:
        redrive_flow(view, work.flow_id, now)
    for new in view.touched_work(work.flow_id):
        if new.redrive_of == work_id:
            return new.work_id
    raise WorkNotFailed("another work item has already succeeded in its place", work_id=work_id)


def _behind(view: FlowView, flow: Flow, step: StepRun) -> list[StepRun]:
    """A failed step, and the steps that were cancelled because of it."""
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
