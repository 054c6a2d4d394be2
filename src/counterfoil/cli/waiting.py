"""What a work item waits for, in words: in a column, and as a sentence that says what to do next."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from counterfoil.cli.output import when

if TYPE_CHECKING:
    from counterfoil.client.documents import WorkItem
    from counterfoil.wire.hooks import HookOfWork

UNKNOWN_HOLDS = ("reconcile", "unsafe_once")
"""What ``hold`` says while the outcome of an item is unknown."""

CAUSES = {
    "ack_timeout": "no complete answer came within the timeout of the call",
    "connection_lost": "the connection broke before a complete answer came",
    "deadline_passed": "no result and no heartbeat came before the deadline",
    "node_lost": "the engine stopped while the attempt was being sent",
    "reservation_lapsed": "the holder of the reservation has not completed it in time",
    "server_error": "the endpoint answered 408 or a 5xx, which may hide an effect",
}
"""Why the outcome of an attempt is unknown."""


def waits_for(work: WorkItem, now: datetime | None = None) -> str:
    """What a work item waits for, and until when."""
    status, next_attempt_at, deadline_at = work["status"], work["next_attempt_at"], work["deadline_at"]
    if status == "not_completed" and next_attempt_at:
        return f"retry {when(next_attempt_at, now)}"
    if status == "active" and work.get("child_flow_id"):
        return "its sub-flow"
    hook = work.get("hook")
    if status == "active" and hook is not None:
        return f"{_payloads(hook)}{f', deadline {when(deadline_at, now)}' if deadline_at else ''}"
    if status == "active" and deadline_at:
        done = "" if work["progress"] is None else f"{work['progress']:.0%}, "
        return f"{done}deadline {when(deadline_at, now)}"
    if status == "not_completed" and work["hold"] in UNKNOWN_HOLDS:
        return "reconciliation"
    if status == "not_completed" and work["error"] and work["error"]["code"] == "DEADLINE_EXCEEDED":
        return "its status_url"
    if status == "pending" and work["hold"] == "dedup":
        return f"the result of {work['waits_for']}" if work.get("waits_for") else "the result of an equal item"
    return {"pending": "dispatch", "held": "an approval", "not_completed": "its agent"}.get(status, "")


def _payloads(hook: HookOfWork) -> str:
    """What a hook waits for: the token, if another hook has it, or payloads."""
    if hook["status"] == "queued":
        return "the token of another hook"
    return "a payload" if hook["collect"] == 1 else f"payloads, {hook['received']} of {hook['collect']}"


def hold_sentence(work: WorkItem) -> str | None:
    """Why a work item is held, and what to do next; None: it is not."""
    hold, work_id = work["hold"], work["work_id"]
    if work["status"] == "held":
        return f"it is sent when approval {hold} is given: `counterfoil approvals show {hold}`"
    if work["status"] == "pending" and hold == "dedup":
        owner = work.get("waits_for")
        return (
            f"{f'work item {owner}' if owner else 'a work item'} with the same idempotency key is in flight: "
            "this one takes its result when it has ended, so there is nothing to do"
        )
    if hold in UNKNOWN_HOLDS:
        return f"{unknown_outcome(hold, work['attempt'])}: `counterfoil reconcile show {work_id}`"
    return None


def unknown_outcome(hold: str, attempt: int) -> str:
    """Why the engine does not repeat an attempt, and what it waits for."""
    again = "only a new approval sends it again" if hold == "unsafe_once" else "the engine does not repeat it by itself"
    return f"whether attempt {attempt} had an effect is unknown, and {again}; find out and settle it"
