"""The messages to subscribers: small, with ids, the most important facts, and the path to read the rest from.

They do not hold the number of the event in the journal (``seq``): it is assigned when the event is written, and the
message is written together with it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from counterfoil.domain.effects.policies import UNKNOWN_HOLDS
from counterfoil.domain.journal.event_types import APPROVAL_STATUS_OF, Event, EventType
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import Approval
from counterfoil.domain.states import ApprovalStatus
from counterfoil.domain.subscriptions.definitions import (
    NAME_OF,
    NAMES,
    RECONCILIATION_NEEDED,
    TEST,
    VOID,
    Audience,
    Delivery,
    Subscription,
)
from counterfoil.domain.time import rfc3339

BEGINS_HOLD = frozenset({EventType.WORK_NOT_COMPLETED, EventType.DEDUP_UNKNOWN})
"""Events by which a work item may come into the reconciliation queue."""
MOST_ARGUMENTS = 16 * 1024
"""The most bytes of arguments in a message; larger arguments must be read from the API."""
MOST_TEXT = 2_000
"""The most characters of a text in a message."""

FACTS = (
    "goals",
    "labels",
    "items",
    "reason",
    "ending",
    "via",
    "delivery",
    "next_attempt_at",
    "deadline_at",
    "child_flow_id",
    "redrive_of",
    "undoes",
    "http_status",
    "progress",
    "message",
    "calls",
    "note",
    "failed",
    "decision",
    "cached",
    "by",
    "hold",
    "cause",
    "outcome",
    "state",
    "dedup_of",
    "token",
    "received",
    "collect",
    "enough",
    "delivery_id",
    "buffered",
    "timed_out",
    "on_timeout",
)
"""The fields that a message copies from the data of its event. Payloads of the flow (init, arguments, results) are not
among them, nor is any credential."""


@dataclass(frozen=True, slots=True)
class Notice:
    """An event to report, and the fields that subscriptions filter by."""

    name: str
    at: int
    flow_id: str
    step_id: str | None
    data: Callable[[], dict[str, Any]]
    """Called only if a subscription matches."""


def notices_of(
    events: Iterable[Event], approvals: Mapping[str, Approval | None], wanted: Container[str] = NAMES
) -> Iterator[Notice]:
    """The notices of a batch: one for each of its events, and for each approval that these made void.

    ``approvals``: those that the batch has changed, in their new state. ``wanted``: the names to include.
    """
    for event in events:
        name = NAME_OF[event.type]
        if name in wanted and event.journaled:
            yield Notice(name, event.at, event.flow_id, event.step_id, partial(_told, event, approvals))
        if RECONCILIATION_NEEDED in wanted and event.data.get("hold") in UNKNOWN_HOLDS and event.type in BEGINS_HOLD:
            yield Notice(RECONCILIATION_NEEDED, event.at, event.flow_id, event.step_id, partial(_unsettled, event))
    for approval in approvals.values() if VOID in wanted else ():
        if approval is not None and approval.status is ApprovalStatus.VOID:
            data = partial(_of_approval, approval, "void")
            yield Notice(VOID, approval.decided_at or 0, approval.flow_id, approval.step_id, data)


def addressed(
    notices: Iterable[Notice], audience: Audience, labels: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[Notice, Subscription]]:
    """Each notice with each subscription that it matches. ``labels``: of the flows for which they matter."""
    for notice in notices:
        for subscription in audience.get(notice.name, ()):
            definition = subscription.definition
            if definition.fits_step(notice.step_id) and definition.fits_labels(labels.get(notice.flow_id, {})):
                yield notice, subscription


def filtered_by_labels(notices: Iterable[Notice], audience: Audience) -> set[str]:
    """The flows whose labels a subscription filters by."""
    return {
        notice.flow_id
        for notice in notices
        for subscription in audience.get(notice.name, ())
        if subscription.definition.match.flow_labels and subscription.definition.fits_step(notice.step_id)
    }


def delivery(notice: Notice, subscription_id: str, delivery_id: str, now: int) -> Delivery:
    """The message to one subscriber, due at once."""
    body = dump_json({"type": notice.name, "timestamp": rfc3339(notice.at), "data": notice.data()}).decode()
    return Delivery(
        delivery_id,
        subscription_id,
        notice.flow_id,
        notice.name,
        body,
        attempt=0,
        due_at=now,
        note=None,
        created_at=now,
    )


def deliveries_of(
    events: Iterable[Event],
    approvals: Mapping[str, Approval | None],
    audience: Audience,
    labels: Mapping[str, Mapping[str, str]],
    new_id: Callable[[], str],
    now: int,
) -> Iterator[Delivery]:
    """The deliveries of a batch: one for each notice and each subscription that it matches."""
    for notice, subscription in addressed(notices_of(events, approvals, audience), audience, labels):
        yield delivery(notice, subscription.subscription_id, f"msg_{new_id()}", now)


def trial(subscription_id: str, delivery_id: str, now: int) -> Delivery:
    """The message of a test delivery."""
    notice = Notice(TEST, now, "", None, lambda: {"subscription_id": subscription_id})
    return delivery(notice, subscription_id, delivery_id, now)


def _told(event: Event, approvals: Mapping[str, Approval | None]) -> dict[str, Any]:
    if event.type is EventType.APPROVAL_REQUESTED:
        return _requested(event)
    if event.type in APPROVAL_STATUS_OF or event.type is EventType.APPROVAL_REVIEWED:
        approval = approvals[event.data["approval_id"]]
        assert approval is not None, "approvals are never removed by a batch that decides on them"
        return _reviewed(event, approval)
    told = _ids(event)
    told.update((name, _readable(name, event.data[name])) for name in FACTS if name in event.data)
    if "error" in event.data:
        told["error"] = _error(event.data["error"])
    if event.type is EventType.GATE_DECIDED:
        facts = event.data["facts"]
        told["reason"] = _readable("reason", facts.get("reason"))
        told["policy_ids"] = [policy["policy_id"] for policy in facts.get("policies", ())]
    if "approval_id" in event.data:
        told["approval_id"] = event.data["approval_id"]
    return told


def _unsettled(event: Event) -> dict[str, Any]:
    """What an operator must know to settle an outcome, and where the queue shows the rest."""
    return {**_told(event, {}), "path": f"/api/v1/reconciliations/{event.work_id}"}


def _ids(event: Event) -> dict[str, Any]:
    ids = {"flow_id": event.flow_id, "step_id": event.step_id, "work_id": event.work_id, "attempt": event.attempt}
    told = {name: value for name, value in ids.items() if value is not None}
    return {**told, "path": f"/api/v1/flows/{event.flow_id}"}


def _requested(event: Event) -> dict[str, Any]:
    data = event.data
    return {
        **_ids(event),
        "path": _path_of(data["approval_id"]),
        "approval_id": data["approval_id"],
        "reason": _readable("reason", data["reason"]),
        "severity": data["severity"],
        "expires_at": rfc3339(data["expires_at"]),
        "approvals_needed": data["approvals"],
        "requester": data["requester"],
        "policy_ids": [policy["policy_id"] for policy in data["policies"]],
        **_arguments(data["arguments"]),
        "arguments_digest": data["digest"],
    }


def _reviewed(event: Event, approval: Approval) -> dict[str, Any]:
    """``outcome``: the new state of the approval; None: more approvals are needed."""
    outcome = APPROVAL_STATUS_OF.get(event.type)
    told = _of_approval(approval, None if outcome is None else outcome.value)
    if "review" in event.data:
        told["review"] = {name: _readable(name, value) for name, value in event.data["review"].items()}
    return told


def _of_approval(approval: Approval, outcome: str | None) -> dict[str, Any]:
    return {
        "flow_id": approval.flow_id,
        "step_id": approval.step_id,
        "work_id": approval.work_id,
        "attempt": approval.attempt,
        "path": _path_of(approval.approval_id),
        "approval_id": approval.approval_id,
        "outcome": outcome,
        "reason": _readable("reason", approval.reason),
        "severity": approval.severity,
        "expires_at": rfc3339(approval.expires_at),
        "approvals_needed": approval.approvals,
    }


def _path_of(approval_id: str) -> str:
    return f"/api/v1/approvals/{approval_id}"


def _arguments(arguments: dict[str, Any] | None) -> dict[str, Any]:
    if len(dump_json(arguments)) > MOST_ARGUMENTS:
        return {"arguments": None, "arguments_omitted": True}
    return {"arguments": arguments}


def _error(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """Only the code and the message of an error: its cause may be long."""
    if error is None:
        return None
    return {name: _readable(name, error[name]) for name in ("code", "message") if name in error}


def _readable(name: str, value: Any) -> Any:
    if name.endswith("_at") and isinstance(value, int):
        return rfc3339(value)
    if isinstance(value, str) and len(value) > MOST_TEXT:
        return f"{value[:MOST_TEXT]}…"
    return value
