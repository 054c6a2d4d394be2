"""The opening of tests about vendors: an engine that has their secrets, a step that accepts their callback, a call."""

from __future__ import annotations

from typing import Any

import orjson

from counterfoil.testing import MovableClock, Received, StepEndpoint
from tests.integration.scenario import dispatched
from tests.vendors import VENDORS, Vendor
from tests.wire import Api, Reply

SECRETS = {vendor.preset: [vendor.secret] for vendor in VENDORS}
MAP = {
    "ignore": "payload.type == 'ping'",
    "success": "payload.status == 'completed'",
    "outputs": {"text": "payload.result.text"},
    "error": "payload.error.message",
    "retriable": "payload.error.code == 'busy'",
}
ATTRIBUTES = {"text": {"role": "output", "type": "string"}}
DONE = {"type": "job", "status": "completed", "result": {"text": "hello"}}
PING = {"type": "ping"}
VENDOR_TYPE = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "Vendor/1.0", "X-Request-Id": "7"}


def accept(vendor: Vendor, **more: Any) -> dict[str, Any]:
    return {"signature": {"preset": vendor.preset, "secret": f"setting:{vendor.preset}"}, "map": MAP, **more}


class VendorCalls:
    """A vendor that was given the webhook URL of a work item."""

    def __init__(self, api: Api, clock: MovableClock, vendor: Vendor, flow_id: str, received: Received) -> None:
        self.api = api
        self.clock = clock
        self.vendor = vendor
        self.flow_id = flow_id
        self.received = received
        self.url = received.webhook_url

    async def signed(
        self, payload: Any, *, secret: str | None = None, age: int = 0, headers: dict[str, str] | None = None
    ) -> Reply:
        """Post a payload that was signed so many seconds ago."""
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload, option=orjson.OPT_INDENT_2)
        seconds = self.clock() // 1000 - age
        return await self.plain(
            body, **{**self.vendor.sign(secret or self.vendor.secret, body, seconds), **(headers or {})}
        )

    async def plain(self, body: bytes, **headers: str) -> Reply:
        given = {**VENDOR_TYPE, **headers}
        return await self.api.request("POST", self.url, data=body, headers=given)

    async def unchanged(self) -> None:
        """Nothing happened to the work item but its dispatch."""
        assert (await self.api.work(self.flow_id))["status"] == "active"
        assert (await self.api.event_types(self.flow_id))[-1] == "work_acknowledged"


async def called(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, vendor: Vendor, **definition: Any
) -> VendorCalls:
    """A flow whose step has called the vendor, and waits for its callback."""
    fields = {"accept": accept(vendor), "attributes": ATTRIBUTES, **definition}
    flow_id, received = await dispatched(api, endpoint, **fields)
    return VendorCalls(api, clock, vendor, flow_id, received)
