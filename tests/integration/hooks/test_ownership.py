"""One owner per token over all flows: the three ways of a conflict, and every way in which a token is released."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.hooking import CONFIRMED, HOOK, ORDER, order, path_of, post, put_hook, waiting
from tests.integration.planned import FAILS, Workshop, gives, takes
from tests.running import Connect, StartNode
from tests.wire import Api


async def test_fail_names_the_flow_and_step_of_the_owner(api: Api) -> None:
    await put_hook(api)
    owner = await order(api)
    await waiting(api, owner)
    loser = await order(api)
    result = await api.final(loser)
    assert result["status"] == "failed"
    assert result["error"]["code"] == "HOOK_CONFLICT"
    assert result["error"]["details"] == {"flow_id": owner, "step_id": HOOK}
    assert (await waiting(api, owner))["hook"]["received"] == 0
    (await post(api, "order:1", {"confirmed": True})).ok()
    assert (await api.final(owner))["status"] == "completed"


async def test_wait_registers_in_order_when_the_owner_is_gone(api: Api) -> None:
    await put_hook(api, hook={"on_conflict": "wait"})
    flows = []
    for _ in range(4):
        flows.append(await order(api))
        await waiting(api, flows[-1], status="waiting" if len(flows) == 1 else "queued")
    assert (await api.get(path_of("order:1"))).ok()["flow_id"] == flows[0]
    await api.post(f"/api/v1/flows/{flows[1]}/cancel", {})
    for flow_id in (flows[0], flows[2], flows[3]):
        assert (await post(api, "order:1", {"confirmed": True})).ok()["flow_id"] == flow_id
        assert (await api.final(flow_id))["status"] == "completed"
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    types = await api.event_types(flows[3])
    assert types.index("hook_queued") < types.index("hook_registered") < types.index("hook_received")


async def test_a_hook_that_waited_is_registered_without_a_payload(api: Api) -> None:
    await put_hook(api, hook={"on_conflict": "wait"})
    first, second = await order(api), await order(api)
    await waiting(api, second, status="queued")
    (await api.post(f"/api/v1/flows/{first}/cancel", {})).ok()
    await waiting(api, second)
    assert (await api.event_types(second)).count("hook_registered") == 1


async def test_the_deadline_of_a_hook_that_waits_runs_from_the_start_of_its_step(
    start_node: StartNode, connect: Connect
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api, hook={"on_conflict": "wait"}, work={"deadline_ms": 3_600_000})
    first = await order(api)
    await waiting(api, first)
    clock.advance(minutes=30)
    second = await order(api)
    queued = await waiting(api, second, status="queued")
    clock.advance(minutes=31)
    assert (await api.final(first))["error"]["code"] == "HOOK_TIMEOUT"
    assert (await waiting(api, second))["deadline_at"] == queued["deadline_at"]
    third = await order(api)
    await waiting(api, third, status="queued")
    clock.advance(minutes=30)
    assert (await api.final(second))["error"]["code"] == "HOOK_TIMEOUT"
    await waiting(api, third)


async def test_a_hook_that_waits_times_out_in_the_queue(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api, hook={"on_conflict": "wait"}, work={"deadline_ms": 60_000})
    await put_hook(api, "patient")
    owner = await order(api, "1", "patient")
    await waiting(api, owner)
    queued = await order(api)
    await waiting(api, queued, status="queued")
    clock.advance(minutes=2)
    assert (await api.final(queued))["error"]["code"] == "HOOK_TIMEOUT"
    (await post(api, "order:1", {"confirmed": True})).ok()
    assert (await api.final(owner))["status"] == "completed"
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")


async def test_supersede_fails_the_owner_after_the_payloads_it_has(api: Api) -> None:
    await put_hook(api, hook={"on_conflict": "supersede", "collect": 3})
    owner = await order(api)
    await waiting(api, owner)
    for number in (1, 2):
        (await post(api, "order:1", number)).ok()
    winner = await order(api)
    result = await api.final(owner)
    assert (result["status"], result["error"]["code"]) == ("failed", "HOOK_SUPERSEDED")
    assert result["error"]["details"] == {"flow_id": winner, "step_id": HOOK, "received": 2}
    assert (await api.work(owner))["outputs"] == {"payloads": [1, 2]}
    assert (await waiting(api, winner))["hook"]["received"] == 0
    for number in (3, 4, 5):
        assert (await post(api, "order:1", number)).ok()["flow_id"] == winner
    assert (await api.final(winner))["outputs"] == {"payloads": [3, 4, 5]}


async def test_a_superseded_owner_goes_on_as_after_any_failure(api: Api, shop: Workshop) -> None:
    """The flow of the owner is settled in the same transaction: its steps are compensated, its outer flow told."""
    await shop.sync(
        "book",
        {"order_id": takes("string"), "booked": gives()},
        lambda _: {"booked": 1},
        compensate=shop.undoing("book"),
    )
    attributes = {**ORDER, "booked": takes(), **CONFIRMED}
    await put_hook(api, attributes=attributes, hook={"on_conflict": "supersede"})
    flow = {"goals": [HOOK], "inputs": {"order_id": "order_id"}, "outputs": {"confirmed": "confirmed"}}
    await shop.inner("outer", {**ORDER, **CONFIRMED}, flow)
    loser = await order(api, "1", "outer")

    async def child_waits() -> str | None:
        item = await api.work(loser)
        child = item["child_flow_id"]
        if child is None:
            return None
        step = (await api.flow(child))["steps"][HOOK]["work"]
        return child if step and step[0].get("hook", {}).get("status") == "waiting" else None

    child = await eventually(child_waits, what="the hook of the sub-flow")
    winner = await order(api)
    result = await api.final(loser)
    assert (result["error"]["code"], result["error"]["cause"]["code"]) == ("CHILD_FAILED", "HOOK_SUPERSEDED")
    assert [step["status"] for step in (await api.flow(child))["compensation"]] == ["completed"]
    (await post(api, "order:1", {"confirmed": True})).ok()
    assert (await api.final(winner))["status"] == "completed"


async def test_supersede_passes_over_hooks_that_wait(api: Api) -> None:
    await put_hook(api, hook={"on_conflict": "wait"})
    await put_hook(api, "now", hook={"on_conflict": "supersede"})
    owner, queued = await order(api), await order(api)
    await waiting(api, queued, status="queued")
    winner = await order(api, "1", "now")
    assert (await api.final(owner))["error"]["code"] == "HOOK_SUPERSEDED"
    assert (await post(api, "order:1", {"confirmed": True})).ok()["flow_id"] == winner
    assert (await post(api, "order:1", {"confirmed": True})).ok()["flow_id"] == queued


async def test_items_of_one_step_compete_like_flows(api: Api) -> None:
    attributes = {"order_id": takes("string", for_each=True), **CONFIRMED}
    await put_hook(api, attributes=attributes, hook={"on_conflict": "supersede"}, fan_out={"on_failure": "collect"})
    flow_id = await api.start(HOOK, init={"order_id": ["a", "a", "b"]})
    for token in ("order:a", "order:b"):
        (await post(api, token, {"confirmed": True})).ok()
    assert (await api.final(flow_id))["outputs"] == {"confirmed": [None, True, True]}


# ------------------------------------------------------------------------------------------------ release


async def registered_again(api: Api) -> None:
    """The token is free: another flow registers it at once, and is given a payload."""
    flow_id = await order(api, "1", "again")
    await waiting(api, flow_id)
    assert (await post(api, "order:1", {"confirmed": True})).ok()["flow_id"] == flow_id
    assert (await api.final(flow_id))["status"] == "completed"


@pytest.fixture
async def hooks(api: Api) -> Api:
    await put_hook(api)
    await put_hook(api, "again")
    return api


async def test_the_token_is_released_when_the_flow_completes(hooks: Api) -> None:
    flow_id = await order(hooks)
    await waiting(hooks, flow_id)
    (await post(hooks, "order:1", {"confirmed": True})).ok()
    await registered_again(hooks)


async def test_the_token_is_released_when_the_flow_is_cancelled(hooks: Api) -> None:
    flow_id = await order(hooks)
    await waiting(hooks, flow_id)
    (await hooks.post(f"/api/v1/flows/{flow_id}/cancel", {})).ok()
    await registered_again(hooks)
    assert (await hooks.work(flow_id))["hook"]["status"] == "ended"


async def test_the_token_is_released_when_another_step_fails(hooks: Api, shop: Workshop) -> None:
    await shop.sync("breaks", {"order_id": takes(), "x": gives()}, FAILS)
    flow_id = await order(hooks, "1", HOOK, "breaks")
    assert (await hooks.final(flow_id))["status"] == "failed"
    await registered_again(hooks)


async def test_the_token_is_released_while_the_flow_compensates(hooks: Api, shop: Workshop) -> None:
    undoing = shop.undoing("book", kind="async")
    await shop.sync("book", {"order_id": takes(), "booked": gives()}, lambda _: {"booked": 1}, compensate=undoing)
    await shop.waits("breaks", {"booked": takes(), "x": gives()})
    flow_id = await order(hooks, "1", HOOK, "breaks")
    await waiting(hooks, flow_id, HOOK)
    await shop.fail("breaks")
    received = await shop.endpoint.received("/undo-book")
    assert (await hooks.flow(flow_id))["status"] == "compensating"
    await registered_again(hooks)
    await hooks.succeed(received)
    assert (await hooks.final(flow_id))["status"] == "failed"


async def test_the_token_is_released_at_the_deadline_of_the_flow(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api)
    await put_hook(api, "again")
    for on_deadline, status in (("fail", "failed"), ("cancel", "cancelled")):
        flow_id = await order(api, deadline_ms=60_000, on_deadline=on_deadline)
        await waiting(api, flow_id)
        clock.advance(minutes=2)
        assert (await api.final(flow_id))["status"] == status
        await registered_again(api)


async def test_the_losers_of_wait_for_release_their_tokens(api: Api, shop: Workshop) -> None:
    """First of N."""
    await put_hook(api, "mail", hook={"token": "mail:{order_id}"}, attributes={**ORDER, "by_mail": gives()})
    await put_hook(api, "phone", hook={"token": "phone:{order_id}"}, attributes={**ORDER, "by_phone": gives()})
    await shop.sync(
        "ship",
        {"order_id": takes(), "shipped": gives()},
        lambda _: {"shipped": True},
        wait_for={"any": 1, "of": ["mail", "phone"]},
    )
    flow_id = await order(api, "1", "ship")
    await waiting(api, flow_id, "mail")
    await waiting(api, flow_id, "phone")
    (await post(api, "phone:1", {"by_phone": 1})).ok()
    flow = await shop.end(flow_id)
    assert flow["status"] == "completed"
    assert flow["steps"]["mail"]["status"] == "cancelled"
    (await post(api, "mail:1", {"by_mail": 1})).refused(404, "HOOK_NOT_FOUND")


async def test_n_of_m_hooks_are_enough(api: Api, shop: Workshop) -> None:
    votes = ["ann", "bob", "cid"]
    for name in votes:
        await put_hook(api, name, hook={"token": name + ":{order_id}"}, attributes={**ORDER, name: gives()})
    await shop.sync(
        "ship", {"order_id": takes(), "shipped": gives()}, lambda _: {"shipped": True}, wait_for={"any": 2, "of": votes}
    )
    flow_id = await order(api, "1", "ship")
    for name in votes:
        await waiting(api, flow_id, name)
    (await post(api, "bob:1", {"bob": 1})).ok()
    assert (await api.flow(flow_id))["status"] == "active"
    (await post(api, "cid:1", {"cid": 1})).ok()
    assert (await api.final(flow_id))["status"] == "completed"
    (await post(api, "ann:1", {"ann": 1})).refused(404, "HOOK_NOT_FOUND")


async def test_a_redriven_hook_registers_again(hooks: Api, shop: Workshop) -> None:
    owner = await order(hooks)
    await waiting(hooks, owner)
    loser = await order(hooks)
    assert (await hooks.final(loser))["error"]["code"] == "HOOK_CONFLICT"
    (await post(hooks, "order:1", {"confirmed": True}, "d1")).ok()
    (await hooks.post(f"/api/v1/flows/{loser}/redrive", {})).ok()

    async def waits() -> bool:
        return (await hooks.get(path_of("order:1"))).status == 200

    await eventually(waits, what="the redriven hook")
    assert (await post(hooks, "order:1", {"confirmed": False}, "d1")).ok()["flow_id"] == loser
    assert (await hooks.final(loser))["outputs"] == {"confirmed": False}
    await registered_again(hooks)


async def test_a_redriven_hook_that_timed_out_waits_anew(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api, hook={"collect": 2}, work={"deadline_ms": 60_000})
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "order:1", 1, "d1")).ok()
    clock.advance(minutes=2)
    result = await api.final(flow_id)
    assert result["error"]["code"] == "HOOK_TIMEOUT"
    (await api.post(f"/api/v1/flows/{flow_id}/redrive", {})).ok()
    for number in (1, 2):
        (await post(api, "order:1", number, f"d{number}")).ok()
    assert (await api.final(flow_id))["outputs"] == {"payloads": [1, 2]}
    assert [item["hook"]["received"] for item in (await api.flow(flow_id))["steps"][HOOK]["work"]] == [1, 2]


async def test_a_predicate_that_is_false_registers_nothing(api: Api, endpoint: StepEndpoint) -> None:
    await put_hook(api, predicate="inputs.order_id != '1'")
    assert (await api.final(await order(api)))["status"] == "completed"
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    other = await order(api, "2")
    await waiting(api, other)


@pytest.mark.parametrize("on_timeout", ["fail", "complete"])
@pytest.mark.parametrize("collect", [1, 3])
async def test_the_deadline_ends_the_hook(
    start_node: StartNode, connect: Connect, on_timeout: str, collect: int
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api, hook={"collect": collect, "on_timeout": on_timeout}, work={"deadline_ms": 60_000})
    flow_id = await order(api)
    await waiting(api, flow_id)
    if collect > 1:
        (await post(api, "order:1", "first")).ok()
    clock.advance(minutes=2)
    result = await api.final(flow_id)
    ending = next(event for event in await api.events(flow_id) if event["type"] in ("work_failed", "work_succeeded"))
    so_far: dict[str, Any] = {"payloads": ["first"]} if collect > 1 else {}
    if on_timeout == "fail":
        assert (result["status"], result["error"]["code"]) == ("failed", "HOOK_TIMEOUT")
    else:
        assert (result["status"], result["outputs"]) == ("completed", so_far)
        assert ending["data"]["timed_out"] is True
    assert ((await api.work(flow_id))["outputs"] or {}) == so_far
    assert "hook_timed_out" in await api.event_types(flow_id)
    (await post(api, "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
