"""A call of the gate, and the workflow that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.errors import UnknownWorkflow
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.requests import GateRequest
from counterfoil.domain.records import COOPERATIVE, Flow
from counterfoil.domain.states import FlowStatus

WORKFLOW_STATUS = {
    FlowStatus.ACTIVE: "in_progress",
    FlowStatus.COMPLETED: "completed",
    FlowStatus.FAILED: "failed",
    FlowStatus.CANCELLED: "aborted",
}
"""The states of a flow under the names that the workflow API uses."""


@dataclass(frozen=True, slots=True)
class GateCall:
    """One call of the gate."""

    flow_id: str
    step_id: str
    request: GateRequest
    caller: str
    """The name of the caller's API key."""
    include_prior_output: bool = False


def workflow(view: FlowView, flow_id: str) -> Flow:
    """The flow of a workflow; a flow that the engine runs is refused."""
    flow = view.find_flow(flow_id)
    if flow is None or flow.plan != COOPERATIVE:
        raise UnknownWorkflow
    return flow
