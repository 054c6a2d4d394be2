"""Ends a flow before all its steps have ended, and compensates what it did.

Open work is cancelled, and workers and sub-flows are informed. Then the completed steps that can be compensated are
compensated one by one, the last one first, with a new work item for each item. The flow is ``compensating`` until all
of them have ended; its compensation shows which steps were compensated and which were not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from counterfoil.domain.effects.keys import undoing_key
from counterfoil.domain.flows.requests import arguments_for
from counterfoil.domain.flows.running import latest_items, send
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType, step_event
from counterfoil.domain.records import UNDOING, CancelCall, StepRun, Work
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.work.decisions import cancel

Ending = Literal["failed", "cancelled", "completed"]
"""``completed``: by the agent of a workflow. Any other flow is completed by its last step."""
_EVENT: dict[str, EventType] = {
    "failed": EventType.FLOW_FAILED,
    "cancelled": EventType.FLOW_CANCELLED,
    "completed": EventType.FLOW_COMPLETED,
}


def end_early(
    view: FlowView,
    flow_id: str,
    now: int,
    ending: Ending,
    reason: str,
    error: dict[str, Any] | None = None,
    *,
    compensate: bool,
    superseded_by: str | None = None,
) -> None:
    """End an active flow in the state ``ending``: at once, or after its steps have been compensated.

    ``superseded_by``: the flow that takes its run key.
    """
    flow = view.flow(flow_id)
    if flow.open_steps or flow.status is FlowStatus.COMPENSATING:
        _cancel_work(view, view.open_work(flow_id), now, reason, compensate=compensate)
        for step in view.open_steps(flow_id):
            view.record(step_event(step, EventType.STEP_CANCELLED, now, {"reason": reason}))
    data: dict[str, Any] = {} if error is None else {"error": error}
    if superseded_by is not None:
        data["superseded_by"] = superseded_by
    undo = _to_be_undone(view, flow_id) if compensate and flow.status is FlowStatus.ACTIVE else []
    if undo:
        data |= {"ending": ending, "reason": reason, "steps": undo}
        view.record(Event(EventType.FLOW_COMPENSATING, now, flow_id, data=data))
        go_on_undoing(view, flow_id, now)
    else:
        view.record(Event(_EVENT[ending], now, flow_id, data=data))


def cancel_items(view: FlowView, items: Iterable[Work], now: int, reason: str, *, compensate: bool = False) -> None:
    """Cancel items of a flow that continues. ``compensate``: sub-flows among them compensate their steps."""
    _cancel_work(view, items, now, reason, compensate=compensate)


def _cancel_work(view: FlowView, open_work: Iterable[Work], now: int, reason: str, *, compensate: bool) -> None:
    for work in open_work:
        view.record(cancel(work, now, reason))
        definition = view.version(work.version).definition
        if definition.kind == "flow" and work.status is WorkStatus.ACTIVE:
            assert work.child_flow_id is not None
            inner = view.flow(work.child_flow_id)
            undoing = inner.status is FlowStatus.COMPENSATING and compensate
            if inner.status not in FINAL_FLOWS and not undoing:
                end_early(view, inner.flow_id, now, "cancelled", reason, compensate=compensate)
        elif definition.cancel_url and work.attempt:
            view.call_later(_cancel_call(work, definition.cancel_url, now, reason))


def _cancel_call(work: Work, url: str, now: int, reason: str) -> CancelCall:
    """The message to the worker: the ids and the key by which it knows the job, but never the receipt."""
    body = {
        "cancelled": True,
        "reason": reason,
        "metadata": {
            "flow_id": work.flow_id,
            "step_id": work.step_id,
            "work_id": work.work_id,
            "attempt": work.attempt,
            "idempotency_key": work.idempotency_key,
        },
    }
    return CancelCall(work.work_id, work.flow_id, work.step_id, work.work_id, url, body, attempt=0, due_at=now)


def _to_be_undone(view: FlowView, flow_id: str) -> list[str]:
    """The steps to compensate: those with a compensation that had an effect, the last one that ended first."""
    plan = view.plan_of(view.flow(flow_id))
    if not plan.compensated:
        return []
    view.want_steps(flow_id, plan.compensated)
    steps = [view.step_run(flow_id, step_id) for step_id in plan.compensated]
    done = [step for step in steps if step.status is StepStatus.COMPLETED or _did_something(view, step)]
    place = {step_id: number for number, step_id in enumerate(plan.steps)}
    done.sort(key=lambda step: (step.finished_at or 0, place[step.step_id]), reverse=True)
    return [step.step_id for step in done]


def _did_something(view: FlowView, step: StepRun) -> bool:
    """Whether a step that did not complete has items that succeeded: these are compensated as well."""
    ended = step.status in (StepStatus.FAILED, StepStatus.CANCELLED)
    if not ended or not view.version(step.version).definition.fans_out:
        return False
    return bool(_done_items(view, step))


def _done_items(view: FlowView, step: StepRun) -> list[Work]:
    """The items that succeeded and were not compensated."""
    items = latest_items(view.work_of_step(step.flow_id, step.step_id))
    return [work for work in items.values() if work.status is WorkStatus.SUCCEEDED]


def go_on_undoing(view: FlowView, flow_id: str, now: int) -> None:
    """Note the end of a step's compensation, begin the next one, and end the flow after the last one."""
    while True:
        flow = view.flow(flow_id)
        assert flow.compensation is not None
        entry = next((step for step in flow.compensation["steps"] if step["status"] in ("pending", "active")), None)
        if entry is None:
            data = {} if flow.error is None else {"error": flow.error}
            view.record(Event(_EVENT[flow.compensation["ending"]], now, flow_id, data=data))
            return
        step = view.step_run(flow_id, entry["step_id"])
        if entry["status"] == "pending":
            _undo(view, step, now)
        elif entry["open"]:
            return
        else:
            told = EventType.STEP_NOT_COMPENSATED if entry["failed"] else EventType.STEP_COMPENSATED
            view.record(step_event(step, told, now, {"failed": entry["failed"]}))


def _undo(view: FlowView, step: StepRun, now: int) -> None:
    """Create one compensating item for each item that succeeded, with the arguments and the outputs of that item."""
    done = _done_items(view, step)
    version = view.version(step.version + UNDOING)
    definition = view.version(step.version).definition
    init = view.inputs(step.flow_id).init
    view.record(step_event(step, EventType.STEP_COMPENSATING, now, {"items": len(done)}))
    for work in done:
        called_with = work.arguments if work.arguments is not None else arguments_for(definition, init)
        data = {
            "item": work.item,
            "version": version.version,
            "lane": version.lane,
            "idempotency_key": undoing_key(work.idempotency_key),
            "arguments": {"arguments": called_with, "outputs": (work.result or {}).get("outputs") or {}},
            "undoes": work.work_id,
        }
        work_id = view.new_id()
        view.record(Event(EventType.WORK_CREATED, now, step.flow_id, step.step_id, work_id, 0, data))
        send(view, view.work(work_id), version, now)
