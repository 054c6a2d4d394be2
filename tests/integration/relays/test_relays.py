"""Relays over HTTP: a dispatch is pulled, answered, lost or refused, and each means what it means for an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from counterfoil.client.sse import SseLines
from tests.integration.scenario import STEP
from tests.running import Connect, Node, StartNode
from tests.wire import Api

RELAY = "/api/v1/relays/dev"
ENDPOINT = "relay://dev/transcribe?fast=1"
QUICK = {"init_backoff_ms": 20, "max_backoff_ms": 50, "max_retries": 20}


class Pulled:
    """The stream of a relay, as a test follows it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self._lines = SseLines()
        self._events: list[tuple[str, Any]] = []

    async def event(self) -> tuple[str, Any]:
        async with asyncio.timeout(10):
            while not self._events:
                chunk = await self.response.content.readany()
                if not chunk:
                    return "end", None
                self._events += [(kind, orjson.loads(data)) for kind, data in self._lines.feed_named(chunk)]
        return self._events.pop(0)

    async def request(self) -> dict[str, Any]:
        kind, document = await self.event()
        assert kind == "request", (kind, document)
        return dict(document)


@contextlib.asynccontextmanager
async def pulled(api: Api, path: str = RELAY) -> AsyncIterator[Pulled]:
    async with api.session.get(api.url + path, headers=api.headers) as response:
        assert response.status == 200, await response.text()
        stream = Pulled(response)
        assert (await stream.event())[0] == "hello"
        yield stream


async def reply(api: Api, request: dict[str, Any], **fields: Any) -> None:
    answer = {"outcome": "answered", "status": 200, **fields}
    sent = await api.post(f"{RELAY}/replies/{request['request_id']}", answer)
    assert sent.status == 204, sent.content


async def test_a_dispatch_is_pulled_as_it_would_be_posted(
    start_node: StartNode, connect: Connect, session: aiohttp.ClientSession
) -> None:
    api = connect(await start_node(signing_secret="whsec_c2VjcmV0"))
    await api.put_step(STEP, ENDPOINT)
    async with pulled(api) as stream:
        flow_id = await api.start(STEP, init={"audio": "ä"})
        request = await stream.request()
        assert (request["method"], request["path"]) == ("POST", "/transcribe?fast=1")
        names = {name.lower() for name in request["headers"]}
        assert {"content-type", "user-agent", "idempotency-key", "traceparent"} <= names
        assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= names
        assert 0 < request["timeout_ms"] <= 5000
        body = orjson.loads(request["body"])
        assert body["arguments"] == {"audio": "ä"}
        await reply(api, request, status=202)
        await api.until_acknowledged(flow_id)
        webhook_url = body["metadata"]["webhook_url"]
        (await api.post(webhook_url, {"success": True, "outputs": {"n": 1}})).ok()
    assert (await api.final(flow_id))["outputs"] == {"n": 1}


async def test_a_sync_step_has_its_result_from_the_reply(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT, kind="sync")
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        await reply(api, await stream.request(), body='{"success": true, "outputs": {"n": 2}}')
        assert (await api.final(flow_id))["outputs"] == {"n": 2}


@pytest.mark.parametrize(
    ("fields", "code", "delivery"),
    [
        ({"status": 503}, "ENDPOINT_UNAVAILABLE", "delivered"),
        ({"outcome": "not_delivered", "status": None, "error": "refused"}, "NOT_DELIVERED", "not_delivered"),
        ({"outcome": "unknown", "status": None, "error": "lost"}, "UNKNOWN_OUTCOME", "unknown"),
    ],
)
async def test_replies_mean_what_responses_mean(api: Api, fields: dict[str, Any], code: str, delivery: str) -> None:
    await api.put_step(STEP, ENDPOINT, work=QUICK)
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        await reply(api, await stream.request(), **fields)
        second = await stream.request()
        await reply(api, second)
        work_id = (await api.work(flow_id))["work_id"]
        first = (await api.get(f"/api/v1/work/{work_id}")).ok()["attempts"][0]
        assert (first["error"]["code"], first["delivery"]) == (code, delivery)


async def test_retry_after_counts(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT, work=QUICK)
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        await reply(api, await stream.request(), status=429, retry_after_ms=600_000)
        item = await api.until_work(flow_id, "not_completed")
        event = await api.until_event(flow_id, "work_not_completed")
        assert item["next_attempt_at"] > event["at"]
        assert item["next_attempt_at"][:16] != event["at"][:16]


async def test_without_a_relay_nothing_was_delivered(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT, work=QUICK)
    flow_id = await api.start(STEP)
    event = await api.until_event(flow_id, "work_not_completed")
    assert event["data"]["delivery"] == "not_delivered"
    assert "no relay" in event["data"]["error"]["message"]
    async with pulled(api) as stream:
        await reply(api, await stream.request())
        await api.until_acknowledged(flow_id)


async def test_a_relay_that_is_lost_leaves_the_outcome_unknown(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT, effect={"policy": "reconcile"})
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        request = await stream.request()
    item = await api.until_work(flow_id, "not_completed", hold="reconcile")
    assert item["error"]["code"] == "OUTCOME_UNKNOWN"
    late = await api.post(f"{RELAY}/replies/{request['request_id']}", {"outcome": "answered", "status": 200})
    late.refused(404, "UNKNOWN_RELAY_REQUEST")


async def test_a_reply_that_is_missing_times_out(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT, effect={"policy": "reconcile"}, work={"ack_timeout_ms": 200})
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        await stream.request()
        item = await api.until_work(flow_id, "not_completed", hold="reconcile")
        assert item["error"]["details"]["cause"] == "ack_timeout"


async def test_the_newest_relay_of_a_name_counts(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT)
    async with pulled(api) as older, pulled(api) as newer:
        assert await older.event() == ("replaced", {"name": "dev"})
        assert (await older.event())[0] == "end"
        flow_id = await api.start(STEP)
        await reply(api, await newer.request())
        await api.until_acknowledged(flow_id)


async def test_a_reply_is_cut_at_the_limit_of_responses(start_node: StartNode, connect: Connect) -> None:
    api = connect(await start_node(max_response_bytes=1000, max_body_bytes=10_000))
    await api.put_step(STEP, ENDPOINT, kind="sync")
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        request = await stream.request()
        too_much = {"outcome": "answered", "status": 200, "body": "x" * 100_000}
        path = f"{RELAY}/replies/{request['request_id']}"
        (await api.post(path, too_much)).refused(413, "PAYLOAD_TOO_LARGE")
        await reply(api, request, body="x" * 5_000)
        assert (await api.final(flow_id))["error"]["code"] == "INVALID_RESPONSE"


async def test_a_stream_ends_when_the_engine_stops(node: Node, api: Api) -> None:
    async with pulled(api) as stream:
        stopping = asyncio.create_task(node.stop())
        assert (await stream.event())[0] == "end"
        await stopping


async def test_probes_and_cancellations_go_through_relays(api: Api) -> None:
    await api.put_step(STEP, ENDPOINT, cancel_url="relay://dev/cancel")
    async with pulled(api) as stream:
        flow_id = await api.start(STEP)
        await reply(api, await stream.request())
        await api.until_acknowledged(flow_id)
        await api.post(f"/api/v1/flows/{flow_id}/cancel")
        request = await stream.request()
        assert (request["method"], request["path"]) == ("POST", "/cancel")
        await reply(api, request)
        await api.until_event(flow_id, "cancel_delivered")


@pytest.mark.either_store
@pytest.mark.parametrize(
    "endpoint", ["relay://", "relay:///x", "relay://Dev/x", "relay://a_b/x", "relay://u:p@dev/x", "relay://dev:1/x",
                 "relay://-a/x", f"relay://{'a' * 64}/x", "relay://dev/x#y", "relay://dev/ä", "relay://dev/a b"]
)  # fmt: skip
async def test_only_names_of_a_safe_pattern_can_be_registered(api: Api, endpoint: str) -> None:
    body = {"endpoint": endpoint}
    details = (await api.request("PUT", f"/api/v1/steps/{STEP}", json=body)).refused(422, "INVALID_STEP")
    assert details["errors"][0]["place"] == "endpoint"


async def test_bad_calls_are_refused(api: Api) -> None:
    (await api.get("/api/v1/relays/No")).refused(422, "INVALID_INPUT")
    (await api.post(f"{RELAY}/replies/none", {"outcome": "answered", "status": 200})).refused(
        404, "UNKNOWN_RELAY_REQUEST"
    )
    bodies: list[Any] = [{}, {"outcome": "answered"}, {"outcome": "unknown", "status": 200}, {"outcome": "x"}, []]
    for body in bodies:
        (await api.post(f"{RELAY}/replies/none", body)).refused(422, "INVALID_INPUT")
    head = await api.request("HEAD", RELAY)
    assert head.status == 200


async def test_only_operators_are_relays(start_node: StartNode, session: aiohttp.ClientSession) -> None:
    node = await start_node(api_keys="v:viewer:secret-of-the-viewer,o:operator:secret-of-operator")
    viewer = Api(session, node.url, {"Authorization": "Bearer secret-of-the-viewer"})
    (await viewer.get(RELAY)).refused(403, "FORBIDDEN")
    answer = {"outcome": "answered", "status": 200}
    (await viewer.post(f"{RELAY}/replies/none", answer)).refused(403, "FORBIDDEN")
    async with pulled(Api(session, node.url, {"Authorization": "Bearer secret-of-operator"})):
        pass
