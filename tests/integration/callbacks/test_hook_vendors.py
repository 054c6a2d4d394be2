"""``accept`` on hooks: a vendor that signs needs no API key, and its payload is mapped before the hook takes it."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
import pytest

from counterfoil.testing import MovableClock
from tests.integration.callbacks.vendor_calls import SECRETS, VENDOR_TYPE, accept
from tests.integration.hooking import HOOK, PAYLOADS, made, order, path_of, post, put_hook, start_expecting, waiting
from tests.running import Node, StartNode
from tests.vendors import STANDARD, STRIPE, VENDORS, Vendor
from tests.wire import Api, Reply

ADMIN = "an-admin-secret-0123456789"
VIEWER = "a-viewer-secret-0123456789"
MAP = {
    "ignore": "payload.type == 'ping'",
    "success": "payload.type != 'declined'",
    "outputs": {"confirmed": "payload.data.ok"},
    "error": "payload.reason",
}
PAID = {"type": "paid", "data": {"ok": True}}
DECLINED = {"type": "declined", "reason": "no funds"}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def node(start_node: StartNode, clock: MovableClock) -> Node:
    keys = f"root:admin:{ADMIN},eye:viewer:{VIEWER}"
    return await start_node(clock, secrets=SECRETS, api_keys=keys)


@pytest.fixture
def api(node: Node, session: aiohttp.ClientSession) -> Api:
    return Api(session, node.url, {"Authorization": f"Bearer {ADMIN}"})


@pytest.fixture
def outside(node: Node, session: aiohttp.ClientSession) -> Api:
    """A caller without an API key."""
    return Api(session, node.url)


async def put_accepting(api: Api, vendor: Vendor | None = STRIPE, **definition: Any) -> None:
    accepts = {"map": MAP} if vendor is None else {**accept(vendor), "map": MAP}
    reply = await put_hook(api, **{"accept": accepts, **definition})
    assert reply.status in (200, 201), reply.content


async def send(
    api: Api, clock: MovableClock, payload: Any, *, vendor: Vendor = STRIPE, token: str = "order:1", **more: Any
) -> Reply:
    """Post a payload as the vendor signs it; ``age``: how many seconds ago."""
    body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    signed = vendor.sign(more.get("secret", vendor.secret), body, clock() // 1000 - more.get("age", 0))
    headers = {**VENDOR_TYPE, **signed, **more.get("headers", {})}
    return await api.request("POST", path_of(token), data=body, headers=headers)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.preset)
async def test_a_signed_payload_needs_no_key(api: Api, outside: Api, clock: MovableClock, vendor: Vendor) -> None:
    await put_accepting(api, vendor)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await send(outside, clock, PAID, vendor=vendor, secret=vendor.other_secret)).refused(401, "INVALID_SIGNATURE")
    assert (await send(outside, clock, PAID, vendor=vendor)).ok() == {
        "flow_id": flow_id,
        "step_id": HOOK,
        "delivered": True,
        "duplicate": False,
    }
    assert (await api.final(flow_id))["outputs"] == {"confirmed": True}


async def test_what_is_refused_changes_nothing(api: Api, outside: Api, clock: MovableClock) -> None:
    await put_accepting(api)
    flow_id = await order(api)
    before = await waiting(api, flow_id)
    (await send(outside, clock, PAID, age=302)).refused(401, "INVALID_SIGNATURE")
    (await send(outside, clock, PAID, age=-302)).refused(401, "INVALID_SIGNATURE")
    (await post(outside, "order:1", {"confirmed": True})).refused(401, "INVALID_SIGNATURE")
    (await post(api, "order:1", {"confirmed": True})).refused(401, "INVALID_SIGNATURE")
    [error] = (await send(outside, clock, {"type": "paid"})).refused(422, "INVALID_PAYLOAD")["errors"]
    assert error["place"] == "accept.map.outputs.confirmed"
    [error] = (await send(outside, clock, b"{")).refused(422, "INVALID_PAYLOAD")["errors"]
    assert error["place"] == "body"
    wrong = {"type": "paid", "data": {"ok": "yes"}}
    [error] = (await send(outside, clock, wrong)).refused(422, "INVALID_PAYLOAD")["errors"]
    assert error["place"] == "payload.confirmed"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    (await send(outside, clock, b"payload=1", headers=form)).refused(415, "UNSUPPORTED_MEDIA_TYPE")
    assert await api.work(flow_id) == before
    (await send(outside, clock, PAID)).ok()


async def test_a_hook_without_accept_wants_a_key_as_before(api: Api, outside: Api, clock: MovableClock) -> None:
    """Nor can a caller without one tell such a hook from none at all."""
    await put_hook(api)
    await waiting(api, await order(api))
    for token in ("order:1", "order:2"):
        (await post(outside, token, {"confirmed": True})).refused(401, "UNAUTHENTICATED")
        (await send(outside, clock, {"confirmed": True}, token=token)).refused(401, "UNAUTHENTICATED")
    viewer = Api(outside.session, outside.url, {"Authorization": f"Bearer {VIEWER}"})
    (await post(viewer, "order:1", {"confirmed": True})).refused(403, "FORBIDDEN")
    (await post(viewer, "order:2", {"confirmed": True})).refused(403, "FORBIDDEN")
    (await post(api, "order:2", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    (await post(api, "order:1", {"confirmed": True})).ok()


async def test_where_no_signature_is_asked_for_the_token_is_enough(api: Api, outside: Api, clock: MovableClock) -> None:
    await put_accepting(api, None)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(outside, "order:2", PAID)).refused(401, "UNAUTHENTICATED")
    (await post(outside, "order:1", PAID)).ok()
    assert (await api.final(flow_id))["outputs"] == {"confirmed": True}


async def test_a_vendor_may_send_an_authorization_of_its_own(api: Api, outside: Api, clock: MovableClock) -> None:
    await put_accepting(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await send(outside, clock, PAID, headers={"Authorization": "Basic dmVuZG9yOnNlY3JldA=="})).ok()


async def test_a_made_token_is_not_enough_where_a_signature_is_required(
    api: Api, outside: Api, node: Node, clock: MovableClock
) -> None:
    await put_accepting(api, hook={"token": None})
    flow_id = await order(api)
    await waiting(api, flow_id)
    token = made(node, flow_id, HOOK)
    (await post(outside, token, PAID)).refused(401, "INVALID_SIGNATURE")
    (await send(outside, clock, PAID, token=token)).ok()


async def test_an_ignored_payload(api: Api, outside: Api, clock: MovableClock) -> None:
    await put_accepting(api, accept={**accept(STRIPE), "map": MAP, "answer": {"ignored": 202, "accepted": 204}})
    flow_id = await order(api)
    before = await waiting(api, flow_id)
    answer = (await send(outside, clock, {"type": "ping"})).ok(202)
    assert (answer["delivered"], answer["ignored"]) == (False, True)
    assert await api.work(flow_id) == before
    assert (await send(outside, clock, PAID)).status == 204


async def test_a_failure_fails_the_step_and_frees_the_token(api: Api, outside: Api, clock: MovableClock) -> None:
    await put_accepting(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await send(outside, clock, DECLINED)).ok()
    work = await api.work(flow_id)
    assert (work["status"], work["error"]) == ("failed", {"code": "STEP_FAILED", "message": "no funds"})
    assert (await api.final(flow_id))["status"] == "failed"
    (await send(outside, clock, PAID)).refused(401, "UNAUTHENTICATED")
    (await send(api, clock, PAID)).refused(404, "HOOK_NOT_FOUND")


@pytest.mark.parametrize("payload", [PAID, DECLINED], ids=["success", "failure"])
async def test_a_delivery_is_recorded_once(api: Api, outside: Api, clock: MovableClock, payload: Any) -> None:
    """Standard Webhooks names each message; the same one again is a duplicate also when the hook is gone."""
    accepts = {**accept(STANDARD), "map": MAP, "answer": {"duplicate": 208}}
    await put_accepting(api, accept=accepts)
    flow_id = await order(api)
    await waiting(api, flow_id)
    assert (await send(outside, clock, payload, vendor=STANDARD)).ok()["duplicate"] is False
    assert (await send(outside, clock, payload, vendor=STANDARD)).ok(208)["duplicate"] is True
    forged = await send(outside, clock, payload, vendor=STANDARD, secret=STANDARD.other_secret)
    forged.refused(401, "INVALID_SIGNATURE")


async def test_a_hook_collects_what_the_map_gives(api: Api, outside: Api, clock: MovableClock) -> None:
    await put_accepting(
        api, hook={"collect": 2}, attributes={"order_id": {"role": "required", "type": "string"}, **PAYLOADS}
    )
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await send(outside, clock, PAID)).ok()
    (await send(outside, clock, {"type": "paid", "data": {"ok": False}})).ok()
    assert (await api.final(flow_id))["outputs"] == {"payloads": [{"confirmed": True}, {"confirmed": False}]}


async def test_a_payload_for_a_step_that_has_not_started(
    api: Api, outside: Api, node: Node, clock: MovableClock
) -> None:
    """A success is kept as it was mapped; a failure has nothing that could fail yet."""
    await put_accepting(api)
    await put_hook(api, "first", hook={"token": "first"}, attributes={"go": {"role": "output", "type": "string"}})
    gate = {"order_id": {"role": "required", "type": "string"}, "go": {"role": "required", "type": "string"}}
    await put_accepting(api, attributes={**gate, "confirmed": {"role": "output", "type": "boolean"}})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    await waiting(api, flow_id, "first")
    refused = await send(outside, clock, DECLINED)
    refused.refused(503, "UNAVAILABLE")
    assert int(refused.headers["Retry-After"]) >= 1
    (await send(outside, clock, PAID, secret=STRIPE.other_secret)).refused(401, "INVALID_SIGNATURE")
    assert (await send(outside, clock, {"type": "ping"})).ok()["ignored"] is True
    assert (await send(outside, clock, PAID)).ok()["buffered"] is True
    (await post(api, "first", {"go": "on"})).ok()
    assert (await api.final(flow_id))["outputs"]["confirmed"] is True


async def test_what_a_hook_cannot_accept(api: Api) -> None:
    reply = await put_hook(api, accept={"map": {**MAP, "retriable": "true"}})
    [error] = reply.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "accept.map.retriable"
    (await put_hook(api, accept={"map": {**MAP, "retriable": "false"}})).ok(201)
    reply = await put_hook(api, accept={"signature": {"preset": "stripe", "secret": "setting:none"}})
    [error] = reply.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "accept.signature.secret"
    reply = await put_hook(api, accept={"map": {"outputs": {"confirmed": "'yes'"}}})
    [error] = reply.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "accept.map.outputs.confirmed"


async def test_an_engine_without_keys_asks_for_the_signature_all_the_same(
    start_node: StartNode, session: aiohttp.ClientSession, clock: MovableClock
) -> None:
    """Also behind a tunnel, whose forwarding headers it otherwise refuses."""
    api = Api(session, (await start_node(clock, secrets=SECRETS)).url)
    await put_accepting(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "order:1", PAID)).refused(401, "INVALID_SIGNATURE")
    tunnel = {"X-Forwarded-For": "203.0.113.7", "Host": "tunnel.example"}
    (await send(api, clock, PAID, token="order:2", headers=tunnel)).refused(403, "FORBIDDEN")
    (await send(api, clock, PAID, headers=tunnel)).ok()
