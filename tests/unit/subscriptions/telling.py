"""Subscriptions of a simulated engine, and what their subscribers were told."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.subscriptions.definitions import SubscriptionDefinition
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Call, Simulator
from counterfoil.wire.subscriptions import DeliveryDocument
from tests.eventually import eventually
from tests.store.records import definition

URL = "http://chat.test/hook"


async def subscribe(simulator: Simulator, name: str = "ops", url: str = URL, *events: str, **more: Any) -> str:
    """Make a subscription; its secret."""
    wanted = {"url": url, "events": list(events) or ["flow.*"], **more}
    document, _ = await simulator.engine.subscribers.put(name, SubscriptionDefinition.model_validate(wanted))
    return str(document["signing_secret"])


async def start(simulator: Simulator, flow_id: str = "flow", **more: Any) -> None:
    await simulator.engine.steps.put("a", definition())
    await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=["a"], **more))


async def sweep(simulator: Simulator) -> int:
    """All rounds that have something to do, and the end of what they began."""
    begun = 0
    while found := await simulator.sweep(SweepName.DELIVERIES):
        begun += found
    await simulator.engine.notifier.idle()
    return begun


async def kept(simulator: Simulator, name: str = "ops") -> list[DeliveryDocument]:
    page = await simulator.engine.subscribers.deliveries(name, cursor=None, limit=100)
    return page["deliveries"]


def told(simulator: Simulator, url: str = URL) -> list[Call]:
    return [call for call in simulator.network.calls if call.url == url]


async def eventually_sent(simulator: Simulator, count: int) -> list[Call]:
    return await eventually(lambda: calls if len(calls := told(simulator)) == count else None)
