"""Requests an approval: the item is held until reviewers have decided (decisions.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.policies.policy_set import Ruling
from counterfoil.domain.records import Work
from counterfoil.domain.work.decisions import work_event


@dataclass(frozen=True, slots=True)
class Question:
    """What reviewers decide about: the next attempt of an item, and its arguments."""

    digest: str
    arguments: dict[str, Any]
    requester: str | None


def ask_people(view: FlowView, work: Work, question: Question, ruling: Ruling, now: int) -> str:
    """Hold an item until reviewers have decided; returns the approval's id."""
    terms = ruling.terms
    assert terms is not None, "a ruling that requires an approval has terms"
    approval_id = f"apr_{view.new_id()}"
    data = {
        "approval_id": approval_id,
        "digest": question.digest,
        "expires_at": now + terms.expires_in_ms,
        "approvals": terms.approvals,
        "separate_requester": terms.separate_requester,
        "severity": terms.severity,
        "requester": question.requester,
        "reason": _storable(ruling.reason),
        "policies": [matched.document() for matched in ruling.matched],
        "arguments": question.arguments,
    }
    event = work_event(work, EventType.APPROVAL_REQUESTED, now, data)
    event.attempt = work.attempt + 1
    view.record(event)
    view.record(work_event(view.work(work.work_id), EventType.WORK_HELD, now, {"approval_id": approval_id}))
    return approval_id


def _storable(reason: str | None) -> str | None:
    """The reason has a column of its own, in which not every database can store NUL characters."""
    return None if reason is None else reason.replace("\0", "\N{REPLACEMENT CHARACTER}")
