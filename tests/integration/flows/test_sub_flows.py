"""Steps that are flows: what goes in and comes out, how they fail, how they are cancelled, how deep they may lie."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.jsontext import MAX_DEPTH
from counterfoil.testing import StepEndpoint
from tests.integration.planned import FAILS, Workshop, each, gives, items, states, succeeded, takes
from tests.integration.several_nodes import SHORT_LEASE, start_nodes, succeed
from tests.running import Connect, StartNode
from tests.wire import Api

PARENT = {"order": takes(), "receipt": gives()}
MAPPING = {"goals": ["charge"], "inputs": {"amount": "order"}, "outputs": {"receipt": "paid"}}


async def payment(shop: Workshop, **more: Any) -> None:
    """A step that is a flow of one step, which the test reports."""
    await shop.waits("charge", {"amount": takes("number"), "paid": gives()})
    await shop.inner("payment", PARENT, MAPPING, **more)


async def child_of(shop: Workshop, flow_id: str, step_id: str = "payment") -> str:
    work = await shop.api.work(flow_id, step_id)
    return str(work["work_id"])


async def test_values_go_in_and_come_out_under_their_names(shop: Workshop) -> None:
    await payment(shop)
    await shop.sync("goal", {"receipt": takes(), "done": gives()}, lambda given: {"done": given["receipt"]})
    flow_id = await shop.api.start("goal", init={"order": 5}, metadata={"who": "me"}, labels={"a": "b"})
    received = await shop.endpoint.received("/charge")
    assert received.arguments == {"amount": 5}
    assert received.metadata["who"] == "me"
    child_id = received.metadata["flow_id"]
    work = await shop.api.work(flow_id, "payment")
    assert work["status"] == "active"
    child = await shop.api.flow(child_id)
    assert child["parent"] == {"flow_id": flow_id, "step_id": "payment", "work_id": work["work_id"]}
    assert (child["init"], child["labels"]) == ({"amount": 5}, {"a": "b"})
    await shop.api.succeed(received, paid="yes")
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"receipt": "yes", "done": "yes"})
    assert (await shop.api.flow(child_id))["status"] == "completed"


async def test_a_failure_inside_fails_the_step_outside_with_its_cause(shop: Workshop) -> None:
    await payment(shop)
    flow_id = await shop.api.start("payment", init={"order": 5})
    child_id = (await shop.fail("charge")).metadata["flow_id"]
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["error"]["code"]) == ("failed", "CHILD_FAILED")
    assert flow["error"]["flow_id"] == child_id
    assert "broken" in flow["error"]["message"]


async def test_a_goal_that_is_skipped_inside_gives_null(shop: Workshop) -> None:
    await shop.sync("charge", {"amount": takes(), "paid": gives()}, succeeded(paid=1), predicate="false")
    await shop.inner("payment", PARENT, MAPPING)
    flow = await shop.run("payment", init={"order": 1})
    assert (flow["status"], flow["outputs"]) == ("completed", {"receipt": None})


async def test_cancelling_goes_down_to_the_deepest_flow(shop: Workshop) -> None:
    await shop.waits("charge", {"amount": takes(), "paid": gives()}, cancel_url=shop.endpoint.url("/cancelled"))
    await shop.inner("payment", PARENT, MAPPING)
    flow_in_flow = {"goals": ["payment"], "inputs": {"order": "order"}, "outputs": {"end": "receipt"}}
    await shop.inner("outer", {"order": takes(), "end": gives()}, flow_in_flow)
    flow_id = await shop.api.start("outer", init={"order": 1})
    received = await shop.endpoint.received("/charge")
    (await shop.api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    await shop.endpoint.received("/cancelled")
    (await shop.api.complete(received, {"success": True, "outputs": {"paid": 1}})).refused(400, "WORK_CANCELLED")
    middle = await child_of(shop, flow_id, "outer")
    for each_id in (flow_id, middle, received.metadata["flow_id"]):
        assert (await shop.api.flow(each_id))["status"] == "cancelled"


async def test_cancelling_the_flow_inside_fails_the_step_outside(shop: Workshop) -> None:
    await payment(shop)
    flow_id = await shop.api.start("payment", init={"order": 1})
    child_id = (await shop.endpoint.received("/charge")).metadata["flow_id"]
    (await shop.api.post(f"/api/v1/flows/{child_id}/cancel")).ok()
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["error"]["code"]) == ("failed", "CHILD_CANCELLED")


async def test_a_flow_inside_that_cannot_be_planned_fails_its_step(shop: Workshop) -> None:
    await shop.sync("charge", {"amount": takes(), "more": takes(), "paid": gives()}, succeeded(paid=1))
    await shop.inner("payment", PARENT, MAPPING)
    await shop.inner("lost", PARENT, {**MAPPING, "goals": ["nobody"]})
    for step_id, code in (("payment", "UNREACHABLE_GOAL"), ("lost", "UNKNOWN_STEP")):
        flow = await shop.run(step_id, init={"order": 1})
        assert (flow["status"], flow["error"]["code"]) == ("failed", code)
        assert states(flow) == {step_id: "failed"}


async def test_flows_that_lie_in_themselves_end_at_the_deepest_that_is_allowed(shop: Workshop) -> None:
    await shop.inner("again", {}, {"goals": ["again"]})
    flow = await shop.run("again")
    assert (flow["status"], flow["error"]["code"]) == ("failed", "CHILD_FAILED")
    assert "FLOW_TOO_DEEP" in str(flow["error"])


async def test_values_that_grow_deeper_inside_are_bounded(shop: Workshop) -> None:
    """What a fan-out gathers is one level deeper, and goes from flow to flow through no door."""
    deep: Any = 1
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    await shop.sync("charge", {"amount": each(), "paid": gives()}, lambda _: {"paid": deep})
    await shop.inner("payment", {"order": each(), "receipt": gives()}, MAPPING)
    flow_in_flow = {"goals": ["payment"], "inputs": {"order": "order"}, "outputs": {"end": "receipt"}}
    await shop.inner("outer", {"order": takes(), "end": gives()}, flow_in_flow)
    flow = await shop.run("payment", init={"order": [[1]]})
    assert (flow["status"], flow["outputs"]) == ("completed", {"receipt": [[deep]]})
    flow = await shop.run("outer", init={"order": [[1]]})
    assert (flow["status"], flow["error"]["code"]) == ("failed", "INVALID_OUTPUT")
    assert "nested too deeply" in flow["error"]["message"]


@pytest.mark.parametrize("parallelism", [None, 1, 2])
async def test_a_fan_out_of_flows_gathers_what_they_give(shop: Workshop, parallelism: int | None) -> None:
    await shop.sync("charge", {"amount": takes(), "paid": gives()}, lambda given: {"paid": given["amount"] + 1})
    await shop.inner("payment", {"order": each(), "receipt": gives()}, MAPPING, fan_out={"parallelism": parallelism})
    flow = await shop.run("payment", init={"order": [1, 2, 3]})
    assert (flow["status"], flow["outputs"]) == ("completed", {"receipt": [2, 3, 4]})


@pytest.mark.parametrize("parallelism", [None, 1])
@pytest.mark.parametrize("wrong", [[0], [1], [2], [1, 2], [0, 1, 2]])
async def test_flows_that_cannot_begin_hold_up_none_of_the_others(
    shop: Workshop, wrong: list[int], parallelism: int | None
) -> None:
    await shop.sync("charge", {"amount": takes("number"), "paid": gives()}, lambda given: {"paid": given["amount"]})
    fan_out = {"parallelism": parallelism, "on_failure": "collect"}
    await shop.inner("payment", {"order": each(), "receipt": gives()}, MAPPING, fan_out=fan_out)
    flow = await shop.run("payment", init={"order": ["no number" if n in wrong else n for n in range(3)]})
    assert (flow["status"], flow["outputs"]) == (
        "completed",
        {"receipt": [None if n in wrong else n for n in range(3)]},
    )


@pytest.mark.parametrize("parallelism", [None, 1])
async def test_the_first_flow_that_cannot_begin_fails_a_fan_out_that_fails_fast(
    shop: Workshop, parallelism: int | None
) -> None:
    await shop.sync("charge", {"amount": takes("number"), "paid": gives()}, lambda given: {"paid": given["amount"]})
    await shop.inner("payment", {"order": each(), "receipt": gives()}, MAPPING, fan_out={"parallelism": parallelism})
    flow = await shop.run("payment", init={"order": [1, "no number", 3]})
    assert (flow["status"], flow["error"]["code"]) == ("failed", "INVALID_INPUT")
    assert sorted(set(items(flow, "payment")) - {"succeeded"}) == ["cancelled", "failed"]


async def test_a_flow_that_fails_cancels_the_flows_inside_it(shop: Workshop) -> None:
    await payment(shop)
    await shop.waits("other", {})
    flow_id = await shop.api.start("payment", "other", init={"order": 1})
    child_id = (await shop.endpoint.received("/charge")).metadata["flow_id"]
    await shop.fail("other")
    assert (await shop.end(flow_id))["status"] == "failed"
    assert (await shop.end(child_id))["status"] == "cancelled"


async def test_a_sync_failure_inside_ends_both(shop: Workshop) -> None:
    await shop.sync("charge", {"amount": takes(), "paid": gives()}, FAILS)
    await shop.inner("payment", PARENT, MAPPING)
    assert (await shop.run("payment", init={"order": 1}))["status"] == "failed"


@pytest.mark.postgresql_only
async def test_a_flow_inside_that_ends_on_another_node_ends_the_flow_outside(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    one, two = await start_nodes(start_node, 2, **SHORT_LEASE)
    shop = Workshop(connect(one), endpoint)
    await payment(shop)
    flow_id = await shop.api.start("payment", init={"order": 1})
    received = await endpoint.received("/charge")
    await shop.api.until_acknowledged(received.metadata["flow_id"])
    await one.stop()
    other = connect(two)
    await succeed(other, received, paid="elsewhere")
    assert (await other.final(flow_id))["outputs"] == {"receipt": "elsewhere"}


async def test_a_flow_inside_that_ends_after_the_node_of_the_flow_outside_was_killed(
    start_processes: Any, endpoint: StepEndpoint
) -> None:
    (engine, api), *others = await start_processes()
    shop = Workshop(api, endpoint)
    await payment(shop)
    flow_id = await shop.api.start("payment", init={"order": 1})
    received = await endpoint.received("/charge")
    await api.until_acknowledged(received.metadata["flow_id"])
    await engine.kill()
    if not others:
        await engine.start()
        others = [(engine, api)]
    survivor: Api = others[0][1]
    await succeed(survivor, received, paid="after the kill")
    final = await survivor.final(flow_id)
    assert (final["status"], final["outputs"]) == ("completed", {"receipt": "after the kill"})
