"""Waiting for some of several steps, and deadlines of flows."""

from __future__ import annotations

import pytest

from tests.integration.planned import Workshop, gives, items, states, succeeded, takes


async def racers(shop: Workshop, *names: str) -> None:
    for name in names:
        await shop.waits(name, {f"from_{name}": gives()})


async def test_the_first_to_complete_lets_the_step_go_and_the_rest_is_cancelled(shop: Workshop) -> None:
    await racers(shop, "a", "b", "c")
    await shop.sync("goal", {}, succeeded(), wait_for={"any": 1, "of": ["a", "b", "c"]})
    flow_id = await shop.api.start("goal")
    late = await shop.endpoint.received("/a")
    await shop.endpoint.received("/c")
    await shop.report("b", from_b=1)
    flow = await shop.end(flow_id)
    assert flow["status"] == "completed"
    assert states(flow) == {"a": "cancelled", "b": "completed", "c": "cancelled", "goal": "completed"}
    (await shop.api.complete(late, {"success": True, "outputs": {"from_a": 1}})).refused(400, "WORK_CANCELLED")


@pytest.mark.parametrize("wanted", [1, 2, 3])
async def test_so_many_of_them_must_complete(shop: Workshop, wanted: int) -> None:
    names = ["a", "b", "c"]
    await racers(shop, *names)
    await shop.sync("goal", {}, succeeded(), wait_for={"any": wanted, "of": names})
    flow_id = await shop.api.start("goal")
    for number, name in enumerate(names[:wanted]):
        assert (await shop.api.flow(flow_id))["steps"]["goal"]["status"] == "pending", number
        await shop.report(name, **{f"from_{name}": 1})
    flow = await shop.end(flow_id)
    assert (flow["status"], len(shop.calls("goal"))) == ("completed", 1)
    assert list(states(flow).values()).count("cancelled") == 3 - wanted


async def test_a_failure_is_borne_as_long_as_enough_can_complete(shop: Workshop) -> None:
    await racers(shop, "a", "b", "c")
    await shop.sync("goal", {}, succeeded(), wait_for={"any": 2, "of": ["a", "b", "c"]})
    flow_id = await shop.api.start("goal")
    await shop.fail("a")
    await shop.report("b", from_b=1)
    await shop.report("c", from_c=1)
    flow = await shop.end(flow_id)
    assert (flow["status"], states(flow)["a"]) == ("completed", "failed")


async def test_the_flow_fails_when_too_few_can_complete(shop: Workshop) -> None:
    await racers(shop, "a", "b", "c")
    await shop.sync("goal", {}, succeeded(), wait_for={"any": 2, "of": ["a", "b", "c"]})
    flow_id = await shop.api.start("goal")
    late = await shop.endpoint.received("/c")
    await shop.fail("a")
    await shop.fail("b")
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["error"]["code"]) == ("failed", "STEP_FAILED")
    (await shop.api.complete(late, {"success": True, "outputs": {"from_c": 1}})).refused(400, "WORK_CANCELLED")


async def test_if_all_that_it_waits_for_are_skipped_it_is_skipped(shop: Workshop) -> None:
    for name in ("a", "b"):
        await shop.sync(name, {}, succeeded(), predicate="false")
    await shop.sync("goal", {}, succeeded(), wait_for={"of": ["a", "b"]})
    flow = await shop.run("goal")
    assert (flow["status"], set(states(flow).values())) == ("completed", {"skipped"})


async def test_a_step_that_is_needed_elsewhere_is_not_cancelled(shop: Workshop) -> None:
    await racers(shop, "a", "b")
    await shop.sync("first", {}, succeeded(), wait_for={"of": ["a", "b"]})
    await shop.sync("goal", {"from_a": takes()}, succeeded())
    flow_id = await shop.api.start("first", "goal")
    await shop.report("b", from_b=1)
    await shop.endpoint.received("/first")
    await shop.report("a", from_a=2)
    flow = await shop.end(flow_id)
    assert (flow["status"], set(states(flow).values())) == ("completed", {"completed"})


async def test_a_deadline_fails_the_flow_or_cancels_it(shop: Workshop) -> None:
    await shop.waits("job", {"x": gives()}, cancel_url=shop.endpoint.url("/cancelled"))
    for number, (ending, status) in enumerate((("fail", "failed"), ("cancel", "cancelled")), start=1):
        flow_id = await shop.api.start("job", deadline_ms=150, on_deadline=ending)
        late = await shop.endpoint.received("/job", number)
        flow = await shop.end(flow_id)
        assert (flow["status"], items(flow, "job")) == (status, ["cancelled"])
        assert (flow["error"] or {}).get("code") == ("DEADLINE_EXCEEDED" if ending == "fail" else None)
        await shop.endpoint.received("/cancelled", number)
        (await shop.api.complete(late, {"success": True, "outputs": {"x": 1}})).refused(400, "WORK_CANCELLED")


async def test_a_deadline_goes_down_into_the_flows_inside(shop: Workshop) -> None:
    await shop.waits("job", {"x": gives()})
    await shop.inner("outer", {"x": gives()}, {"goals": ["job"], "outputs": {"x": "x"}})
    flow_id = await shop.api.start("outer", deadline_ms=150)
    child_id = (await shop.endpoint.received("/job")).metadata["flow_id"]
    assert (await shop.end(flow_id))["error"]["code"] == "DEADLINE_EXCEEDED"
    assert (await shop.end(child_id))["status"] == "cancelled"


async def test_a_flow_that_ends_in_time_is_not_touched_by_its_deadline(shop: Workshop) -> None:
    await shop.sync("job", {"x": gives()}, succeeded(x=1))
    flow = await shop.run("job", deadline_ms=60_000)
    assert (flow["status"], flow["deadline_at"]) == ("completed", None)
