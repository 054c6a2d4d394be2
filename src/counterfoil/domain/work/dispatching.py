"""Dispatches new work in the batch that created it, without waiting for the sweep."""

from __future__ import annotations

from counterfoil.domain.effects.clearing import cleared
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.records import StepVersion, Work
from counterfoil.domain.work.decisions import dispatch


def dispatch_at_once(view: FlowView, work: Work, step: StepVersion, now: int) -> None:
    """Claim new work for this node if its effect policy, its key and the policies allow it; otherwise the sweep will.

    Without room it is left to the sweep as well.

    A step with a limit over all flows is left to the sweep, which counts how many of its items are active.
    """
    if step.work.is_limited:
        return
    view.inputs(work.flow_id)  # load them now: the request is built after the commit
    if cleared(view, work, step, now) and view.capacity.take_at_once(work.lane):
        view.record(dispatch(work, step, view.node_id, now))
