"""Values between steps: passing on, checking, storing, waiting, and the first of several providers."""

from __future__ import annotations

import pytest

from counterfoil.testing import Answer
from tests.integration.planned import FAILS, Workshop, gives, may_take, states, succeeded, takes


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "\u2028 é", [], [[1], {"a": None}], {}, {"x": {"y": []}}])
async def test_any_json_value_reaches_the_next_step_as_it_is(shop: Workshop, value: object) -> None:
    await shop.sync("first", {"x": gives()}, succeeded(x=value))
    await shop.sync("goal", {"x": takes()}, succeeded())
    flow = await shop.run("goal")
    assert flow["outputs"] == {"x": value}
    assert shop.calls("goal") == [{"x": value}]


@pytest.mark.either_store
@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(
    ("attribute", "outputs"),
    [
        (gives("number"), {"x": "one"}),
        (gives("number"), {"x": True}),
        (gives("string"), {"x": None}),
        (gives("string"), {}),
        (gives("object", schema={"required": ["id"]}), {"x": {}}),
        (gives("array", schema={"items": {"type": "integer"}}), {"x": [1, "two"]}),
    ],
)
async def test_outputs_other_than_declared_are_recorded_and_fail_the_step(
    shop: Workshop, kind: str, attribute: dict[str, object], outputs: dict[str, object]
) -> None:
    if kind == "sync":
        await shop.sync("first", {"x": attribute}, Answer(body={"success": True, "outputs": outputs}))
        flow_id = await shop.api.start("first")
    else:
        await shop.waits("first", {"x": attribute})
        flow_id = await shop.api.start("first")
        received = await shop.endpoint.received("/first")
        answer = (await shop.api.complete(received, {"success": True, "outputs": outputs})).ok()
        assert (answer["verdict"], answer["status"]) == ("accepted", "failed")
    flow = await shop.end(flow_id)
    assert flow["status"] == "failed"
    assert (flow["error"]["code"], flow["error"]["attribute"]) == ("INVALID_OUTPUT", "x")
    assert flow["steps"]["first"]["work"][0]["outputs"] == outputs


async def test_inputs_are_checked_at_the_start_and_when_another_step_gives_them(shop: Workshop) -> None:
    await shop.sync("first", {"x": gives()}, succeeded(x="text"))
    await shop.sync("goal", {"x": takes("number", schema={"minimum": 3})}, succeeded())
    for wrong in ("text", 2):
        details = (await shop.api.post("/api/v1/flows", {"goals": ["goal"], "init": {"x": wrong}})).refused(
            422, "INVALID_INPUT"
        )
        assert details["errors"][0]["place"] == "init.x"
    flow = await shop.run("goal")
    assert (flow["status"], flow["error"]["code"], flow["error"]["step_id"]) == ("failed", "INVALID_INPUT", "goal")
    assert shop.calls("goal") == []


async def test_undeclared_outputs_stay_in_the_journal_and_are_not_passed_on(shop: Workshop) -> None:
    await shop.sync("first", {"x": gives()}, succeeded(x=1, secret=2))
    await shop.sync("goal", {"x": takes(), "secret": may_take("none")}, succeeded(more=3))
    flow = await shop.run("goal")
    assert flow["outputs"] == {"x": 1}
    assert shop.calls("goal") == [{"x": 1, "secret": "none"}]
    events = await shop.api.events(flow["flow_id"])
    kept = [event["data"]["result"]["outputs"] for event in events if event["type"] == "work_succeeded"]
    assert kept == [{"x": 1, "secret": 2}, {"more": 3}]


async def test_of_two_steps_that_give_a_value_the_first_outcome_wins(shop: Workshop) -> None:
    await shop.waits("one", {"x": gives(priority=5)})
    await shop.waits("two", {"x": gives()})
    await shop.sync("goal", {"x": takes(), "y": gives()}, lambda given: {"y": given["x"]})
    flow_id = await shop.api.start("one", "two", "goal")
    await shop.endpoint.received("/one")
    await shop.report("two", x="from two")
    await shop.endpoint.received("/goal")
    await shop.report("one", x="from one")
    flow = await shop.end(flow_id)
    assert flow["status"] == "completed"
    assert flow["outputs"] == {"x": "from two", "y": "from two"}
    assert shop.calls("goal") == [{"x": "from two"}]


async def test_if_one_of_two_providers_fails_the_other_one_serves(shop: Workshop) -> None:
    """One is there for another of its values: its failure does not take the flow along."""
    await shop.waits("one", {"x": gives(priority=5)})
    await shop.waits("two", {"x": gives(), "z": gives()})
    await shop.sync("pick", {"picked": gives()}, succeeded(picked=1), wait_for={"any": 1, "of": ["one", "two"]})
    await shop.sync("goal", {"x": takes(), "picked": takes()}, succeeded())
    flow_id = await shop.api.start("goal")
    await shop.fail("one")
    await shop.report("two", x=2, z=3)
    flow = await shop.end(flow_id)
    assert flow["status"] == "completed"
    assert states(flow) == {"one": "failed", "two": "completed", "pick": "completed", "goal": "completed"}
    assert shop.calls("goal") == [{"x": 2, "picked": 1}]


async def test_an_optional_value_is_waited_for_as_long_as_it_says(shop: Workshop) -> None:
    await shop.waits("zulu", {"x": gives()})
    await shop.waits("goal", {"x": may_take("default", timeout_ms=60_000)})
    flow_id = await shop.api.start("goal", "zulu")
    await shop.endpoint.received("/zulu")
    flow = await shop.api.flow(flow_id)
    assert states(flow)["goal"] == "pending"
    assert flow["steps"]["goal"]["waits_until"] is not None
    await shop.report("zulu", x="real")
    received = await shop.report("goal")
    assert received.arguments == {"x": "real"}
    assert (await shop.end(flow_id))["status"] == "completed"


async def test_the_default_is_taken_when_the_time_is_over(shop: Workshop) -> None:
    await shop.waits("slow", {"x": gives()})
    await shop.waits("goal", {"x": may_take("default", timeout_ms=150)})
    flow_id = await shop.api.start("goal", "slow")
    received = await shop.report("goal")
    assert received.arguments == {"x": "default"}
    await shop.report("slow", x="late")
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"x": "late"})


async def test_the_default_is_taken_at_once_when_the_value_cannot_come_any_more(shop: Workshop) -> None:
    await shop.sync("broken", {"x": gives()}, FAILS)
    await shop.sync("other", {"y": gives()}, succeeded(y=1), wait_for={"of": ["broken", "fine"]})
    await shop.sync("fine", {}, succeeded())
    await shop.sync("goal", {"x": may_take("default", timeout_ms=3_600_000), "y": takes()}, succeeded())
    flow = await shop.run("goal")
    assert flow["status"] == "completed"
    assert shop.calls("goal") == [{"x": "default", "y": 1}]


async def test_an_optional_value_without_a_time_is_not_waited_for(shop: Workshop) -> None:
    await shop.waits("slow", {"x": gives()})
    await shop.sync("goal", {"x": may_take("default")}, succeeded())
    flow_id = await shop.api.start("goal", "slow")
    await shop.endpoint.received("/goal")
    assert shop.calls("goal") == [{"x": "default"}]
    await shop.report("slow", x=1)
    assert (await shop.end(flow_id))["status"] == "completed"


async def test_a_step_without_attributes_takes_what_was_given_and_gives_everything(shop: Workshop) -> None:
    await shop.sync("plain", {}, lambda given: {"echo": given, "more": 1})
    flow = await shop.run("plain", init={"a": 1, "b": [2]})
    assert flow["outputs"] == {"echo": {"a": 1, "b": [2]}, "more": 1}


async def test_a_non_goal_step_that_finishes_last_ends_the_flow(shop: Workshop) -> None:
    """The goal took the default: no step needs the other step any more, but it has begun, and may finish."""
    await shop.waits("late", {"x": gives(), "z": gives()})
    await shop.waits("early", {"e": gives()})
    await shop.sync("choice", {"c": gives()}, succeeded(c=1), wait_for={"any": 1, "of": ["early"]})
    await shop.sync("goal", {"x": may_take(0), "c": takes()}, succeeded())
    await shop.sync("side", {"z": takes()}, succeeded(), predicate="false")
    flow_id = await shop.api.start("goal", "side")
    late = await shop.endpoint.received("/late")
    await shop.report("early", e=1)
    await shop.endpoint.received("/goal")
    assert (await shop.api.flow(flow_id))["status"] == "active"
    await shop.api.succeed(late, x=1, z=2)
    flow = await shop.end(flow_id)
    assert flow["status"] == "completed"
    assert states(flow)["late"] == "completed"
    assert states(flow)["side"] == "skipped"
