"""Combines the decision of the policies with the step's own control and with earlier approvals."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.domain.policies.policy_set import Ruling, Terms, strictest
from counterfoil.domain.records import Approval
from counterfoil.domain.states import ApprovalStatus, Decision
from counterfoil.domain.steps.definitions import StepApproval


def with_control(ruling: Ruling, control: StepApproval) -> Ruling:
    """The step requires an approval, even if the policies allow it."""
    if ruling.decision is Decision.BLOCK:
        return ruling
    own = Terms(control.approvals, control.expires_in_ms, control.separate_requester, control.severity)
    terms = own if ruling.terms is None else strictest([own, ruling.terms])
    reason = ruling.reason or control.reason or "the step requires an approval"
    return replace(ruling, decision=Decision.REQUIRE_APPROVAL, reason=reason, terms=terms)


def after_people(ruling: Ruling, approval: Approval, *, unused: bool) -> Ruling:
    """Combine a new evaluation of the same input with the earlier approval.

    An approval is valid for one attempt: if that was not made yet (``unused``), it is allowed unless a policy blocks
    it. If the approval expired, another one is required, even if the policies now allow the step.
    """
    if approval.status is ApprovalStatus.APPROVED and unused and ruling.decision is Decision.REQUIRE_APPROVAL:
        return replace(ruling, decision=Decision.ALLOW, terms=None)
    if approval.status is not ApprovalStatus.EXPIRED or ruling.decision is not Decision.ALLOW:
        return ruling
    terms = Terms(
        approvals=approval.approvals,
        expires_in_ms=approval.expires_at - approval.requested_at,
        separate_requester=approval.separate_requester,
        severity=approval.severity,
    )
    reason = approval.reason or "an earlier approval of the same step expired"
    return replace(ruling, decision=Decision.REQUIRE_APPROVAL, reason=reason, terms=terms)
