"""Messages to subscribers: small, with what a reader needs, and without credentials."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.domain.journal.event_types import Event, EventType
from counterfoil.domain.records import Approval
from counterfoil.domain.states import ApprovalStatus
from counterfoil.domain.subscriptions.definitions import NAME_OF, audience_of
from counterfoil.domain.subscriptions.notices import (
    MOST_ARGUMENTS,
    MOST_TEXT,
    Notice,
    addressed,
    delivery,
    filtered_by_labels,
    notices_of,
    trial,
)
from tests.unit.subscriptions.test_subscriptions import subscription

AT = 1_800_000_000_123
WHEN = "2027-01-15T08:00:00.123Z"
ASKED: dict[str, Any] = {
    "approval_id": "apr_1",
    "digest": "d1",
    "expires_at": AT + 1_000,
    "approvals": 2,
    "separate_requester": True,
    "severity": "high",
    "requester": "agent",
    "reason": "money moves",
    "policies": [{"policy_id": "p1", "reason": "r"}],
    "arguments": {"amount": 10**20},
}


def event(kind: EventType, **data: Any) -> Event:
    return Event(kind, AT, "f", "pay", "w", 2, data)


def approval(status: ApprovalStatus, **more: Any) -> Approval:
    given = {name: value for name, value in ASKED.items() if name != "approval_id"}
    return Approval("apr_1", "f", "pay", "w", 2, status=status, requested_at=AT, decided_at=AT, **{**given, **more})


def told(*events: Event, **approvals: Approval) -> list[dict[str, Any]]:
    """The messages of a batch, as a subscriber reads them."""
    found = [delivery(notice, "s", "msg_1", AT + 5) for notice in notices_of(events, approvals)]
    assert {(each.due_at, each.attempt, each.created_at) for each in found} <= {(AT + 5, 0, AT + 5)}
    messages = [orjson.loads(each.body) for each in found]
    assert [each.type for each in found] == [message["type"] for message in messages]
    return messages


def test_people_are_told_all_that_they_must_know_to_decide() -> None:
    [message] = told(event(EventType.APPROVAL_REQUESTED, **{**ASKED, "arguments": {"amount": 100}}))
    assert message == {
        "type": "approval.requested",
        "timestamp": WHEN,
        "data": {
            "flow_id": "f",
            "step_id": "pay",
            "work_id": "w",
            "attempt": 2,
            "path": "/api/v1/approvals/apr_1",
            "approval_id": "apr_1",
            "reason": "money moves",
            "severity": "high",
            "expires_at": "2027-01-15T08:00:01.123Z",
            "approvals_needed": 2,
            "requester": "agent",
            "policy_ids": ["p1"],
            "arguments": {"amount": 100},
            "arguments_digest": "d1",
        },
    }


def test_integers_keep_every_digit() -> None:
    [notice] = notices_of([event(EventType.APPROVAL_REQUESTED, **ASKED)], {})
    assert '"amount":100000000000000000000' in delivery(notice, "s", "msg_1", AT).body


def test_arguments_that_are_large_are_left_out() -> None:
    large = {"text": "x" * MOST_ARGUMENTS}
    [message] = told(event(EventType.APPROVAL_REQUESTED, **{**ASKED, "arguments": large}))
    assert (message["data"]["arguments"], message["data"]["arguments_omitted"]) == (None, True)
    assert message["data"]["arguments_digest"] == "d1"


@pytest.mark.parametrize(
    ("kind", "name", "outcome"),
    [
        (EventType.APPROVAL_APPROVED, "approval.decided", "approved"),
        (EventType.APPROVAL_REJECTED, "approval.decided", "rejected"),
        (EventType.APPROVAL_EXPIRED, "approval.expired", "expired"),
        (EventType.APPROVAL_REVIEWED, "approval.reviewed", None),
    ],
)
def test_what_people_decided(kind: EventType, name: str, outcome: str | None) -> None:
    review = {"by": "ann", "verdict": "approved", "comment": "fine", "at": WHEN}
    [message] = told(
        event(kind, approval_id="apr_1", gated=False, review=review), apr_1=approval(ApprovalStatus.PENDING)
    )
    assert (message["type"], message["data"]["outcome"], message["data"]["review"]) == (name, outcome, review)
    assert message["data"]["path"] == "/api/v1/approvals/apr_1"
    assert "arguments" not in message["data"]


def test_an_approval_that_became_void_is_told_of_beside_what_made_it_so() -> None:
    messages = told(event(EventType.WORK_CANCELLED, reason="enough"), apr_1=approval(ApprovalStatus.VOID))
    assert [message["type"] for message in messages] == ["work.cancelled", "approval.void"]
    assert messages[1]["data"]["outcome"] == "void"


@pytest.mark.parametrize("kind", [EventType.WORK_NOT_COMPLETED, EventType.DEDUP_UNKNOWN])
@pytest.mark.parametrize("hold", ["reconcile", "unsafe_once"])
def test_operators_are_told_what_must_be_settled(kind: EventType, hold: str) -> None:
    error = {"code": "OUTCOME_UNKNOWN", "message": "no answer", "details": {"idempotency_key": "secret"}}
    plain, needed = told(event(kind, hold=hold, cause="node_lost", error=error, next_attempt_at=None))
    assert (plain["type"], needed["type"]) == (NAME_OF[kind], "work.reconciliation_needed")
    assert plain["data"]["path"] == "/api/v1/flows/f"
    assert needed["data"] == {
        "flow_id": "f",
        "step_id": "pay",
        "work_id": "w",
        "attempt": 2,
        "path": "/api/v1/reconciliations/w",
        "hold": hold,
        "cause": "node_lost",
        "next_attempt_at": None,
        "error": {"code": "OUTCOME_UNKNOWN", "message": "no answer"},
    }


def test_work_that_waits_for_an_approval_needs_no_reconciliation() -> None:
    assert len(told(event(EventType.WORK_NOT_COMPLETED, hold="apr_1", unsent=True, error=None))) == 1


def test_an_error_is_told_by_its_code_and_message() -> None:
    error = {"code": "STEP_FAILED", "message": "y" * 5_000, "cause": {"code": "X"}, "errors": [1]}
    [message] = told(event(EventType.WORK_FAILED, error=error, via="webhook", result={"outputs": {"a": 1}}))
    assert message["data"]["error"] == {"code": "STEP_FAILED", "message": "y" * MOST_TEXT + "…"}
    assert message["data"]["via"] == "webhook"
    assert "result" not in message["data"]


def test_times_are_readable() -> None:
    [message] = told(event(EventType.WORK_NOT_COMPLETED, error=None, next_attempt_at=AT, via="engine"))
    assert (message["data"]["next_attempt_at"], message["data"]["error"]) == (WHEN, None)


def test_payloads_and_holders_of_claims_are_not_told() -> None:
    started = event(
        EventType.FLOW_STARTED, goals=["pay"], labels={"a": "b"}, init={"x": 1}, metadata={"m": 1}, steps=[]
    )
    [message] = told(started)
    assert {name for name in message["data"] if name in started.data} == {"goals", "labels"}
    facts = {"reason": "no", "policies": [{"policy_id": "p"}], "usage": {"model": "m"}}
    [message] = told(event(EventType.GATE_DECIDED, decision="block", holder="secret", facts=facts, cached=False))
    assert message["data"]["policy_ids"] == ["p"]
    assert "secret" not in str(message)


@pytest.mark.parametrize("kind", list(EventType))
def test_every_event_can_be_told_of_with_what_is_always_there(kind: EventType) -> None:
    """Whatever the journal can hold: one that could not be told would keep everything else from being written."""
    always: dict[str, Any] = {"facts": {}, **ASKED, "gated": False}
    [message] = told(event(kind, **always), apr_1=approval(ApprovalStatus.APPROVED))
    assert message["type"] == NAME_OF[kind]
    assert message["data"]["flow_id"] == "f"


def test_which_subscription_is_told_what() -> None:
    all_of_a = subscription("all-of-a", "*", match={"flow_labels": {"team": "a"}})
    fails = subscription("fails", "work.failed", match={"step_id": "pay"})
    audience = audience_of({"1": all_of_a, "2": fails})
    notices = [Notice("work.failed", AT, flow_id, step_id, dict) for flow_id, step_id in (("f", "pay"), ("g", "x"))]
    assert filtered_by_labels(notices, audience) == {"f", "g"}
    assert filtered_by_labels(notices, audience_of({"2": fails})) == set(), "labels that no subscription filters by"
    got = [(n.flow_id, s.subscription_id) for n, s in addressed(notices, audience, {"g": {"team": "a"}})]
    assert got == [("f", "fails"), ("g", "all-of-a")]


def test_a_test_tells_of_nothing() -> None:
    sent = trial("ops", "msg_1", AT)
    assert (sent.type, sent.flow_id, sent.due_at) == ("test", "", AT)
    assert orjson.loads(sent.body) == {"type": "test", "timestamp": WHEN, "data": {"subscription_id": "ops"}}
