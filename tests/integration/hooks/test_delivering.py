"""Payloads for hooks over HTTP: what is recorded, what is refused, and what a hook collects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.testing import MovableClock
from tests.eventually import eventually
from tests.integration.hooking import HOOK, order, path_of, post, put_hook, waiting
from tests.running import Connect, StartNode
from tests.wire import Api, seconds_from_now


async def test_a_payload_completes_the_hook_and_its_outputs_are_those_of_the_flow(api: Api) -> None:
    assert (await put_hook(api)).status == 201
    flow_id = await order(api)
    item = await waiting(api, flow_id)
    assert item["status"] == "active"
    assert item["hook"] == {"status": "waiting", "token": "order:1", "received": 0, "collect": 1}
    assert 3590 < seconds_from_now(item["deadline_at"]) <= 3600
    answer = (await post(api, "order:1", {"confirmed": True, "by": "phone"})).ok()
    assert answer == {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": False}
    result = await api.final(flow_id)
    assert (result["status"], result["outputs"]) == ("completed", {"confirmed": True})
    assert await api.event_types(flow_id) == [
        "flow_started", "step_started", "work_created", "hook_registered", "hook_received", "work_succeeded",
        "step_completed", "flow_completed",
    ]  # fmt: skip
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")


async def test_without_an_active_hook_nothing_is_written(api: Api) -> None:
    await put_hook(api)
    for token in ("order:1", "x", "%", "a/b", "ü" * 255, "ü" * 256, "0" * 32 + "." + "A" * 43):
        (await post(api, token, {"confirmed": True}, "d1")).refused(404, "HOOK_NOT_FOUND")
        (await api.get(path_of(token))).refused(404, "HOOK_NOT_FOUND")
    flow_id = await order(api)
    (await post(api, "order:2", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    assert (await api.work(flow_id))["hook"]["received"] == 0


@pytest.mark.parametrize("order_id", ["a/b", "ä ö?#&%25", "..", "../..", "x" * 249, "\t", "😀"])
async def test_a_token_is_percent_encoded_in_the_url(api: Api, order_id: str) -> None:
    await put_hook(api)
    flow_id = await order(api, order_id)
    await waiting(api, flow_id)
    (await api.get(path_of(f"order:{order_id}"))).ok()
    (await post(api, f"order:{order_id}", {"confirmed": False})).ok()
    assert (await api.final(flow_id))["outputs"] == {"confirmed": False}


@pytest.mark.parametrize(
    ("token", "order_id"),
    [
        ("order:{order_id}", "x" * 250),
        ("{order_id}", "."),
        ("{order_id}", ".."),
        ("{order_id}", ""),
        ("{order_id}", "\0"),
    ],
)
async def test_a_token_that_no_url_can_hold_fails_the_step(api: Api, token: str, order_id: str) -> None:
    await put_hook(api, hook={"token": token})
    result = await api.final(await order(api, order_id))
    assert (result["status"], result["error"]["code"]) == ("failed", "INVALID_INPUT")
    assert "the token must" in result["error"]["message"]


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ([], "payload"),
        ("yes", "payload"),
        (None, "payload"),
        (1, "payload"),
        ({}, "payload.confirmed"),
        ({"confirmed": "yes"}, "payload.confirmed"),
        ({"confirmed": None}, "payload.confirmed"),
    ],
)
async def test_a_single_payload_must_be_an_object_with_the_declared_outputs(api: Api, payload: Any, place: str) -> None:
    """A collect-1 payload that is no object, lacks a declared output or has one of the wrong type: 422, and the hook
    goes on waiting."""
    await put_hook(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    details = (await post(api, "order:1", payload, "d1")).refused(422, "INVALID_PAYLOAD")
    assert [error["place"] for error in details["errors"]] == [place]
    assert (await api.get(path_of("order:1"))).ok()["received"] == 0
    (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    assert (await api.final(flow_id))["status"] == "completed"


async def test_each_payload_must_match_the_schema(api: Api) -> None:
    schema = {"type": "object", "required": ["vote"], "properties": {"vote": {"enum": ["yes", "no"]}}}
    await put_hook(api, hook={"collect": 2, "schema": schema})
    flow_id = await order(api)
    await waiting(api, flow_id)
    errors = (await post(api, "order:1", {"vote": "perhaps"})).refused(422, "INVALID_PAYLOAD")["errors"]
    assert errors[0]["place"] == "payload"
    assert "/vote" in errors[0]["message"]
    assert "perhaps" not in str(errors)
    (await post(api, "order:1", {"vote": "yes"})).ok()
    (await post(api, "order:1", {"vote": "no"})).ok()
    assert (await api.final(flow_id))["outputs"] == {"payloads": [{"vote": "yes"}, {"vote": "no"}]}


async def test_bodies_must_be_json_of_a_bounded_size(start_node: StartNode, connect: Connect) -> None:
    api = connect(await start_node(max_body_bytes=1000))
    await put_hook(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    path = path_of("order:1")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    (await api.request("POST", path, data=b"confirmed=true", headers=form)).refused(415, "UNSUPPORTED_MEDIA_TYPE")
    json = {"Content-Type": "application/json"}
    details = (await api.request("POST", path, data=b"{confirmed", headers=json)).refused(422, "INVALID_PAYLOAD")
    assert details["errors"][0]["place"] == "body"
    (await api.request("POST", path, data=b'"' + b"x" * 1000 + b'"', headers=json)).refused(413, "PAYLOAD_TOO_LARGE")
    long = {**json, "webhook-id": "x" * 256}
    (await api.request("POST", path, data=b"{}", headers=long)).refused(400, "BAD_REQUEST")
    assert (await api.work(flow_id))["hook"]["received"] == 0


async def test_several_payloads_are_collected_in_order_of_arrival(api: Api) -> None:
    await put_hook(api, hook={"collect": 3})
    flow_id = await order(api)
    await waiting(api, flow_id)
    for number, payload in enumerate([{"n": 1}, "two", None]):
        assert (await api.get(path_of("order:1"))).ok()["received"] == number
        (await post(api, "order:1", payload)).ok()
    result = await api.final(flow_id)
    assert result["outputs"] == {"payloads": [{"n": 1}, "two", None]}
    received = [event["data"] for event in await api.events(flow_id) if event["type"] == "hook_received"]
    assert [data["payload"] for data in received] == [{"n": 1}, "two", None]


@pytest.mark.parametrize(
    ("until", "payloads", "taken"),
    [
        ("payload.last == true", [{"n": 1}, {"n": 2, "last": True}], 2),
        ("payloads.filter(p, p.vote == 'yes').size() >= 2", [{"vote": "yes"}, {"vote": "no"}, {"vote": "yes"}], 3),
        ("payload > 10", [5, "text", None, 11], 4),
        ("payload.missing.deep", [{}, 1, [], {"missing": {"deep": True}}], 4),
    ],
)
async def test_until_ends_it_early(api: Api, until: str, payloads: list[Any], taken: int) -> None:
    """`until` that cannot be evaluated on a payload counts as false."""
    await put_hook(api, hook={"collect": 10, "until": until})
    flow_id = await order(api)
    await waiting(api, flow_id)
    for payload in payloads:
        (await post(api, "order:1", payload)).ok()
    assert (await api.final(flow_id))["outputs"] == {"payloads": payloads[:taken]}
    (await post(api, "order:1", payloads[0])).refused(404, "HOOK_NOT_FOUND")


async def test_outputs_of_several_payloads_are_checked_as_those_of_a_worker(api: Api) -> None:
    attributes = {
        "order_id": {"role": "required", "type": "string"},
        "payloads": {"role": "output", "type": "array", "schema": {"uniqueItems": True}},
    }
    await put_hook(api, hook={"collect": 2}, attributes=attributes)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "order:1", 1)).ok()
    (await post(api, "order:1", 1)).ok()
    result = await api.final(flow_id)
    assert (result["status"], result["error"]["code"]) == ("failed", "INVALID_OUTPUT")


async def test_the_same_delivery_is_recorded_once(api: Api) -> None:
    await put_hook(api, hook={"collect": 2})
    flow_id = await order(api)
    await waiting(api, flow_id)
    first = (await post(api, "order:1", 1, "d1")).ok()
    again = (await post(api, "order:1", 1, "d1")).ok()
    other = (await post(api, "order:1", {"another": "payload"}, "d1")).ok()
    assert first == {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": False}
    assert again == other == {**first, "duplicate": True}
    assert (await api.work(flow_id))["hook"]["received"] == 1
    (await post(api, "order:1", 2, "d2")).ok()
    assert (await api.final(flow_id))["outputs"] == {"payloads": [1, 2]}


async def test_a_delivery_is_a_duplicate_after_the_hook_is_gone_too(api: Api) -> None:
    """A delivery id counts per hook; the same one after the hook is gone answers 200 duplicate while its flow is
    kept."""
    await put_hook(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    await api.final(flow_id)
    again = (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    assert again == {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": True}
    (await post(api, "order:1", {"confirmed": True}, "d2")).refused(404, "HOOK_NOT_FOUND")
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    (await post(api, "order:2", {"confirmed": True}, "d1")).refused(404, "HOOK_NOT_FOUND")
    later = await order(api)
    await waiting(api, later)
    taken = (await post(api, "order:1", {"confirmed": False}, "d1")).ok()
    assert taken == {"flow_id": later, "step_id": HOOK, "delivered": True, "duplicate": False}
    assert (await api.final(later))["outputs"] == {"confirmed": False}


async def test_a_pruned_flow_no_longer_knows_its_deliveries(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock, retention_ms=3_600_000))
    await put_hook(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    await api.final(flow_id)
    clock.advance(hours=2)

    async def gone() -> bool:
        return (await api.get(f"/api/v1/flows/{flow_id}")).status == 404

    await eventually(gone, what="the flow to be pruned")
    (await post(api, "order:1", {"confirmed": True}, "d1")).refused(404, "HOOK_NOT_FOUND")


async def test_concurrent_repeats_of_one_delivery_are_one(api: Api) -> None:
    await put_hook(api, hook={"collect": 2})
    flow_id = await order(api)
    await waiting(api, flow_id)
    answers = await asyncio.gather(*(post(api, "order:1", {"n": 1}, "d1") for _ in range(20)))
    assert sorted(answer.ok()["duplicate"] for answer in answers) == [False] + [True] * 19
    assert (await api.work(flow_id))["hook"]["received"] == 1


async def test_of_concurrent_payloads_no_more_are_recorded_than_are_collected(api: Api) -> None:
    await put_hook(api, hook={"collect": 5})
    flow_id = await order(api)
    await waiting(api, flow_id)
    answers = await asyncio.gather(*(post(api, "order:1", number) for number in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 5 + [404] * 15
    taken = [number for number, answer in enumerate(answers) if answer.status == 200]
    assert sorted((await api.final(flow_id))["outputs"]["payloads"]) == taken


async def test_reading_changes_nothing(api: Api) -> None:
    await put_hook(api)
    flow_id = await order(api)
    item = await waiting(api, flow_id)
    shown = (await api.get(path_of("order:1"))).ok()
    assert shown == {
        "flow_id": flow_id, "step_id": HOOK, "status": "waiting", "received": 0, "collect": 1,
        "deadline_at": item["deadline_at"],
    }  # fmt: skip
    before = await api.events(flow_id)
    for method in ("GET", "HEAD", "OPTIONS"):
        assert (await api.request(method, path_of("order:1"))).status in (200, 204)
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await api.request(method, path_of("order:1"), json={"confirmed": True})).status == 405
    assert await api.events(flow_id) == before


async def test_active_hooks_are_listed(api: Api) -> None:
    await put_hook(api)
    await put_hook(api, "made", hook={"token": None})
    flows = [await order(api, str(number)) for number in range(3)]
    secret = await order(api, "x", "made")
    for flow_id in (*flows, secret):
        await waiting(api, flow_id)
    first = (await api.get("/api/v1/hooks", limit="2")).ok()
    rest = (await api.get("/api/v1/hooks", limit="2", cursor=first["next_cursor"])).ok()
    assert rest["next_cursor"] is None
    listed = first["hooks"] + rest["hooks"]
    assert [hook["flow_id"] for hook in listed] == [*flows, secret]
    assert [hook["token"] for hook in listed] == ["order:0", "order:1", "order:2", None]
    assert {hook["status"] for hook in listed} == {"waiting"}
    only = (await api.get("/api/v1/hooks", step="made")).ok()["hooks"]
    assert [hook["flow_id"] for hook in only] == [secret]
    (await api.get("/api/v1/hooks", cursor="nonsense")).refused(422, "INVALID_INPUT")
    (await post(api, "order:1", {"confirmed": True})).ok()
    await api.final(flows[1])
    assert len((await api.get("/api/v1/hooks")).ok()["hooks"]) == 3
