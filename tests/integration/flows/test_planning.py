"""Flows are planned from their goals, and the plan can be seen before and after."""

from __future__ import annotations

from typing import Any

from tests.integration.planned import Workshop, gives, may_take, states, succeeded, takes


async def preview(shop: Workshop, *goals: str, **fields: Any) -> dict[str, Any]:
    plan: dict[str, Any] = (await shop.api.post("/api/v1/plan", {"goals": list(goals), **fields})).ok()
    return plan


async def diamond(shop: Workshop) -> None:
    await shop.sync("top", {"n": takes("number"), "a": gives()}, lambda given: {"a": given["n"] + 1})
    await shop.sync("left", {"a": takes(), "l": gives()}, lambda given: {"l": given["a"] * 2})
    await shop.sync("right", {"a": takes(), "r": gives()}, lambda given: {"r": given["a"] * 3})
    await shop.sync("sum", {"l": takes(), "r": takes(), "s": gives()}, lambda given: {"s": given["l"] + given["r"]})
    await shop.sync("stranger", {"a": takes(), "z": gives()}, succeeded(z=0))


async def test_a_goal_pulls_in_the_steps_that_it_needs_and_no_others(shop: Workshop) -> None:
    await diamond(shop)
    flow = await shop.run("sum", init={"n": 1})
    assert flow["status"] == "completed"
    assert flow["outputs"] == {"a": 2, "l": 4, "r": 6, "s": 10}
    assert states(flow) == dict.fromkeys(("top", "left", "right", "sum"), "completed")
    assert shop.calls("sum") == [{"l": 4, "r": 6}]
    assert shop.calls("stranger") == []


async def test_the_preview_is_the_plan_of_the_flow_and_starts_nothing(shop: Workshop) -> None:
    await diamond(shop)
    plan = await preview(shop, "sum", init={"n": 1})
    assert plan["goals"] == ["sum"]
    assert plan["steps"] == ["top", "left", "right", "sum"]
    assert plan["inputs"] == {"n": "init", "a": "top", "l": "left", "r": "right"}
    assert set(plan["included"]) == set(plan["steps"])
    assert plan["excluded"] == {}
    assert (await shop.api.get("/api/v1/flows")).ok()["flows"] == []
    assert shop.calls("top") == []
    started = (await shop.api.post("/api/v1/flows", {"goals": ["sum"], "init": {"n": 1}})).ok(201)
    assert started["plan"]["steps"] == plan["steps"]
    assert (await shop.end(started["flow_id"]))["plan"] == plan


async def test_what_is_given_need_not_be_made(shop: Workshop) -> None:
    await diamond(shop)
    flow = await shop.run("sum", init={"a": 10, "l": 1})
    assert states(flow) == {"right": "completed", "sum": "completed"}
    assert flow["outputs"] == {"r": 30, "s": 31}
    assert "init" in flow["plan"]["excluded"]["top"]
    assert "init" in flow["plan"]["excluded"]["left"]


async def test_the_preferred_provider_is_planned_and_the_other_is_told_why_not(shop: Workshop) -> None:
    await shop.sync("cheap", {"x": gives(priority=1)}, succeeded(x="cheap"))
    await shop.sync("dear", {"x": gives(priority=2)}, succeeded(x="dear"))
    await shop.sync("goal", {"x": takes()}, succeeded())
    flow = await shop.run("goal")
    assert flow["outputs"] == {"x": "dear"}
    assert set(flow["plan"]["excluded"]) == {"cheap"}
    assert "priority 2" in flow["plan"]["excluded"]["cheap"]


async def test_a_provider_that_cannot_run_is_passed_over(shop: Workshop) -> None:
    await shop.sync("best", {"nowhere": takes(), "x": gives(priority=9)}, succeeded(x=1))
    await shop.sync("other", {"x": gives()}, succeeded(x=2))
    await shop.sync("goal", {"x": takes()}, succeeded())
    assert (await shop.run("goal"))["outputs"] == {"x": 2}


async def test_what_is_missing_is_told_also_further_up_the_chain(shop: Workshop) -> None:
    await shop.sync("first", {"seed": takes(), "x": gives()}, succeeded(x=1))
    await shop.sync("goal", {"x": takes()}, succeeded())
    for path in ("/api/v1/plan", "/api/v1/flows"):
        details = (await shop.api.post(path, {"goals": ["goal"]})).refused(422, "UNREACHABLE_GOAL")
        assert details["missing"][0] == {"step_id": "first", "attribute": "seed", "could_be_provided_by": []}
        assert {"step_id": "goal", "attribute": "x", "could_be_provided_by": ["first"]} in details["missing"]
    assert (await shop.api.get("/api/v1/flows")).ok()["flows"] == []


async def test_a_circle_is_refused_with_its_steps(shop: Workshop) -> None:
    await shop.sync("hen", {"egg": takes(), "hen": gives()}, succeeded(hen=1))
    await shop.sync("egg", {"hen": takes(), "egg": gives()}, succeeded(egg=1))
    details = (await shop.api.post("/api/v1/plan", {"goals": ["hen"]})).refused(422, "PLAN_CYCLE")
    assert details["steps"] == ["egg", "hen"]
    assert (await shop.run("hen", init={"egg": 0}))["status"] == "completed"


async def test_unknown_goals_are_refused_in_the_preview_too(shop: Workshop) -> None:
    (await shop.api.post("/api/v1/plan", {"goals": ["nobody"]})).refused(404, "UNKNOWN_STEP")
    (await shop.api.post("/api/v1/plan", {"goals": []})).refused(422, "INVALID_INPUT")


async def test_a_flow_keeps_the_steps_that_it_was_planned_with(shop: Workshop) -> None:
    await shop.waits("first", {"x": gives()})
    await shop.sync("goal", {"x": takes(), "y": gives()}, succeeded(y="old"))
    flow_id = await shop.api.start("goal")
    await shop.endpoint.received("/first")
    await shop.sync("goal2", {"x": takes(), "y": gives()}, succeeded(y="new"))
    await shop.api.put_step("goal", shop.endpoint.url("/goal2"), kind="sync", attributes={"x": takes(), "y": gives()})
    await shop.report("first", x=1)
    assert (await shop.end(flow_id))["outputs"] == {"x": 1, "y": "old"}


async def test_optional_inputs_pull_in_no_step(shop: Workshop) -> None:
    await shop.sync("helper", {"x": gives()}, succeeded(x=1))
    await shop.sync("goal", {"x": may_take("default")}, succeeded())
    flow = await shop.run("goal")
    assert states(flow) == {"goal": "completed"}
    assert shop.calls("goal") == [{"x": "default"}]


async def test_a_flow_shows_its_plan_parent_and_compensation(shop: Workshop) -> None:
    await diamond(shop)
    await shop.waits("last", {"l": takes()})
    flow_id = await shop.api.start("last", init={"n": 1}, deadline_ms=60_000)
    received = await shop.endpoint.received("/last")
    flow = await shop.api.flow(flow_id)
    assert {"goals", "steps", "inputs", "included", "excluded"} <= set(flow["plan"])
    assert flow["plan"]["takes"]["last"] == {"l": ["left"]}
    assert (flow["parent"], flow["compensation"]) == (None, [])
    assert flow["deadline_at"] is not None
    assert {"status", "work"} <= set(flow["steps"]["left"])
    await shop.api.succeed(received)
    assert (await shop.end(flow_id))["deadline_at"] is None, "no clock runs any more"
