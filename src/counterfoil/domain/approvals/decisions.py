"""Decides approvals. An approval concerns one attempt of one work item, with the arguments that were shown.

pending -> approved | rejected | expired | void. The item is ``held`` meanwhile. Any end of the item ends the approval
as well (domain/journal/events.py), so no call site has to do that. The API key determines the reviewer, never the body.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.errors import ApprovalExpired, NotPending, SameReviewer, SelfApproval
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import GATED, Approval
from counterfoil.domain.states import ApprovalStatus
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.decisions import fail, work_event

NOBODY = "local"
"""The requester and reviewer of every request while no API keys are set: callers are then indistinguishable."""


def approve(view: FlowView, approval: Approval, reviewer: str, comment: str | None, now: int) -> Approval:
    """Count one more approval; with the last one that is needed, the item may proceed once."""
    _refuse_if_decided(approval, now)
    if approval.separate_requester and reviewer in (approval.requester or NOBODY, _starter(view, approval) or NOBODY):
        raise SelfApproval(approval_id=approval.approval_id)
    if any(review["by"] == reviewer for review in approval.reviews):
        raise SameReviewer(approval_id=approval.approval_id, approvals_needed=approval.approvals)
    enough = len(approval.reviews) + 1 >= approval.approvals
    kind = EventType.APPROVAL_APPROVED if enough else EventType.APPROVAL_REVIEWED
    view.record(_decided(view, approval, kind, now, _review(reviewer, "approved", comment, now)))
    if enough:
        work = view.work(approval.work_id)
        due_at = None if work.version == GATED else now  # the agent calls the gate again
        view.record(
            work_event(work, EventType.WORK_CLEARED, now, {"approval_id": approval.approval_id, "due_at": due_at})
        )
    return view.approval(approval.approval_id)


def reject(view: FlowView, approval: Approval, reviewer: str, reason: str | None, now: int) -> Approval:
    """A single rejection is final. It ends this step; other branches continue."""
    _refuse_if_decided(approval, now)
    view.record(_decided(view, approval, EventType.APPROVAL_REJECTED, now, _review(reviewer, "rejected", reason, now)))
    told = f"rejected by {reviewer}" + (f": {reason}" if reason else "")
    _block(view, approval, now, "APPROVAL_REJECTED", told)
    return view.approval(approval.approval_id)


def expire(view: FlowView, approval: Approval, now: int) -> bool:
    """End an approval that was not decided in time; False: it was decided, or has not expired yet."""
    if approval.status is not ApprovalStatus.PENDING or approval.expires_at > now:
        return False
    view.record(_decided(view, approval, EventType.APPROVAL_EXPIRED, now, None))
    _block(view, approval, now, "APPROVAL_EXPIRED", f"not approved before {rfc3339(approval.expires_at)}")
    return True


def _block(view: FlowView, approval: Approval, now: int, code: str, message: str) -> None:
    view.record(fail(view.work(approval.work_id), now, code, message, "approval"))
    settle(view, approval.flow_id, now)


def _refuse_if_decided(approval: Approval, now: int) -> None:
    late = approval.status is ApprovalStatus.PENDING and approval.expires_at <= now
    details = {
        "approval_id": approval.approval_id,
        "status": ApprovalStatus.EXPIRED if late else approval.status,
        "expires_at": rfc3339(approval.expires_at),
    }
    if late or approval.status is ApprovalStatus.EXPIRED:
        raise ApprovalExpired(**details)
    if approval.status is not ApprovalStatus.PENDING:
        raise NotPending(f"this approval is already {approval.status}", **details)


def _starter(view: FlowView, approval: Approval) -> str | None:
    """The name of the key that started the flow; a sub-flow inherits it."""
    started_by: str | None = view.inputs(approval.flow_id).options.get("started_by")
    return started_by


def _review(by: str, verdict: str, comment: str | None, now: int) -> dict[str, Any]:
    return {"by": by, "verdict": verdict, "comment": comment, "at": rfc3339(now)}


def _decided(view: FlowView, approval: Approval, kind: EventType, now: int, review: dict[str, Any] | None) -> Event:
    work = view.work(approval.work_id)
    data: dict[str, Any] = {"approval_id": approval.approval_id, "gated": work.version == GATED}
    if review is not None:
        data["review"] = review
    return work_event(work, kind, now, data)
