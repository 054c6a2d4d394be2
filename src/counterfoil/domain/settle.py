"""Settle: bring a flow to its fixpoint after any change. The only place that ends steps and flows.

Every command that touches a flow's work calls ``settle`` once, whatever it did; no call site has to remember what
comes next. It looks at what the command touched and at counters, never at all items, so its cost does not grow with
the flow. Only ending a flow early looks at what is still open, in order to cancel it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from counterfoil.domain.events import Event, EventType
from counterfoil.domain.flows import flow_outputs
from counterfoil.domain.model import CancelCall, Flow, StepRun, StepVersion, Work
from counterfoil.domain.states import FINAL_FLOWS, FINAL_STEPS, StepStatus
from counterfoil.domain.work import cancel


class FlowView(Protocol):
    """What settling needs to see, and how it changes things: by recording events."""

    def flow(self, flow_id: str) -> Flow: ...
    def step_run(self, flow_id: str, step_id: str) -> StepRun: ...
    def version(self, version: str) -> StepVersion: ...
    def touched_work(self, flow_id: str) -> list[Work]: ...
    def open_work(self, flow_id: str) -> list[Work]: ...
    def open_steps(self, flow_id: str) -> list[StepRun]: ...
    def record(self, event: Event) -> None: ...
    def call_later(self, call: CancelCall) -> None: ...


def settle(view: FlowView, flow_id: str, now: int) -> None:
    """End every step whose items allow it, then the flow if its steps do."""
    if view.flow(flow_id).status in FINAL_FLOWS:
        return
    for work in view.touched_work(flow_id):
        step = view.step_run(flow_id, work.step_id)
        if step.status in FINAL_STEPS:
            continue
        if step.failed_items:
            view.record(_step_event(step, EventType.STEP_FAILED, now, {"error": work.error}))
            error = {**(work.error or {}), "step_id": step.step_id, "work_id": work.work_id}
            if step.goal:
                end_early(view, flow_id, now, EventType.FLOW_FAILED, {"error": error}, "the flow failed")
                return
        elif step.open_items == 0:
            definition = view.version(step.version).definition
            outputs = flow_outputs(definition, (work.result or {}).get("outputs") or {})
            view.record(_step_event(step, EventType.STEP_COMPLETED, now, {"outputs": outputs}))
    flow = view.flow(flow_id)
    if flow.open_steps == 0:
        view.record(Event(EventType.FLOW_COMPLETED, now, flow_id, data={"outputs": flow.outputs}))


def end_early(view: FlowView, flow_id: str, now: int, ending: EventType, data: dict[str, Any], reason: str) -> None:
    """End a flow before all its steps have ended: what is open becomes cancelled, workers are told."""
    if view.flow(flow_id).open_steps:
        _cancel_work(view, view.open_work(flow_id), now, reason)
        for step in view.open_steps(flow_id):
            view.record(_step_event(step, EventType.STEP_CANCELLED, now, {"reason": reason}))
    view.record(Event(ending, now, flow_id, data=data))


def _cancel_work(view: FlowView, open_work: Iterable[Work], now: int, reason: str) -> None:
    for work in open_work:
        view.record(cancel(work, now, reason))
        cancel_url = view.version(work.version).definition.cancel_url
        if cancel_url and work.attempt:
            view.call_later(_cancel_call(work, cancel_url, now, reason))


def _cancel_call(work: Work, url: str, now: int, reason: str) -> CancelCall:
    """What the worker is told: ids and key by which it knows the job, but never the receipt."""
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


def _step_event(step: StepRun, event_type: EventType, now: int, data: dict[str, Any]) -> Event:
    return Event(event_type, now, step.flow_id, step.step_id, data=data)


def step_is_open(step: StepRun) -> bool:
    return step.status in (StepStatus.PENDING, StepStatus.ACTIVE)
