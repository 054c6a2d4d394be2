"""What the answers of endpoints and the sweeps mean for the model, and what the API must show of an item."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.time import optional_rfc3339
from counterfoil.engine.wakeups import SweepName
from tests.property.choices import GIVEN_BACK, REJECTED, SAID
from tests.property.model import FlowModel, Item, Report


def take_reply(flow: FlowModel, item: Item, attempt: int, kind: str, now: int) -> None:
    """The endpoint has answered an attempt of an item."""
    if item.status != "active" or item.attempt != attempt:
        return  # too late: something else has decided the attempt
    if item.sending is None and (item.rules.kind == "sync" or kind not in ("retriable", "old_retriable", "failed")):
        return  # the worker has the attempt: only a result says more
    if kind in GIVEN_BACK:
        error, pause, cause = GIVEN_BACK[kind]
        item.give_back(error, now, pause, cause)
    elif kind in REJECTED:
        item.end("failed", now, REJECTED[kind])
    elif kind in ("retriable", "old_retriable"):
        item.give_back_by(SAID[kind], now)
    elif kind == "failed":
        item.conclude(SAID[kind], now)
    elif item.rules.kind == "async":
        item.acknowledge()
    elif kind == "odd":
        item.end("failed", now, "INVALID_RESPONSE")
    else:
        item.conclude(SAID.get(kind, Report(True)), now)
    flow.settle(now)


def take_sweep(flow: FlowModel, name: SweepName, process: int, now: int) -> None:
    """What a sweep of a process does, item by item: of two that fail, the first one cancels the other."""
    if name is SweepName.REQUEUE:
        for item in flow.items.values():
            item.claim(now, process)
    elif name is SweepName.DEADLINES:
        due = {item.step_id: item.due_at or 0 for item in flow.items.values() if item.status == "active"}
        overdue = sorted((step_id for step_id in due if due[step_id] <= now), key=due.__getitem__)
        _give_up(flow, [flow.items[step_id] for step_id in overdue], "DEADLINE_EXCEEDED", "deadline_passed", now)
    elif name is SweepName.ORPHANS:
        sending = [item for item in flow.items.values() if item.status == "active" and item.sending is not None]
        orphans = [item for item in sending if item.sender != process]
        _give_up(flow, sorted(orphans, key=lambda item: item.sender), "INTERRUPTED", "node_lost", now)


def _give_up(flow: FlowModel, items: list[Item], error: str, cause: str, now: int) -> None:
    for item in items:
        if item.status == "active":
            item.give_back(error, now, cause=cause)
            flow.settle(now)
        else:
            item.maybe_held = item.rules.holds


def shown_of(item: Item) -> dict[str, Any]:
    """What the API must show of an item."""
    return {
        "status": item.status,
        "attempt": item.attempt,
        "hold": item.hold if item.open else None,
        "next_attempt_at": optional_rfc3339(item.due_at) if item.status in ("pending", "not_completed") else None,
        "deadline_at": optional_rfc3339(item.deadline_at),
        "outputs": item.outputs,
        "error": item.error,
        "progress": item.progress,
        "message": item.message,
        "recorded_at": optional_rfc3339(item.recorded_at),
    }
