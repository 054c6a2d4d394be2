"""Makes a flow and its steps active again for a redrive. Completed steps stay, unless they were compensated.

Failed and cancelled steps become pending again; settling the flow begins them. A sub-flow is revived together with the
work item that started it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType, step_event
from counterfoil.domain.records import Flow, StepRun
from counterfoil.domain.runs.ownership import claim_again
from counterfoil.domain.states import StepStatus

_GOES_AGAIN = (StepStatus.FAILED, StepStatus.CANCELLED)


def revive(view: FlowView, flow_id: str, now: int, parent: dict[str, Any] | None = None) -> list[str]:
    """Make a flow active that failed, or was cancelled with its outer flow; returns the steps that run again.

    ``parent``: the work item that the flow belongs to from now on. Raises RunKeyConflict if another flow owns its key.
    """
    undone = _undone(view.flow(flow_id))
    again = [step for step in view.steps_of(flow_id) if step.status in _GOES_AGAIN or step.step_id in undone]
    inputs = view.inputs(flow_id)
    claim_again(view, inputs, now)
    deadline_ms = inputs.options.get("deadline_ms")
    data: dict[str, Any] = {} if deadline_ms is None else {"deadline_at": now + deadline_ms}
    if parent is not None:
        data["parent"] = parent
    view.record(Event(EventType.FLOW_REDRIVEN, now, flow_id, data=data))
    return go_again(view, flow_id, again, now)


def go_again(view: FlowView, flow_id: str, steps: Iterable[StepRun], now: int) -> list[str]:
    """Make steps pending; returns them in the order of the plan."""
    order = {step_id: place for place, step_id in enumerate(view.plan_of(view.flow(flow_id)).steps)}
    ordered = sorted(steps, key=lambda step: order.get(step.step_id, 0))
    for step in ordered:
        view.record(step_event(step, EventType.STEP_REDRIVEN, now, {}))
    return [step.step_id for step in ordered]


def _undone(flow: Flow) -> set[str]:
    """Steps that completed and were compensated, at least in part."""
    steps = flow.compensation["steps"] if flow.compensation is not None else []
    return {step["step_id"] for step in steps if step["status"] in ("completed", "failed")}
