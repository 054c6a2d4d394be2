"""The opening that most tests share: a step is registered, a flow started, and its work has arrived."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import Received, StepEndpoint
from tests.by_hand import Place
from tests.running import Node
from tests.wire import Api

STEP = "job"
PATH = "/job"
NO_SWEEPS = {"sweep_interval_ms": 60_000}
"""For engines whose store cannot be written: what a test asks for shall not wait behind what they do by themselves."""


async def dispatched(
    api: Api,
    endpoint: StepEndpoint,
    *,
    start: dict[str, Any] | None = None,
    acknowledged: bool = True,
    **definition: Any,
) -> tuple[str, Received]:
    """One flow with one async step whose first attempt has arrived at the endpoint (and was acknowledged)."""
    await api.put_step(STEP, endpoint.url(PATH), **definition)
    before = len(endpoint.requests(PATH))
    flow_id = await api.start(STEP, **(start or {}))
    received = await endpoint.received(PATH, before + 1)
    if acknowledged:
        await api.until_acknowledged(flow_id)
    return flow_id, received


async def run_sync(api: Api, endpoint: StepEndpoint, **definition: Any) -> str:
    """One flow with one sync step at the endpoint's path; its answers are programmed beforehand."""
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", **definition)
    return await api.start(STEP)


def place_of(node: Node) -> Place:
    """Where an engine keeps its state."""
    return node.settings.store if node.settings.is_shared else node.settings.store_path


def webhook_path(received: Received, token: str | None = None) -> str:
    """The path of the webhook, with another token if one is given."""
    metadata = received.metadata
    return f"/webhook/{metadata['flow_id']}/{metadata['step_id']}/{token or received.token}"
