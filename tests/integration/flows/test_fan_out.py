"""Fan-out: one work item for each element, lists in the order of the input, and an end whatever their number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.integration.planned import FAILS, Workshop, each, gives, items, may_take, states, succeeded, takes
from tests.running import Connect, StartNode

DOUBLE = {"n": each("number"), "m": gives("number")}


def double(given: dict[str, Any]) -> dict[str, Any]:
    return {"m": given["n"] * 2}


@pytest.mark.parametrize("parallelism", [None, 1, 2, 10])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
async def test_each_output_is_a_list_in_the_order_of_the_input(
    shop: Workshop, count: int, parallelism: int | None
) -> None:
    await shop.sync("double", DOUBLE, double, fan_out={"parallelism": parallelism})
    await shop.sync("goal", {"m": takes("array")}, succeeded())
    flow = await shop.run("goal", init={"n": list(range(count))})
    assert flow["status"] == "completed"
    assert flow["outputs"] == {"m": [n * 2 for n in range(count)]}
    assert shop.calls("goal") == [{"m": [n * 2 for n in range(count)]}]
    assert states(flow) == {"double": "completed", "goal": "completed"}
    assert len(shop.calls("double")) == count
    assert [work["item"] for work in flow["steps"]["double"]["work"]] == list(range(count))


@pytest.mark.parametrize("where", ["goal", "middle", "from_a_step"])
async def test_a_fan_out_over_nothing_completes_at_once(shop: Workshop, where: str) -> None:
    await shop.sync("double", DOUBLE, double)
    await shop.sync("goal", {"m": takes("array"), "done": gives()}, succeeded(done=True))
    await shop.sync("source", {"n": gives("array")}, succeeded(n=[]))
    init: dict[str, Any] = {} if where == "from_a_step" else {"n": []}
    flow = await shop.run("double" if where == "goal" else "goal", init=init)
    assert flow["status"] == "completed"
    assert flow["outputs"]["m"] == []
    assert flow["steps"]["double"]["work"] == []


async def test_a_flow_of_nothing_but_empty_fan_outs_ends(shop: Workshop) -> None:
    for number in range(3):
        attributes = {f"v{number}": each(), f"v{number + 1}": gives("array")}
        await shop.sync(f"s{number}", attributes, succeeded())
    flow = await shop.run("s2", init={"v0": []})
    assert (flow["status"], flow["outputs"]) == ("completed", {"v1": [], "v2": [], "v3": []})


async def test_the_list_may_come_from_a_step_that_fans_out_itself(shop: Workshop) -> None:
    await shop.sync("double", DOUBLE, double)
    await shop.sync("text", {"m": each("number"), "t": gives()}, lambda given: {"t": str(given["m"])})
    flow = await shop.run("text", init={"n": [1, 2, 3]})
    assert flow["outputs"] == {"m": [2, 4, 6], "t": ["2", "4", "6"]}


async def test_outcomes_that_come_in_another_order_keep_their_places(shop: Workshop) -> None:
    await shop.waits("double", DOUBLE)
    flow_id = await shop.api.start("double", init={"n": [1, 2, 3]})
    await shop.endpoint.received("/double", 3)
    for received in sorted(shop.endpoint.requests("/double"), key=lambda call: -call.arguments["n"]):
        await shop.api.succeed(received, m=received.arguments["n"])
    assert (await shop.end(flow_id))["outputs"] == {"m": [1, 2, 3]}


async def test_product_takes_every_combination_the_last_attribute_changing_fastest(shop: Workshop) -> None:
    attributes = {"a": each(), "b": each(), "c": takes(), "ab": gives()}
    await shop.sync("pairs", attributes, lambda given: {"ab": f"{given['a']}{given['b']}{given['c']}"})
    flow = await shop.run("pairs", init={"a": ["x", "y"], "b": [1, 2, 3], "c": "!"})
    assert flow["outputs"]["ab"] == ["x1!", "x2!", "x3!", "y1!", "y2!", "y3!"]
    assert (await shop.run("pairs", init={"a": ["x", "y"], "b": [], "c": "!"}))["outputs"]["ab"] == []


async def test_zip_takes_the_elements_of_the_same_place(shop: Workshop) -> None:
    attributes = {"a": each(), "b": each(), "ab": gives()}
    await shop.sync("pairs", attributes, lambda given: {"ab": [given["a"], given["b"]]}, fan_out={"mode": "zip"})
    flow = await shop.run("pairs", init={"a": ["x", "y"], "b": [1, 2]})
    assert flow["outputs"]["ab"] == [["x", 1], ["y", 2]]
    assert (await shop.run("pairs", init={"a": [], "b": []}))["outputs"]["ab"] == []


async def test_zip_with_arrays_of_different_length_is_refused_or_fails_the_step(shop: Workshop) -> None:
    await shop.sync("pairs", {"a": each(), "b": each(), "ab": gives()}, succeeded(ab=1), fan_out={"mode": "zip"})
    start = {"goals": ["pairs"], "init": {"a": [1], "b": [1, 2]}}
    (await shop.api.post("/api/v1/flows", start)).refused(422, "INVALID_INPUT")
    (await shop.api.post("/api/v1/plan", start)).refused(422, "INVALID_INPUT")
    await shop.sync("source", {"b": gives("array")}, succeeded(b=[1, 2, 3]))
    flow = await shop.run("pairs", init={"a": [1]})
    assert (flow["status"], flow["error"]["code"]) == ("failed", "INVALID_INPUT")


async def test_too_many_items_are_refused_or_fail_the_step(shop: Workshop) -> None:
    await shop.sync("double", DOUBLE, double, fan_out={"max_items": 2})
    start = {"goals": ["double"], "init": {"n": [1, 2, 3]}}
    (await shop.api.post("/api/v1/flows", start)).refused(422, "INVALID_INPUT")
    assert (await shop.run("double", init={"n": [1, 2]}))["status"] == "completed"
    await shop.sync("source", {"n": gives("array")}, succeeded(n=[1, 2, 3]))
    flow = await shop.run("double")
    assert (flow["status"], flow["error"]["code"]) == ("failed", "INVALID_INPUT")
    assert flow["steps"]["double"]["work"] == []


async def test_a_setting_caps_what_a_step_may_ask_for(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    shop = Workshop(connect(await start_node(fan_out_limit=2)), endpoint)
    await shop.sync("double", DOUBLE, double, fan_out={"max_items": 100})
    start = {"goals": ["double"], "init": {"n": [1, 2, 3]}}
    (await shop.api.post("/api/v1/flows", start)).refused(422, "INVALID_INPUT")
    assert (await shop.run("double", init={"n": [1, 2]}))["outputs"] == {"m": [2, 4]}


async def test_what_is_no_array_cannot_be_fanned_out_over(shop: Workshop) -> None:
    await shop.sync("double", DOUBLE, double)
    await shop.sync("source", {"n": gives()}, succeeded(n="text"))
    (await shop.api.post("/api/v1/flows", {"goals": ["double"], "init": {"n": 1}})).refused(422, "INVALID_INPUT")
    assert (await shop.run("double"))["error"]["code"] == "INVALID_INPUT"


async def test_an_optional_array_falls_back_to_its_default(shop: Workshop) -> None:
    await shop.sync("double", {"n": may_take([7], for_each=True), "m": gives()}, double)
    assert (await shop.run("double"))["outputs"] == {"m": [14]}


@pytest.mark.parametrize("parallelism", [None, 1, 2])
async def test_collect_leaves_null_in_the_place_of_a_failed_item(shop: Workshop, parallelism: int | None) -> None:
    async def odd_ones_fail(received: Received) -> Answer:
        n = received.arguments["n"]
        return FAILS if n % 2 else succeeded(m=n)

    await shop.sync("double", DOUBLE, double, fan_out={"on_failure": "collect", "parallelism": parallelism})
    shop.endpoint.answer("/double", odd_ones_fail)
    flow = await shop.run("double", init={"n": [0, 1, 2, 3]})
    assert flow["status"] == "completed"
    assert flow["outputs"] == {"m": [0, None, 2, None]}
    assert items(flow, "double") == ["succeeded", "failed", "succeeded", "failed"]
    assert [bool(work["error"]) for work in flow["steps"]["double"]["work"]] == [False, True, False, True]


async def test_items_that_end_as_they_start_make_room_for_the_next_ones(shop: Workshop) -> None:
    """No sub-flow can start, so each item ends in the commit that starts the step, one after the other."""
    await shop.sync("find", {"names": gives("array")}, lambda _: {"names": ["a", "b", "c"]})
    await shop.sync("count", {"n": takes("number"), "counted": gives()}, lambda _: {"counted": 1})
    flow = {"goals": ["count"], "inputs": {"n": "names"}, "outputs": {"counts": "counted"}}
    fan_out = {"on_failure": "collect", "parallelism": 1}
    await shop.inner("each", {"names": each(), "counts": gives()}, flow, fan_out=fan_out)
    ended = await shop.run("each")
    assert (ended["status"], ended["outputs"]["counts"]) == ("completed", [None, None, None])
    assert items(ended, "each") == ["failed"] * 3


async def test_collect_completes_when_every_item_has_failed(shop: Workshop) -> None:
    await shop.sync("double", DOUBLE, FAILS, fan_out={"on_failure": "collect"})
    flow = await shop.run("double", init={"n": [1, 2]})
    assert (flow["status"], flow["outputs"]) == ("completed", {"m": [None, None]})


@pytest.mark.parametrize("parallelism", [None, 2])
async def test_fail_fast_cancels_the_other_items_and_refuses_their_late_results(
    shop: Workshop, parallelism: int | None
) -> None:
    fan_out = {"parallelism": parallelism}
    await shop.waits("double", DOUBLE, fan_out=fan_out, cancel_url=shop.endpoint.url("/cancelled"))
    flow_id = await shop.api.start("double", init={"n": [1, 2, 3]})
    await shop.endpoint.received("/double", parallelism or 3)
    late = await shop.endpoint.received("/double", 1)
    await shop.fail("double", 2)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["error"]["code"]) == ("failed", "STEP_FAILED")
    assert sorted(items(flow, "double")) == ["cancelled", "cancelled", "failed"]
    await shop.endpoint.received("/cancelled", (parallelism or 3) - 1)
    before = await shop.api.events(flow_id)
    for result in ({"success": True, "outputs": {"m": 1}}, {"success": False, "error": "x"}):
        details = (await shop.api.complete(late, result)).refused(400, "WORK_CANCELLED")
        assert details["status"] == "cancelled"
    assert await shop.api.flow(flow_id) == flow
    after = await shop.api.events(flow_id)
    assert [event for event in after if event not in before and not event["type"].startswith("cancel_")] == []


async def test_no_more_items_are_out_than_the_step_allows_in_one_flow(shop: Workshop) -> None:
    await shop.waits("double", DOUBLE, fan_out={"parallelism": 2})
    flows = [await shop.api.start("double", init={"n": [1, 2, 3, 4, 5]}) for _ in range(2)]
    for number in range(1, 11):
        received = await shop.endpoint.received("/double", number)
        out = dict.fromkeys(flows, 0)
        for flow_id in flows:
            statuses = items(await shop.api.flow(flow_id), "double")
            out[flow_id] = sum(status in ("active", "not_completed") for status in statuses)
        assert all(count <= 2 for count in out.values()), out
        await shop.api.succeed(received, m=received.arguments["n"])
    for flow_id in flows:
        assert (await shop.end(flow_id))["outputs"] == {"m": [1, 2, 3, 4, 5]}


async def test_an_item_that_is_tried_again_keeps_its_place_among_those_that_may_be_out(shop: Workshop) -> None:
    await shop.waits("double", DOUBLE, fan_out={"parallelism": 1}, work={"init_backoff_ms": 10})
    flow_id = await shop.api.start("double", init={"n": [1, 2]})
    first = await shop.endpoint.received("/double")
    (await shop.api.complete(first, {"success": False, "retriable": True})).ok()
    again = await shop.endpoint.received("/double", 2)
    assert (again.arguments, again.metadata["attempt"]) == ({"n": 1}, 2)
    await shop.api.succeed(again, m=1)
    await shop.report("double", 3, m=2)
    assert (await shop.end(flow_id))["outputs"] == {"m": [1, 2]}


async def test_items_have_keys_of_their_own_even_for_equal_elements(shop: Workshop) -> None:
    await shop.sync("double", DOUBLE, double)
    flow = await shop.run("double", init={"n": [7, 7]})
    keys = [work["idempotency_key"] for work in flow["steps"]["double"]["work"]]
    assert len(set(keys)) == 2
    assert flow["outputs"] == {"m": [14, 14]}


async def test_many_items_at_once_all_come_back(shop: Workshop) -> None:
    await shop.sync("double", DOUBLE, double, fan_out={"parallelism": 70})
    flow_id = await shop.api.start("double", init={"n": list(range(300))})
    flow = await asyncio.wait_for(shop.end(flow_id), 30)
    assert flow["outputs"]["m"] == [n * 2 for n in range(300)]


async def test_cancelling_a_flow_cancels_the_items_that_were_not_released_too(shop: Workshop) -> None:
    await shop.waits("double", DOUBLE, fan_out={"parallelism": 1})
    flow_id = await shop.api.start("double", init={"n": [1, 2, 3]})
    await shop.endpoint.received("/double")
    (await shop.api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    flow = await shop.end(flow_id)
    assert (flow["status"], items(flow, "double")) == ("cancelled", ["cancelled"] * 3)
    assert len(shop.calls("double")) == 1
