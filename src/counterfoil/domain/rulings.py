"""What else has a say beside the policies: the step's own control, and people who were asked before."""

from __future__ import annotations

from dataclasses import replace

from counterfoil.domain.model import Approval
from counterfoil.domain.policy_set import Ruling, Terms, strictest
from counterfoil.domain.states import Decision
from counterfoil.domain.steps import StepApproval


def with_control(ruling: Ruling, control: StepApproval) -> Ruling:
    """The step wants an approval, whatever the policies allow."""
    if ruling.decision is Decision.BLOCK:
        return ruling
    own = Terms(control.approvals, control.expires_in_ms, control.separate_requester, control.severity)
    terms = own if ruling.terms is None else strictest([own, ruling.terms])
    reason = ruling.reason or control.reason or "the step wants an approval"
    return replace(ruling, decision=Decision.REQUIRE_APPROVAL, reason=reason, terms=terms)


def held_again(ruling: Ruling, expired: Approval) -> Ruling:
    """Nobody answered in time: who asks once more, about the same, is not told less than to wait for people."""
    if ruling.decision is not Decision.ALLOW:
        return ruling
    terms = Terms(
        approvals=expired.approvals,
        expires_in_ms=expired.expires_at - expired.requested_at,
        separate_requester=expired.separate_requester,
        severity=expired.severity,
    )
    reason = expired.reason or "an earlier approval of the same step expired"
    return replace(ruling, decision=Decision.REQUIRE_APPROVAL, reason=reason, terms=terms)
