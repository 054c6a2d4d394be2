"""Dispatching new work in the batch that made it, without waiting for the sweep."""

from __future__ import annotations

from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.policies.guarding import may_be_sent
from counterfoil.domain.records import StepVersion, Work
from counterfoil.domain.work.decisions import dispatch


def dispatch_at_once(view: FlowView, work: Work, step: StepVersion, now: int) -> None:
    """Claim new work for this node if policies allow it and there is room; otherwise the sweep will.

    A step with a limit over all flows is left to the sweep, which counts how many of its items are active.
    """
    if step.work.is_limited:
        return
    view.inputs(work.flow_id)  # the request is made of them after the commit, when nothing can be loaded any more
    if may_be_sent(view, work, step, now) and view.capacity.take_at_once(work.lane):
        view.record(dispatch(work, step, view.node_id, now))
