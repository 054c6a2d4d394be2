"""Payloads that come between the admission of a flow and the registration of its hook."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.hooking import (
    CONFIRMED,
    HOOK,
    ORDER,
    PAYLOADS,
    made,
    order,
    path_of,
    post,
    put_hook,
    start_expecting,
    waiting,
)  # fmt: skip
from tests.integration.planned import Workshop, each, gives, takes
from tests.running import Connect, Node, StartNode
from tests.wire import Api

BEFORE = {"order_id": takes("string"), "checked": gives("boolean")}
"""A step that the hook waits for."""


async def put_late_hook(api: Api, shop: Workshop, **more: Any) -> None:
    """A hook whose step starts only when the test says so."""
    await shop.waits("check", BEFORE)
    outputs = PAYLOADS if more.get("hook", {}).get("collect", 1) > 1 else CONFIRMED
    await put_hook(api, attributes={**ORDER, "checked": takes("boolean"), **outputs}, **more)


async def test_a_payload_before_the_registration_is_kept_for_the_hook(api: Api, shop: Workshop, node: Node) -> None:
    await put_late_hook(api, shop)
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    shown = (await api.get(path_of("order:1"))).ok()
    assert (shown["status"], shown["received"], shown["deadline_at"]) == ("expected", 0, None)
    answer = (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    expected = {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": False, "buffered": True}
    assert answer == expected
    assert (await post(api, "order:1", {"confirmed": True}, "d1")).ok() == {**expected, "duplicate": True}
    (await post(api, "order:1", {"confirmed": True}, "d2")).refused(404, "HOOK_NOT_FOUND")
    (await api.get(path_of("order:1"))).refused(404, "HOOK_NOT_FOUND")
    await shop.report("check", checked=True)
    assert (await api.final(flow_id))["outputs"] == {"checked": True, "confirmed": True}
    again = (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    assert again == {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": True}


async def test_without_a_run_key_it_is_refused(api: Api, shop: Workshop) -> None:
    await put_late_hook(api, shop)
    flow_id = await order(api)
    (await post(api, "order:1", {"confirmed": True}, "d1")).refused(404, "HOOK_NOT_FOUND")
    await shop.report("check", checked=True)
    await waiting(api, flow_id, HOOK)


async def test_payloads_are_kept_in_order_and_those_that_come_later_follow(
    api: Api, shop: Workshop, node: Node
) -> None:
    await put_late_hook(api, shop, hook={"collect": 4})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    for number in (1, 2):
        assert (await post(api, "order:1", number)).ok()["buffered"]
    await shop.report("check", checked=True)
    assert (await waiting(api, flow_id, HOOK))["hook"]["received"] == 2
    for number in (3, 4):
        assert "buffered" not in (await post(api, "order:1", number)).ok()
    assert (await api.final(flow_id))["outputs"]["payloads"] == [1, 2, 3, 4]


async def test_until_and_the_checks_count_for_the_buffer_too(api: Api, shop: Workshop, node: Node) -> None:
    await put_late_hook(api, shop, hook={"collect": 9, "until": "payload == 'end'", "schema": {"type": "string"}})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    (await post(api, "order:1", 1)).refused(422, "INVALID_PAYLOAD")
    for text in ("begin", "end"):
        (await post(api, "order:1", text)).ok()
    (await post(api, "order:1", "more")).refused(404, "HOOK_NOT_FOUND")
    await shop.report("check", checked=True)
    assert (await api.final(flow_id))["outputs"]["payloads"] == ["begin", "end"]


async def test_a_made_token_is_buffered(api: Api, shop: Workshop, node: Node) -> None:
    await put_late_hook(api, shop, hook={"token": None})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    assert (await post(api, made(node, flow_id, HOOK), {"confirmed": True})).ok()["buffered"]
    await shop.report("check", checked=True)
    assert (await api.final(flow_id))["outputs"]["confirmed"] is True


async def test_a_token_that_needs_the_output_of_a_step_is_not_known_yet(api: Api, shop: Workshop, node: Node) -> None:
    await shop.waits("check", BEFORE)
    attributes = {"checked": takes("boolean"), **CONFIRMED}
    await put_hook(api, attributes=attributes, hook={"token": "checked:{checked}"})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    (await post(api, "checked:true", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    await shop.report("check", checked=True)
    await waiting(api, flow_id, HOOK)
    (await post(api, "checked:true", {"confirmed": True})).ok()


async def test_items_of_a_fan_out_are_buffered_apart(api: Api, shop: Workshop, node: Node) -> None:
    await shop.waits("check", {"order_id": takes(), "checked": gives("boolean")})
    attributes = {"to": each("string"), "checked": takes("boolean"), **CONFIRMED}
    await put_hook(api, attributes=attributes, hook={"token": "vote:{to}"})
    flow_id = await start_expecting(node, HOOK, init={"to": ["ann", "bob"], "order_id": "1"})
    (await post(api, "vote:bob", {"confirmed": False})).ok()
    (await post(api, "vote:bob", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    await shop.report("check", checked=True)
    (await post(api, "vote:ann", {"confirmed": True})).ok()
    assert (await api.final(flow_id))["outputs"]["confirmed"] == [True, False]


async def test_items_that_end_as_soon_as_they_start_let_the_next_ones_start(api: Api, shop: Workshop) -> None:
    """Their payloads were buffered, so each hook has enough when it is registered: one commit goes through them all."""
    await shop.waits("check", BEFORE)
    attributes = {"order_id": takes(), "to": each("string"), "checked": takes("boolean"), **CONFIRMED}
    await put_hook(api, attributes=attributes, hook={"token": "vote:{to}"}, fan_out={"parallelism": 1})
    voters = ["ann", "bob", "cid"]
    flow_id = await api.start(HOOK, init={"to": voters, "order_id": "1"}, idempotency_key="votes")
    for voter in voters[:2]:
        assert (await post(api, f"vote:{voter}", {"confirmed": True})).ok()["buffered"]
    await shop.report("check", checked=True)

    async def last() -> bool:
        return bool((await api.get("/api/v1/hooks")).ok()["hooks"])

    await eventually(last, what="the hook of the last voter")
    assert "buffered" not in (await post(api, "vote:cid", {"confirmed": False})).ok()
    assert (await api.final(flow_id))["outputs"]["confirmed"] == [True, True, False]


async def test_the_active_owner_comes_before_a_flow_that_is_expected(api: Api, shop: Workshop, node: Node) -> None:
    await put_late_hook(api, shop, hook={"on_conflict": "wait"})
    await put_hook(api, "other")
    owner = await order(api, "1", "other")
    await waiting(api, owner)
    expected = await start_expecting(node, HOOK, init={"order_id": "1"})
    assert (await post(api, "order:1", {"confirmed": False})).ok()["flow_id"] == owner
    assert (await post(api, "order:1", {"confirmed": True})).ok()["flow_id"] == expected
    await shop.report("check", checked=True)
    assert (await api.final(expected))["outputs"]["confirmed"] is True


async def test_a_buffer_waits_in_the_queue_with_its_hook(api: Api, shop: Workshop, node: Node) -> None:
    await put_late_hook(api, shop, hook={"on_conflict": "wait"})
    expected = await start_expecting(node, HOOK, init={"order_id": "1"})
    (await post(api, "order:1", {"confirmed": True})).ok()
    await put_hook(api, "other")
    owner = await order(api, "1", "other")
    await waiting(api, owner)
    await shop.report("check", checked=True)
    await waiting(api, expected, HOOK, status="queued")
    after = await order(api, "1", "other")
    assert (await api.final(after))["error"]["code"] == "HOOK_CONFLICT"
    (await post(api, "order:1", {"confirmed": False})).ok()
    assert (await api.final(expected))["outputs"]["confirmed"] is True


async def test_a_redriven_flow_still_has_its_buffer(api: Api, shop: Workshop, node: Node) -> None:
    """What was answered 200 is not lost when a step before the hook fails, and more may come after the redrive."""
    await put_late_hook(api, shop, hook={"collect": 3})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    (await post(api, "order:1", 1, "d1")).ok()
    for failures in (1, 2):
        await shop.fail("check", failures)
        assert (await api.final(flow_id))["status"] == "failed"
        (await post(api, "order:1", 0, "d0")).refused(404, "HOOK_NOT_FOUND")
        (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    assert (await api.get(path_of("order:1"))).ok()["received"] == 1
    assert (await post(api, "order:1", 1, "d1")).ok()["duplicate"]
    assert (await post(api, "order:1", 2)).ok()["buffered"]
    await shop.report("check", 3, checked=True)
    assert (await waiting(api, flow_id, HOOK))["hook"]["received"] == 2
    assert "buffered" not in (await post(api, "order:1", 3)).ok()
    assert (await api.final(flow_id))["outputs"]["payloads"] == [1, 2, 3]


async def test_a_redriven_hook_that_was_expected_waits_anew(api: Api, shop: Workshop, node: Node) -> None:
    """Each run of the step after the first one that registered has a hook of its own."""
    await put_late_hook(api, shop, hook={"on_conflict": "supersede", "collect": 2})
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    await shop.fail("check")
    await api.final(flow_id)
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    (await post(api, "order:1", 1)).ok()
    await shop.report("check", 2, checked=True)
    await waiting(api, flow_id, HOOK)
    await put_hook(api, "newest", hook={"on_conflict": "supersede"})
    newest = await order(api, "1", "newest")
    assert (await api.final(flow_id))["error"]["code"] == "HOOK_SUPERSEDED"
    (await api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    assert (await api.final(newest))["error"]["code"] == "HOOK_SUPERSEDED"
    shown = (await api.get(path_of("order:1"))).ok()
    assert (shown["flow_id"], shown["status"], shown["received"]) == (flow_id, "waiting", 0)
    for number in (2, 3):
        (await post(api, "order:1", number)).ok()
    assert (await api.final(flow_id))["outputs"]["payloads"] == [2, 3]


async def test_nothing_is_kept_for_the_hook_of_a_sub_flow_until_it_waits(api: Api, shop: Workshop) -> None:
    """The run key is that of the outer flow. A signal to the outer flow reaches the hook once it waits."""
    await put_late_hook(api, shop)
    flow = {"goals": [HOOK], "inputs": {"order_id": "order_id"}, "outputs": {"confirmed": "confirmed"}}
    await shop.inner("outer", {**ORDER, **CONFIRMED}, flow)
    body = {"goals": ["outer"], "init": {"order_id": "1"}, "idempotency_key": "order:1"}
    signal = {"hook": "order:1", "payload": {"confirmed": True}}
    signalling = {**body, "on_conflict": "signal", "signal": signal}
    flow_id = (await api.post("/api/v1/flows", body)).ok(201)["flow_id"]
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    (await api.post("/api/v1/flows", signalling)).refused(404, "HOOK_NOT_FOUND")
    await shop.report("check", checked=True)

    async def child() -> str | None:
        shown = await api.get(path_of("order:1"))
        return str(shown.body["flow_id"]) if shown.status == 200 else None

    assert await eventually(child, what="the hook of the sub-flow") != flow_id
    assert (await api.post("/api/v1/flows", signalling)).ok(200)["signalled"] is True
    assert (await api.final(flow_id))["outputs"] == {"confirmed": True}


@pytest.mark.parametrize("way", ["cancelled", "failed", "skipped", "deadline"])
async def test_a_hook_that_will_never_start_takes_no_payload(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, way: str
) -> None:
    clock = MovableClock()
    node = await start_node(clock)
    api = connect(node)
    shop = Workshop(api, endpoint)
    predicate = "inputs.checked" if way == "skipped" else None
    await put_late_hook(api, shop, predicate=predicate)
    fields = {"deadline_ms": 60_000} if way == "deadline" else {}
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"}, **fields)
    (await post(api, "order:1", {"confirmed": True}, "d1")).ok()
    if way == "cancelled":
        (await api.post(f"/api/v1/flows/{flow_id}/cancel", {})).ok()
    elif way == "failed":
        await shop.fail("check")
    elif way == "deadline":
        clock.advance(minutes=2)
    else:
        await shop.report("check", checked=False)
    await api.final(flow_id)
    (await post(api, "order:1", {"confirmed": True}, "d2")).refused(404, "HOOK_NOT_FOUND")
    assert (await post(api, "order:1", {"confirmed": True}, "d1")).ok()["duplicate"]
    (await api.get(path_of("order:1"))).refused(404, "HOOK_NOT_FOUND")


async def test_a_hook_step_that_starts_at_once_is_not_expected(api: Api, node: Node) -> None:
    await put_hook(api)
    flow_id = await start_expecting(node, HOOK, init={"order_id": "1"})
    assert "hook_expected" not in await api.event_types(flow_id)
    assert "buffered" not in (await post(api, "order:1", {"confirmed": True})).ok()
