"""Warns of approvals that cannot be given: their terms ask for more reviewers than the API keys allow."""

from __future__ import annotations

import structlog

from counterfoil.domain.approvals.terms import ApprovalTerms, Reviewers
from counterfoil.wire.steps import PutWarning

log = structlog.get_logger(__name__)


def approval_warnings(terms: ApprovalTerms | None, reviewers: Reviewers, *, kind: str, name: str) -> list[PutWarning]:
    """The ``warnings`` of a definition whose approvals cannot be given; the log has the same. Empty: there are none."""
    if terms is None or terms.approvals <= (available := reviewers.available(terms)):
        return []
    log.warning(
        "approval_unreachable",
        **{kind: name},
        approvals=terms.approvals,
        separate_requester=terms.separate_requester,
        reviewers=available,
        remedy="configure more API keys with the role reviewer",
    )
    callers = "callers other than the requester" if terms.separate_requester else "different callers"
    message = (
        f"approvals are needed from {terms.approvals} {callers}, and the API keys allow {available}: "
        "configure more keys with the role reviewer"
    )
    return [{"code": "approval_unreachable", "message": message}]
