"""Compensation: what a failed flow did is undone, the last first; and every way in which that can go wrong ends."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import Answer
from tests.integration.planned import FAILS, Workshop, each, gives, states, succeeded, takes


async def chain(shop: Workshop, *answers: Answer, **undo: Any) -> None:
    """book, then pay, then a goal whose result the test reports; the first two can be undone."""
    attributes: dict[str, Any] = {"who": takes(), "booking": gives()}
    await shop.sync("book", attributes, succeeded(booking="b1", extra=1), compensate=shop.undoing("book"))
    attributes = {"booking": takes(), "payment": gives()}
    await shop.sync("pay", attributes, succeeded(payment="p1"), compensate=shop.undoing("pay", *answers, **undo))
    await shop.waits("ship", {"payment": takes(), "shipped": gives()})


async def started(shop: Workshop, **fields: Any) -> str:
    before = len(shop.endpoint.requests("/ship"))
    flow_id = await shop.api.start("ship", init={"who": "me"}, **fields)
    await shop.endpoint.received("/ship", before + 1)
    return flow_id


def undone(flow: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry["step_id"], entry["status"]) for entry in flow["compensation"]]


async def cancel(shop: Workshop, flow_id: str, body: Any = None) -> dict[str, Any]:
    flow: dict[str, Any] = (await shop.api.post(f"/api/v1/flows/{flow_id}/cancel", body)).ok()
    return flow


async def test_completed_steps_are_undone_the_last_first_with_what_they_took_and_gave(shop: Workshop) -> None:
    await chain(shop)
    flow_id = await started(shop)
    await shop.fail("ship")
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["error"]["step_id"]) == ("failed", "ship")
    assert undone(flow) == [("pay", "completed"), ("book", "completed")]
    calls = [call for call in shop.endpoint.all_requests() if call.path.startswith("/undo")]
    assert [call.path for call in calls] == ["/undo-pay", "/undo-book"]
    assert [call.body["arguments"] for call in calls] == [{"booking": "b1"}, {"who": "me"}]
    assert [call.body["outputs"] for call in calls] == [{"payment": "p1"}, {"booking": "b1", "extra": 1}]
    assert all(call.metadata["compensating"] is True for call in calls)
    done = [work["idempotency_key"] for step in flow["steps"].values() for work in step["work"]]
    assert len(set(done)) == len(done)
    assert states(flow) == {"book": "completed", "pay": "completed", "ship": "failed"}


async def test_undoing_is_tried_again_like_any_work(shop: Workshop) -> None:
    work = {"max_retries": 3, "init_backoff_ms": 10}
    await chain(shop, Answer(503), Answer(503), succeeded(), work=work)
    flow_id = await started(shop)
    await shop.fail("ship")
    assert undone(await shop.end(flow_id)) == [("pay", "completed"), ("book", "completed")]
    attempts = [call.metadata["attempt"] for call in shop.endpoint.requests("/undo-pay")]
    assert attempts == [1, 2, 3]


async def test_what_cannot_be_undone_is_shown_and_the_rest_is_undone_all_the_same(shop: Workshop) -> None:
    await chain(shop, FAILS)
    flow_id = await started(shop)
    await shop.fail("ship")
    flow = await shop.end(flow_id)
    assert flow["status"] == "failed"
    assert undone(flow) == [("pay", "failed"), ("book", "completed")]
    assert flow["error"]["step_id"] == "ship", "why the flow failed stays what it was"


async def test_async_undoing_has_a_receipt_of_its_own(shop: Workshop) -> None:
    await chain(shop, kind="async")
    flow_id = await started(shop)
    ship = await shop.fail("ship")
    undo = await shop.endpoint.received("/undo-pay")
    assert undo.token != ship.token
    flow = await shop.api.flow(flow_id)
    assert flow["status"] == "compensating"
    assert undone(flow) == [("pay", "active"), ("book", "pending")]
    assert (await shop.api.get(f"/api/v1/flows/{flow_id}/result")).status == 202
    await shop.api.succeed(undo)
    flow = await shop.end(flow_id)
    assert (flow["status"], undone(flow)) == ("failed", [("pay", "completed"), ("book", "completed")])
    (await shop.api.complete(undo, {"success": True})).refused(400, "ALREADY_SUCCEEDED")


async def test_a_start_may_say_that_nothing_is_to_be_undone(shop: Workshop) -> None:
    await chain(shop)
    flow_id = await started(shop, compensate=False)
    await shop.fail("ship")
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["compensation"]) == ("failed", [])
    assert shop.endpoint.requests("/undo-pay") == []


async def test_cancel_undoes_only_if_it_is_told_to(shop: Workshop) -> None:
    await chain(shop)
    plain = await started(shop)
    assert (await cancel(shop, plain))["status"] == "cancelled"
    assert shop.endpoint.requests("/undo-pay") == []
    undoing = await started(shop)
    assert (await cancel(shop, undoing, {"compensate": True}))["status"] in ("compensating", "cancelled")
    flow = await shop.end(undoing)
    assert (flow["status"], undone(flow)) == ("cancelled", [("pay", "completed"), ("book", "completed")])


@pytest.mark.parametrize("again", [None, {"compensate": False}])
async def test_cancel_during_compensation_gives_it_up(shop: Workshop, again: Any) -> None:
    await chain(shop, kind="async")
    flow_id = await started(shop)
    await shop.fail("ship")
    undo = await shop.endpoint.received("/undo-pay")
    assert (await cancel(shop, flow_id, again))["status"] == "cancelled"
    flow = await shop.end(flow_id)
    assert flow["status"] == "cancelled"
    (await shop.api.complete(undo, {"success": True})).refused(400, "WORK_CANCELLED")
    assert shop.endpoint.requests("/undo-book") == []
    assert all(status not in ("active", "pending") for _, status in undone(flow)), undone(flow)


async def test_cancel_with_compensate_during_compensation_lets_it_go_on(shop: Workshop) -> None:
    await chain(shop, kind="async")
    flow_id = await started(shop)
    await shop.fail("ship")
    undo = await shop.endpoint.received("/undo-pay")
    assert (await cancel(shop, flow_id, {"compensate": True}))["status"] == "compensating"
    await shop.api.succeed(undo)
    flow = await shop.end(flow_id)
    assert undone(flow) == [("pay", "completed"), ("book", "completed")]


async def test_late_results_while_a_flow_is_being_undone_change_nothing(shop: Workshop) -> None:
    await chain(shop, kind="async")
    await shop.waits("side", {"payment": takes()})
    flow_id = await shop.api.start("ship", "side", init={"who": "me"})
    late = await shop.endpoint.received("/side")
    await shop.fail("ship")
    undo = await shop.endpoint.received("/undo-pay")
    (await shop.api.complete(late, {"success": True})).refused(400, "WORK_CANCELLED")
    await shop.api.succeed(undo)
    flow = await shop.end(flow_id)
    assert (flow["status"], states(flow)["side"]) == ("failed", "cancelled")


async def test_each_item_of_a_fan_out_is_undone(shop: Workshop) -> None:
    attributes = {"n": each(), "m": gives()}
    await shop.sync("make", attributes, lambda given: {"m": given["n"]}, compensate=shop.undoing("make"))
    await shop.sync("goal", {"m": takes()}, FAILS)
    flow = await shop.run("goal", init={"n": [1, 2, 3]})
    assert (flow["status"], undone(flow)) == ("failed", [("make", "completed")])
    assert sorted(call.body["outputs"]["m"] for call in shop.endpoint.requests("/undo-make")) == [1, 2, 3]


async def test_a_flow_inside_that_failed_is_undone_before_the_flow_outside(shop: Workshop) -> None:
    await chain(shop, kind="async")
    await shop.sync("outside", {"who": gives()}, succeeded(who="me"), compensate=shop.undoing("outside"))
    inner = {"goals": ["ship"], "inputs": {"who": "who"}, "outputs": {"end": "shipped"}}
    await shop.inner("trip", {"who": takes(), "end": gives()}, inner)
    flow_id = await shop.api.start("trip")
    await shop.fail("ship")
    undo = await shop.endpoint.received("/undo-pay")
    assert (await shop.api.flow(flow_id))["status"] == "active"
    await shop.api.succeed(undo)
    assert undone(await shop.end(flow_id)) == [("outside", "completed")]
    order = [call.path for call in shop.endpoint.all_requests() if call.path.startswith("/undo")]
    assert order == ["/undo-pay", "/undo-book", "/undo-outside"]


async def test_a_flow_inside_goes_on_undoing_when_the_flow_outside_fails(shop: Workshop) -> None:
    await chain(shop, kind="async")
    inner = {"goals": ["ship"], "inputs": {"who": "who"}, "outputs": {"end": "shipped"}}
    await shop.inner("trip", {"who": takes(), "end": gives()}, inner)
    await shop.waits("other", {})
    flow_id = await shop.api.start("trip", "other", init={"who": "me"})
    child_id = (await shop.fail("ship")).metadata["flow_id"]
    undo = await shop.endpoint.received("/undo-pay")
    await shop.fail("other")
    assert (await shop.end(flow_id))["status"] == "failed"
    await shop.api.succeed(undo)
    child = await shop.end(child_id)
    assert undone(child) == [("pay", "completed"), ("book", "completed")]


async def test_a_deadline_does_not_stop_the_undoing(shop: Workshop) -> None:
    await chain(shop, kind="async")
    flow_id = await started(shop, deadline_ms=300)
    undo = await shop.endpoint.received("/undo-pay")
    await shop.api.succeed(undo)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["error"]["code"]) == ("failed", "DEADLINE_EXCEEDED")
    assert undone(flow) == [("pay", "completed"), ("book", "completed")]


async def test_what_succeeded_of_a_step_that_failed_is_undone_too(shop: Workshop) -> None:
    """Of a fan-out that fails half way, the other half has happened."""

    async def answer(received: Any) -> Answer:
        return FAILS if received.arguments["seat"] == 3 else succeeded(booking=received.arguments["seat"])

    await shop.put(
        "book",
        kind="sync",
        attributes={"seat": each(), "booking": gives()},
        fan_out={"parallelism": 1},
        compensate=shop.undoing("book"),
    )
    shop.endpoint.answer("/book", answer)
    flow = await shop.run("book", init={"seat": [1, 2, 3, 4]})
    assert (flow["status"], undone(flow)) == ("failed", [("book", "completed")])
    assert sorted(call["seat"] for call in shop.calls("undo-book")) == [1, 2]
    again = (await shop.api.post(f"/api/v1/flows/{flow['flow_id']}/redrive")).ok()
    assert len(again["work"]) == 4, "what was undone must be done anew"
    await shop.end(flow["flow_id"])


async def test_a_step_that_failed_before_it_did_anything_is_not_undone(shop: Workshop) -> None:
    await shop.sync("book", {"seat": each(), "booking": gives()}, FAILS, compensate=shop.undoing("book"))
    flow = await shop.run("book", init={"seat": [1, 2]})
    assert (flow["status"], undone(flow), shop.calls("undo-book")) == ("failed", [], [])
