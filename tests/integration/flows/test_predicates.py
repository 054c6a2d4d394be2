"""Predicates: a step, an item or a goal whose predicate is false is skipped, and the flow ends all the same."""

from __future__ import annotations

import pytest

from tests.integration.planned import Workshop, each, gives, items, may_take, states, succeeded, takes


@pytest.mark.parametrize(("amount", "called"), [(101, 1), (100, 0)])
async def test_a_goal_whose_predicate_is_false_is_skipped_and_the_flow_completes(
    shop: Workshop, amount: int, called: int
) -> None:
    await shop.sync(
        "pay", {"amount": takes("number"), "paid": gives()}, succeeded(paid=True), predicate="inputs.amount > 100"
    )
    flow = await shop.run("pay", init={"amount": amount})
    assert flow["status"] == "completed"
    assert states(flow) == {"pay": "completed" if called else "skipped"}
    assert flow["outputs"] == ({"paid": True} if called else {})
    assert len(shop.calls("pay")) == called


async def test_steps_that_needed_the_outputs_of_a_skipped_step_are_skipped_too(shop: Workshop) -> None:
    await shop.sync("first", {"x": gives()}, succeeded(x=1))
    await shop.sync("second", {"x": takes(), "y": gives()}, succeeded(y=1), predicate="inputs.x > 1")
    await shop.sync("third", {"y": takes(), "z": gives()}, succeeded(z=1))
    await shop.sync("goal", {"z": takes()}, succeeded())
    flow = await shop.run("goal")
    assert flow["status"] == "completed"
    assert states(flow) == {"first": "completed", "second": "skipped", "third": "skipped", "goal": "skipped"}
    assert shop.calls("second") == []


async def test_a_skipped_provider_of_an_optional_value_means_the_default_at_once(shop: Workshop) -> None:
    await shop.sync("first", {"x": gives()}, succeeded(x=1), predicate="false")
    await shop.sync("goal", {"x": may_take("default", timeout_ms=3_600_000)}, succeeded())
    flow = await shop.run("first", "goal")
    assert states(flow) == {"first": "skipped", "goal": "completed"}
    assert shop.calls("goal") == [{"x": "default"}]


async def test_an_item_whose_predicate_is_false_is_not_called_and_its_place_is_null(shop: Workshop) -> None:
    await shop.sync(
        "odd",
        {"n": each("number"), "m": gives()},
        lambda given: {"m": given["n"] * 10},
        predicate="int(inputs.n) % 2 == 1",
    )
    await shop.sync("goal", {"m": takes("array")}, succeeded())
    flow = await shop.run("goal", init={"n": [1, 2, 3, 4]})
    assert flow["status"] == "completed"
    assert flow["outputs"]["m"] == [10, None, 30, None]
    assert items(flow, "odd") == ["succeeded", "cancelled", "succeeded", "cancelled"]
    assert sorted(call["n"] for call in shop.calls("odd")) == [1, 3]


@pytest.mark.parametrize("parallelism", [None, 1])
async def test_a_fan_out_of_which_no_item_is_wanted_completes(shop: Workshop, parallelism: int | None) -> None:
    await shop.sync(
        "none", {"n": each(), "m": gives()}, succeeded(m=1), predicate="false", fan_out={"parallelism": parallelism}
    )
    flow = await shop.run("none", init={"n": [1, 2]})
    assert (flow["status"], flow["outputs"], states(flow)) == ("completed", {"m": [None, None]}, {"none": "completed"})


@pytest.mark.parametrize("wanted", [[3], [1, 2], [1, 3], [2]])
async def test_items_that_are_not_wanted_hold_up_none_of_the_others(shop: Workshop, wanted: list[int]) -> None:
    await shop.sync(
        "some",
        {"n": each(), "m": gives()},
        lambda given: {"m": given["n"]},
        predicate=f"inputs.n in {wanted}",
        fan_out={"parallelism": 1},
    )
    flow = await shop.run("some", init={"n": [1, 2, 3]})
    assert flow["status"] == "completed"
    assert flow["outputs"]["m"] == [n if n in wanted else None for n in (1, 2, 3)]


async def test_a_predicate_that_cannot_be_evaluated_fails_its_step(shop: Workshop) -> None:
    await shop.sync("goal", {"x": takes()}, succeeded(), predicate="inputs.x.deep.down > 1")
    flow = await shop.run("goal", init={"x": {}})
    assert (flow["status"], flow["error"]["code"]) == ("failed", "PREDICATE_FAILED")


@pytest.mark.either_store
@pytest.mark.parametrize("predicate", ["inputs.x >", "nobody > 1", "inputs.unknown > 1", "1 +"])
async def test_a_predicate_that_makes_no_sense_is_refused_when_it_is_registered(shop: Workshop, predicate: str) -> None:
    definition = {"endpoint": "http://worker/x", "attributes": {"x": takes("number")}, "predicate": predicate}
    reply = await shop.api.request("PUT", "/api/v1/steps/s", json=definition)
    reply.refused(422, "INVALID_STEP")
