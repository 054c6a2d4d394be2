"""Which flow owns a run key: a function of the flow that claimed the key last, its state and the time.

No event and no sweep releases a key. The commit that ends its owner releases it, because ownership is read from the
owner's own record; and a retained key is free from the moment at which its time is over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from counterfoil.domain.canonical import digest
from counterfoil.domain.errors import RunKeyConflict
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.records import Flow, FlowInputs, KeyedFlow
from counterfoil.domain.runs.requests import KEY, RETAINED_FOR, RETAINS_FAILED
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus


class RunOwner(NamedTuple):
    """The flow that owns a run key, and the digest of what it was started with."""

    flow: Flow
    digest: str


def start_digest(goals: list[str], init: dict[str, object]) -> str:
    """The same for two starts with the same set of goals and the same init, as canonical JSON."""
    return digest([sorted(set(goals)), init])


def holds_key(claim: KeyedFlow, flow: Flow, now: int) -> bool:
    """Whether a flow owns the key that it claimed, unless another flow has claimed it since."""
    if flow.status not in FINAL_FLOWS:
        return True
    if flow.finished_at is None or not claim.retain_ms:
        return False  # whatever the time is: the clock of this node may be behind that of the node that ended the flow
    kept = flow.status is FlowStatus.COMPLETED or claim.retain_failed
    return kept and now < flow.finished_at + claim.retain_ms


def find_owner(view: FlowView, run_key: str, now: int) -> RunOwner | None:
    """The flow that owns a key now; None: the key is free."""
    claim = view.last_claim(run_key)
    if claim is None:
        return None
    flow = view.find_flow(claim.flow_id)
    return RunOwner(flow, claim.digest) if flow is not None and holds_key(claim, flow, now) else None


def claim_key(view: FlowView, flow: KeyedFlow) -> None:
    """Make a flow the last one that claimed its key. The caller has found the key free, or has ended its owner."""
    last = view.last_claim(flow.run_key)
    view.claim_run_key(replace(flow, claim=1 if last is None else last.claim + 1))


def claim_again(view: FlowView, inputs: FlowInputs, now: int) -> None:
    """Give a flow that is redriven its key back; raises RunKeyConflict if another flow owns the key."""
    run_key = inputs.options.get(KEY)
    if run_key is None:
        return
    owner = find_owner(view, run_key, now)
    if owner is not None and owner.flow.flow_id != inputs.flow_id:
        raise RunKeyConflict(
            "another flow owns the run key of this flow", flow_id=owner.flow.flow_id, status=owner.flow.status
        )
    last = view.last_claim(run_key)
    if last is None or last.flow_id != inputs.flow_id:
        retain_ms, retain_failed = inputs.options.get(RETAINED_FOR, 0), inputs.options.get(RETAINS_FAILED, False)
        started_with = start_digest(inputs.goals, inputs.init)
        claim_key(view, KeyedFlow(inputs.flow_id, run_key, 0, started_with, retain_ms, retain_failed))
