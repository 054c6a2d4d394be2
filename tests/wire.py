"""The HTTP contract as a test speaks it: raw answers, and the few sentences that nearly every test says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import aiohttp
import orjson

from counterfoil.testing import Received
from tests.contract import published
from tests.eventually import eventually

JSON = {"Content-Type": "application/json"}
FINAL_FLOWS = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class Reply:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> Any:
        return orjson.loads(self.content)

    @property
    def code(self) -> str:
        """The ``error.code``; fails when the answer is no error of the contract's form."""
        error = self.body["error"]
        assert set(error) >= {"code", "message", "details"}, error
        assert isinstance(error["message"], str), error
        assert error["message"], error
        return str(error["code"])

    @property
    def details(self) -> dict[str, Any]:
        details: dict[str, Any] = self.body["error"]["details"]
        return details

    def ok(self, status: int = 200) -> Any:
        """The body, when the status is the wanted one."""
        assert self.status == status, (self.status, self.content[:2000])
        return self.body

    def refused(self, status: int, code: str) -> dict[str, Any]:
        """The details, when it was refused so."""
        assert (self.status, self.code) == (status, code), (self.status, self.content[:2000])
        return self.details


class Api:
    """A client of one engine. ``session`` keeps connections, as a real client would.

    Every answer is compared with the published OpenAPI document.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.session = session
        self.url = url
        self.headers = dict(headers or {})

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        data: Any = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        all_headers = {**self.headers, **(JSON if json is not None else {}), **(headers or {})}
        content = orjson.dumps(json) if json is not None else data
        if isinstance(content, bytes):
            content = io.BytesIO(content)  # aiohttp warns of large bodies given as bytes
        address = path if path.startswith("http") else self.url + path
        async with self.session.request(
            method, address, data=content, params=params, headers=all_headers, allow_redirects=False
        ) as response:
            content = await response.read()
        published().check(method, response.url.raw_path, response.status, response.headers, content)
        return Reply(response.status, response.headers, content)

    async def get(self, path: str, **params: str) -> Reply:
        return await self.request("GET", path, params=params)

    async def post(self, path: str, json: Any = None, **headers: str) -> Reply:
        return await self.request("POST", path, json=json, headers=headers)

    async def put_step(self, step_id: str, endpoint: str, **definition: Any) -> dict[str, Any]:
        """Register a step; jitter is off unless asked for, so that delays can be told."""
        work = {"jitter": False, **definition.pop("work", {})}
        reply = await self.request(
            "PUT", f"/api/v1/steps/{step_id}", json={"endpoint": endpoint, "work": work, **definition}
        )
        assert reply.status in (200, 201), reply.content
        document: dict[str, Any] = reply.body
        return document

    async def start(self, *goals: str, **fields: Any) -> str:
        """Start a flow and return its id."""
        reply = await self.post("/api/v1/flows", {"goals": list(goals), **fields})
        return str(reply.ok(201)["flow_id"])

    async def flow(self, flow_id: str) -> dict[str, Any]:
        document: dict[str, Any] = (await self.get(f"/api/v1/flows/{flow_id}")).ok()
        return document

    async def work(self, flow_id: str, step_id: str | None = None) -> dict[str, Any]:
        """The one work item of a flow, or of one of its steps."""
        steps = (await self.flow(flow_id))["steps"]
        items = [item for name, step in steps.items() if step_id in (None, name) for item in step["work"]]
        assert len(items) == 1, items
        item: dict[str, Any] = items[0]
        return item

    async def until_work(self, flow_id: str, status: str, step_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """Wait until the work item is in this state (and has these fields)."""

        async def look() -> dict[str, Any] | None:
            item = await self.work(flow_id, step_id)
            wanted = {"status": status, **fields}
            return item if {name: item[name] for name in wanted} == wanted else None

        return await eventually(look, what=f"work {status} {fields or ''}")

    async def until_acknowledged(self, flow_id: str, count: int = 1) -> None:
        """Wait until the engine has journalled so many acknowledgements."""
        await self.until_event(flow_id, "work_acknowledged", count)

    async def until_event(self, flow_id: str, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the count-th journal event of a type."""

        async def look() -> dict[str, Any] | None:
            events = [event for event in await self.events(flow_id) if event["type"] == kind]
            return events[count - 1] if len(events) >= count else None

        return await eventually(look, what=f"event {kind} number {count}")

    async def final(self, flow_id: str, wait: str = "10") -> dict[str, Any]:
        """Long-poll the result of a flow until it is final."""
        document: dict[str, Any] = (await self.get(f"/api/v1/flows/{flow_id}/result", wait=wait)).ok()
        assert document["status"] in FINAL_FLOWS
        return document

    async def events(self, flow_id: str) -> list[dict[str, Any]]:
        """The whole journal of a flow."""
        events: list[dict[str, Any]] = []
        params: dict[str, str] = {}
        while True:
            page = (await self.get(f"/api/v1/flows/{flow_id}/events", **params)).ok()
            events += page["events"]
            if not page["next_cursor"] or not page["events"]:
                return events
            params = {"cursor": str(page["next_cursor"])}

    async def event_types(self, flow_id: str) -> list[str]:
        return [event["type"] for event in await self.events(flow_id)]

    async def complete(self, received: Received, result: Any, **headers: str) -> Reply:
        """Report a result to the webhook of a dispatch."""
        return await self.post(received.webhook_url, result, **headers)

    async def succeed(self, received: Received, **outputs: Any) -> dict[str, Any]:
        document: dict[str, Any] = (await self.complete(received, {"success": True, "outputs": outputs})).ok()
        assert document["verdict"] == "accepted"
        return document


def moment(text: str) -> datetime:
    """A time of the wire: RFC 3339, UTC, with Z."""
    assert text.endswith("Z"), text
    return datetime.fromisoformat(text)


def seconds_from_now(text: str) -> float:
    return (moment(text) - datetime.now(UTC)).total_seconds()


def signature_headers(
    secret: str, content: bytes, *, at: float | None = None, message_id: str = "msg_1"
) -> dict[str, str]:
    """Standard Webhooks headers, made by hand."""
    timestamp = str(int(time.time() if at is None else at))
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign(secret, message_id, timestamp, content),
    }


def sign(secret: str, message_id: str, timestamp: str, content: bytes) -> str:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{message_id}.{timestamp}.".encode() + content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(mac).decode()
