"""Why a step was skipped or cancelled: the flow shows what the journal has."""

from __future__ import annotations

from typing import Any

from tests.integration.planned import FAILS, Workshop, gives, states, succeeded, takes


def reasons(flow: dict[str, Any]) -> dict[str, str | None]:
    return {step_id: step["reason"] for step_id, step in flow["steps"].items()}


async def journalled(shop: Workshop, flow_id: str) -> dict[str, str | None]:
    """The last reason of each step by the journal."""
    events = (await shop.api.get(f"/api/v1/flows/{flow_id}/events", limit="1000")).ok()["events"]
    ends = ("step_skipped", "step_cancelled")
    return {event["step_id"]: event["data"]["reason"] for event in events if event["type"] in ends}


async def test_skipped_steps_say_why_and_others_say_nothing(shop: Workshop) -> None:
    large = "x" * 100_000  # what completes in the same entry of the journal does not matter, however long
    await shop.sync("first", {"x": gives()}, succeeded(x=large))
    await shop.sync("second", {"x": takes(), "y": gives()}, succeeded(y=1), predicate="false")
    await shop.sync("goal", {"y": takes()}, succeeded())
    flow = await shop.run("goal")
    assert states(flow) == {"first": "completed", "second": "skipped", "goal": "skipped"}
    assert reasons(flow)["first"] is None
    assert reasons(flow)["second"] == "its predicate is false"
    assert reasons(flow) == {"first": None, **await journalled(shop, flow["flow_id"])}


async def test_cancelled_steps_say_why_until_they_are_redriven(shop: Workshop) -> None:
    await shop.sync("first", {"x": gives()}, FAILS)
    await shop.sync("goal", {"x": takes()}, succeeded())
    shop.endpoint.answer("/first", FAILS, succeeded(x=1))
    flow = await shop.run("goal")
    assert states(flow) == {"first": "failed", "goal": "cancelled"}
    assert reasons(flow) == {"first": None, **await journalled(shop, flow["flow_id"])}
    assert reasons(flow)["goal"]
    (await shop.api.post(f"/api/v1/flows/{flow['flow_id']}/redrive")).ok()
    redriven = await shop.end(flow["flow_id"])
    assert states(redriven) == {"first": "completed", "goal": "completed"}
    assert reasons(redriven) == {"first": None, "goal": None}


async def test_the_steps_of_a_cancelled_flow_say_so(shop: Workshop) -> None:
    await shop.waits("first", {"x": gives()})
    await shop.sync("goal", {"x": takes()}, succeeded())
    flow_id = await shop.api.start("goal")
    await shop.endpoint.received("/first")
    assert reasons(await shop.api.flow(flow_id)) == {"first": None, "goal": None}
    (await shop.api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    flow = await shop.end(flow_id)
    assert reasons(flow) == dict.fromkeys(("first", "goal"), "the flow was cancelled")
