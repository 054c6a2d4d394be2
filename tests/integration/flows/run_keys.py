"""Flows with a run key as tests start and end them, and what the journal says of their owners."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, STEP
from tests.wire import Api, Reply

KEY = "order:4711"
FLOWS = "/api/v1/flows"


async def start(api: Api, on_conflict: str = "reject", key: str | None = KEY, **fields: Any) -> Reply:
    body = {"goals": [STEP], "idempotency_key": key, "on_conflict": on_conflict, **fields}
    return await api.post(FLOWS, body)


async def end(api: Api, endpoint: StepEndpoint, flow_id: str, ending: str, count: int = 1) -> None:
    if ending == "cancelled":
        (await api.post(f"{FLOWS}/{flow_id}/cancel")).ok()
        return
    result = (
        {"success": ending == "completed", "outputs": {"shipped": 1}} if ending == "completed" else {"success": False}
    )
    (await api.complete(await endpoint.received(PATH, count), result)).ok()


async def flows_of_key(api: Api, key: str = KEY, **params: str) -> list[str]:
    page = (await api.get(FLOWS, key=key, **params)).ok()
    assert {flow["idempotency_key"] for flow in page["flows"]} <= {key}
    return [flow["flow_id"] for flow in page["flows"]]


def active_at_most_once(events: list[dict[str, Any]]) -> str:
    """Replay the journal of all flows of a key; fails if two of them were active at one moment."""
    active: set[str] = set()
    for event in sorted(events, key=lambda event: event["seq"]):
        if event["type"] == "flow_started":
            assert not active, "two active owners"
            active.add(event["flow_id"])
        elif event["type"] in ("flow_completed", "flow_failed", "flow_cancelled"):
            active.remove(event["flow_id"])
    (last,) = active
    return last
