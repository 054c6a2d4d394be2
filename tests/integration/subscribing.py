"""Subscribers in tests: a path of the endpoint that is told, and checks what it is told as Standard Webhooks has it."""

from __future__ import annotations

from typing import Any

from standardwebhooks import Webhook

from counterfoil.testing import Received, StepEndpoint
from tests.eventually import eventually
from tests.wire import Api

TOLD = "/told"
APPROVAL = {"control": {"approval": {"reason": "money moves", "severity": "high", "expires_in": "1h"}}}
"""A step that asks people before each of its items."""


class Subscriber:
    """One subscription, at a path of its own."""

    def __init__(self, api: Api, endpoint: StepEndpoint, subscription_id: str = "ops") -> None:
        self.api = api
        self.endpoint = endpoint
        self.subscription_id = subscription_id
        self.path = f"{TOLD}-{subscription_id}"
        self.secret = ""

    @property
    def url(self) -> str:
        return f"/api/v1/subscriptions/{self.subscription_id}"

    async def subscribe(self, *events: str, status: int = 201, **more: Any) -> dict[str, Any]:
        definition = {"url": self.endpoint.url(self.path), "events": list(events), **more}
        document: dict[str, Any] = (await self.api.request("PUT", self.url, json=definition)).ok(status)
        self.secret = document["signing_secret"]
        return document

    async def told(self, count: int = 1) -> dict[str, Any]:
        """The count-th message, whose signature is good."""
        return self.read(await self.endpoint.received(self.path, count))

    def read(self, received: Received) -> dict[str, Any]:
        message: dict[str, Any] = Webhook(self.secret).verify(received.content, dict(received.headers))
        assert set(message) == {"type", "timestamp", "data"}
        return message

    def messages(self) -> list[dict[str, Any]]:
        """All so far."""
        return [self.read(received) for received in self.endpoint.requests(self.path)]

    def types(self) -> list[str]:
        return sorted(message["type"] for message in self.messages())

    async def deliveries(self) -> list[dict[str, Any]]:
        """What is still to be told, or was given up."""
        found: list[dict[str, Any]] = (await self.api.get(f"{self.url}/deliveries")).ok()["deliveries"]
        return found

    async def all_told(self) -> None:
        """Wait until nothing is left to be told."""

        async def look() -> bool:
            return not await self.deliveries()

        await eventually(look, what="the end of all deliveries")

    async def until_delivery(self, **fields: Any) -> dict[str, Any]:
        """Wait until the only delivery that there is has these fields."""

        async def look() -> dict[str, Any] | None:
            found = await self.deliveries()
            return found[0] if len(found) == 1 and fields.items() <= found[0].items() else None

        return await eventually(look, what=f"a delivery with {fields}")


async def pending_approval(api: Api, endpoint: StepEndpoint, **start: Any) -> dict[str, Any]:
    """A flow whose only step waits for people; what they are asked."""
    await api.put_step("pay", endpoint.url("/pay"), kind="sync", **APPROVAL)
    flow_id = await api.start("pay", **start)
    [approval] = (await api.get("/api/v1/approvals", flow_id=flow_id)).ok()["approvals"]
    assert approval["status"] == "pending"
    document: dict[str, Any] = approval
    return document


async def review(api: Api, approval: dict[str, Any], verdict: str, **body: Any) -> None:
    (await api.post(f"/api/v1/approvals/{approval['approval_id']}/{verdict}", body)).ok()
