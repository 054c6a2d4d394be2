"""Claims on steps that agents run: the holder of a claim renews its lease by heartbeats."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.errors import ClaimLost, UnknownStep
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.calls import workflow
from counterfoil.domain.gate.decisions import is_claimed
from counterfoil.domain.gate.requests import ProlongClaim
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.states import FINAL_FLOWS
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.decisions import work_event


def prolong(view: FlowView, flow_id: str, step_id: str, sign: ProlongClaim, now: int) -> dict[str, Any]:
    """Extend the lease of a claim. This is not counted as a gate call."""
    flow, gate = workflow(view, flow_id), view.find_gate(flow_id, step_id)
    if gate is None:
        raise UnknownStep("no gate call was made for this step")
    if flow.status in FINAL_FLOWS:
        return {"lease_expires_at": None, "cancel_requested": True}
    work = view.work(gate.work_id)
    if gate.holder != sign.holder or not is_claimed(gate, work, now):
        raise ClaimLost(workflow_id=flow_id, step_id=step_id, work_status=work.status)
    until = max(work.deadline_at or 0, now + round(sign.lease_seconds * 1000))
    data = {"progress": sign.progress, "message": sign.message, "deadline_at": until}
    view.record(work_event(work, EventType.WORK_HEARTBEAT, now, data))
    return {"lease_expires_at": rfc3339(until), "cancel_requested": False}
