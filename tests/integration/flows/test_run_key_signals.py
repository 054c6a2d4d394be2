"""``signal`` of a flow start: delivered to a hook of the flow that owns the run key, or of the flow that is started."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from counterfoil.testing import MovableClock
from tests.integration.planned import Workshop, gives, takes
from tests.running import Connect, StartNode
from tests.wire import Api, Reply

KEY = "order:7"
FLOWS = "/api/v1/flows"
HOOK = {
    "kind": "hook",
    "hook": {"token": "confirm:{order_id}"},
    "attributes": {"order_id": takes("string"), "confirmed": gives("boolean")},
}
COLLECTING = {"order_id": takes("string"), "payloads": gives("array")}


async def put_hook(api: Api, **fields: Any) -> None:
    definition = {**HOOK, **fields}
    assert (await api.request("PUT", "/api/v1/steps/confirm", json=definition)).status in (200, 201)


async def start(
    api: Api, payload: Any = None, *, on_conflict: str = "signal", hook: str = "confirm:7", **fields: Any
) -> Reply:
    body: dict[str, Any] = {
        "goals": ["confirm"],
        "init": {"order_id": "7"},
        "idempotency_key": KEY,
        "on_conflict": on_conflict,
        "signal": {"hook": hook, "payload": {"confirmed": True} if payload is None else payload},
        **fields,
    }
    return await api.post(FLOWS, {name: value for name, value in body.items() if value is not ...})


async def owner_of(api: Api, **fields: Any) -> str:
    return str((await start(api, signal=..., on_conflict="reject", **fields)).ok(201)["flow_id"])


async def test_a_signal_is_delivered_to_the_owner(api: Api) -> None:
    await put_hook(api)
    owner = await owner_of(api)
    body = (await start(api)).ok(200)
    assert (body["flow_id"], body["reused"], body["signalled"]) == (owner, True, True)
    result = await api.final(owner)
    assert (result["status"], result["outputs"]) == ("completed", {"confirmed": True})


async def test_a_signal_is_kept_for_a_hook_that_is_not_waiting_yet(shop: Workshop) -> None:
    api = shop.api
    await shop.waits("check", {"fine": gives("boolean")})
    await put_hook(api, attributes={**HOOK["attributes"], "fine": takes("boolean")})  # type: ignore[dict-item]
    owner = await owner_of(api)
    body = (await start(api, {"confirmed": False})).ok(200)
    assert (body["flow_id"], body["signalled"], body["status"]) == (owner, True, "active")
    await shop.report("check", fine=True)
    assert (await api.final(owner))["outputs"] == {"fine": True, "confirmed": False}


async def test_the_signal_of_an_admitted_start_goes_to_its_own_flow(api: Api) -> None:
    await put_hook(api)
    body = (await start(api)).ok(201)
    assert body["reused"] is False
    assert "signalled" not in body
    result = await api.final(body["flow_id"])
    assert (result["status"], result["outputs"]) == ("completed", {"confirmed": True})


@pytest.mark.parametrize("on_conflict", ["reject", "adopt", "supersede"])
async def test_so_does_the_signal_of_a_start_with_another_strategy(api: Api, on_conflict: str) -> None:
    await put_hook(api)
    first = await owner_of(api)
    if on_conflict == "supersede":
        body = (await start(api, on_conflict=on_conflict)).ok(201)
        assert body["superseded"] == first
        assert (await api.final(body["flow_id"]))["outputs"] == {"confirmed": True}
        return
    reply = await start(api, on_conflict=on_conflict)
    assert reply.status == {"reject": 409, "adopt": 200}[on_conflict]
    assert (await api.flow(first))["status"] == "active", "its hook has no payload"


async def test_a_hook_that_the_owner_does_not_have(api: Api) -> None:
    await put_hook(api)
    owner = await owner_of(api)
    before = await api.events(owner)
    (await start(api, hook="confirm:8")).refused(404, "HOOK_NOT_FOUND")
    assert await api.events(owner) == before, "nothing is written"


async def test_a_hook_of_another_flow_is_not_the_owners(api: Api) -> None:
    await put_hook(api)
    owner = await owner_of(api)
    other = await owner_of(api, idempotency_key="order:8", init={"order_id": "8"})
    (await start(api, hook="confirm:8")).refused(404, "HOOK_NOT_FOUND")
    assert [(await api.flow(each))["status"] for each in (owner, other)] == ["active", "active"]


async def test_a_start_whose_signal_has_no_hook_is_not_made(api: Api) -> None:
    await put_hook(api)
    (await start(api, hook="confirm:8")).refused(404, "HOOK_NOT_FOUND")
    assert (await api.get(FLOWS, key=KEY)).ok()["flows"] == []
    owner = await owner_of(api)
    (await start(api, on_conflict="supersede", hook="confirm:8")).refused(404, "HOOK_NOT_FOUND")
    assert (await api.flow(owner))["status"] == "active", "nothing was superseded"


async def test_a_payload_that_the_hook_does_not_take(api: Api) -> None:
    await put_hook(api)
    owner = await owner_of(api)
    details = (await start(api, {"confirmed": "yes"})).refused(422, "INVALID_PAYLOAD")
    assert details["errors"][0]["place"] == "payload.confirmed"
    assert (await api.flow(owner))["status"] == "active"
    assert (await start(api)).ok(200)["signalled"] is True


async def test_another_start_with_the_same_key_signals_nothing(api: Api) -> None:
    await put_hook(api)
    owner = await owner_of(api)
    (await start(api, init={"order_id": "7", "extra": 1})).refused(409, "RUN_KEY_REUSED")
    assert (await api.flow(owner))["status"] == "active"


async def test_the_same_delivery_is_recorded_once(api: Api) -> None:
    await put_hook(api, hook={"token": "confirm:{order_id}", "collect": 2}, attributes=COLLECTING)
    owner = await owner_of(api)
    signal = {"hook": "confirm:7", "payload": {"n": 1}, "delivery_id": "mail-1"}
    for _ in range(3):
        assert (await start(api, signal=signal)).ok(200)["signalled"] is True
    assert (await api.flow(owner))["status"] == "active"
    (await start(api, {"n": 2})).ok(200)
    assert (await api.final(owner))["outputs"] == {"payloads": [{"n": 1}, {"n": 2}]}


async def test_a_finished_owner_is_the_answer_and_takes_no_signal(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api)
    owner = (await start(api, retain_key_for="1h")).ok(201)["flow_id"]
    await api.final(owner)
    body = (await start(api, {"confirmed": False})).ok(200)
    assert (body["flow_id"], body["status"], body["outputs"]) == (owner, "completed", {"confirmed": True})
    assert (body["reused"], body["signalled"]) == (True, False)


async def test_two_hundred_simultaneous_signals_reach_one_flow(
    store_name: str, start_node: StartNode, connect: Connect
) -> None:
    apis = [connect(await start_node()) for _ in range(3 if store_name == "postgresql" else 1)]
    count = 200
    await put_hook(apis[0], hook={"token": "confirm:{order_id}", "collect": count}, attributes=COLLECTING)
    replies = await asyncio.gather(*(start(apis[number % len(apis)], {"n": number}) for number in range(count)))
    assert Counter(reply.status for reply in replies) == {201: 1, 200: count - 1}
    owner = next(reply.body["flow_id"] for reply in replies if reply.status == 201)
    assert {reply.body["flow_id"] for reply in replies} == {owner}
    assert all(reply.body["signalled"] for reply in replies if reply.status == 200)
    payloads = (await apis[0].final(owner))["outputs"]["payloads"]
    assert sorted(payload["n"] for payload in payloads) == list(range(count)), "each payload once"
