"""Redrive: a failed flow goes on from what failed, with new work and new receipts."""

from __future__ import annotations

from typing import Any

from counterfoil.testing import Answer, Received
from tests.integration.planned import FAILS, Workshop, each, gives, items, states, succeeded, takes


async def redrive(shop: Workshop, flow_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await shop.api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    assert (answer["flow_id"], answer["status"]) == (flow_id, "active")
    return answer


async def two_steps(shop: Workshop, *answers: Answer, **first: Any) -> None:
    await shop.sync("first", {"x": gives()}, succeeded(x=1), **first)
    await shop.sync("second", {"x": takes(), "y": gives()}, FAILS)
    shop.endpoint.answer("/second", *(answers or (FAILS, succeeded(y=2))))


async def test_a_flow_goes_on_from_what_failed_and_keeps_what_completed(shop: Workshop) -> None:
    await two_steps(shop)
    failed = await shop.run("second")
    assert failed["status"] == "failed"
    answer = await redrive(shop, failed["flow_id"])
    flow = await shop.end(failed["flow_id"])
    assert (flow["status"], flow["outputs"], flow["error"]) == ("completed", {"x": 1, "y": 2}, None)
    assert len(shop.calls("first")) == 1
    old, new = flow["steps"]["second"]["work"]
    assert (new["redrive_of"], answer["work"]) == (old["work_id"], [new["work_id"]])
    assert (old["status"], new["status"]) == ("failed", "succeeded")


async def test_only_failed_flows_can_be_redriven(shop: Workshop) -> None:
    await two_steps(shop, succeeded(y=1))
    flow = await shop.run("second")
    (await shop.api.post(f"/api/v1/flows/{flow['flow_id']}/redrive")).refused(409, "FLOW_NOT_FAILED")
    (await shop.api.post("/api/v1/flows/nobody/redrive")).refused(404, "UNKNOWN_FLOW")
    work_id = flow["steps"]["second"]["work"][0]["work_id"]
    (await shop.api.post(f"/api/v1/work/{work_id}/redrive")).refused(409, "WORK_NOT_FAILED")


async def test_a_flow_may_fail_and_be_redriven_again_and_again(shop: Workshop) -> None:
    await two_steps(shop, FAILS, FAILS, FAILS, succeeded(y=2))
    flow_id = (await shop.run("second"))["flow_id"]
    for _ in range(2):
        await redrive(shop, flow_id)
        assert (await shop.end(flow_id))["status"] == "failed"
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], items(flow, "second")) == ("completed", ["failed"] * 3 + ["succeeded"])


async def test_what_was_undone_is_done_again(shop: Workshop) -> None:
    await two_steps(shop, compensate=shop.undoing("first"))
    flow_id = (await shop.run("second"))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"x": 1, "y": 2})
    assert len(shop.calls("first")) == 2


async def test_what_could_not_be_undone_is_kept(shop: Workshop) -> None:
    await two_steps(shop, compensate=shop.undoing("first", FAILS))
    flow_id = (await shop.run("second"))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"x": 1, "y": 2})
    assert len(shop.calls("first")) == 1


async def test_a_flow_that_was_undone_and_redriven_is_undone_again(shop: Workshop) -> None:
    await two_steps(shop, FAILS, FAILS, compensate=shop.undoing("first"))
    flow_id = (await shop.run("second"))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["compensation"]) == ("failed", [{"step_id": "first", "status": "completed"}])
    assert len(shop.endpoint.requests("/undo-first")) == 2


async def test_items_that_succeeded_are_kept(shop: Workshop) -> None:
    seen: list[int] = []

    async def answer(received: Received) -> Answer:
        n = received.arguments["n"]
        seen.append(n)
        return FAILS if n == 2 and seen.count(2) == 1 else succeeded(m=n * 10)

    await shop.sync("each", {"n": each(), "m": gives()}, FAILS, fan_out={"parallelism": 1})
    shop.endpoint.answer("/each", answer)
    flow_id = (await shop.run("each", init={"n": [1, 2, 3]}))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"m": [10, 20, 30]})
    assert seen.count(1) == 1


async def test_items_of_another_element_are_not_kept(shop: Workshop) -> None:
    """What made the list was undone and makes another one now."""
    await shop.sync("make", {"n": gives("array")}, succeeded(n=[1, 2]), compensate=shop.undoing("make"))
    shop.endpoint.answer("/make", succeeded(n=[1, 2]), succeeded(n=[5, 6]))
    await shop.sync("each", {"n": each(), "m": gives()}, FAILS, fan_out={"parallelism": 1})
    shop.endpoint.answer("/each", succeeded(m="first"), FAILS, succeeded(m="again"))
    flow_id = (await shop.run("each"))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"n": [5, 6], "m": ["again", "again"]})
    assert [call["n"] for call in shop.calls("each")] == [1, 2, 5, 6]


async def test_a_shorter_list_takes_nothing_from_the_longer_one_before(shop: Workshop) -> None:
    await shop.sync("make", {"n": gives("array")}, succeeded(n=[1, 2, 3]), compensate=shop.undoing("make"))
    shop.endpoint.answer("/make", succeeded(n=[1, 2, 3]), succeeded(n=[7]))
    await shop.sync("each", {"n": each(), "m": gives()}, FAILS, fan_out={"parallelism": 1})
    shop.endpoint.answer("/each", succeeded(m="a"), succeeded(m="b"), FAILS, succeeded(m="again"))
    flow_id = (await shop.run("each"))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"n": [7], "m": ["again"]})


async def test_one_work_item_can_be_redriven(shop: Workshop) -> None:
    await two_steps(shop)
    failed = await shop.run("second")
    old = failed["steps"]["second"]["work"][0]["work_id"]
    answer = (await shop.api.post(f"/api/v1/work/{old}/redrive")).ok()
    assert answer["redrive_of"] == old
    flow = await shop.end(failed["flow_id"])
    assert (flow["status"], flow["steps"]["second"]["work"][1]["work_id"]) == ("completed", answer["work_id"])
    (await shop.api.post(f"/api/v1/work/{old}/redrive")).refused(409, "WORK_NOT_FAILED")


async def test_work_of_a_flow_that_goes_on_can_be_redriven(shop: Workshop) -> None:
    await shop.sync("a", {"x": gives()}, FAILS)
    shop.endpoint.answer("/a", FAILS, succeeded(x=1))
    await shop.waits("b", {"y": gives()})
    await shop.waits("goal", {}, wait_for={"any": 1, "of": ["a", "b"]})
    flow_id = await shop.api.start("goal")
    work = await shop.api.until_work(flow_id, "failed", "a")
    (await shop.api.post(f"/api/v1/work/{work['work_id']}/redrive")).ok()
    await shop.report("goal")
    flow = await shop.end(flow_id)
    assert flow["status"] == "completed"
    assert states(flow) == {"a": "completed", "b": "cancelled", "goal": "completed"}


async def test_failed_work_is_redriven_in_bulk_after_a_look(shop: Workshop) -> None:
    await two_steps(shop, FAILS)
    await shop.sync("other", {"z": gives()}, FAILS)
    flows = [(await shop.run("second", labels={"batch": "one"}))["flow_id"] for _ in range(3)]
    await shop.run("other")
    shop.endpoint.answer("/second", succeeded(y=2))
    request = {"filter": {"step_id": "second", "error_code": "STEP_FAILED", "label": "batch:one"}}
    look = (await shop.api.post("/api/v1/work/redrive", {**request, "dry_run": True})).ok()
    assert (look["matched"], look["redriven"], sorted(look["flows"])) == (3, 0, sorted(flows))
    for times, matched in (({"since": "2020-01-01T00:00:00Z"}, 3), ({"until": "2020-01-01T00:00:00Z"}, 0)):
        narrowed = {"filter": {**request["filter"], **times}, "dry_run": True}
        assert (await shop.api.post("/api/v1/work/redrive", narrowed)).ok()["matched"] == matched
    done = (await shop.api.post("/api/v1/work/redrive", request)).ok()
    assert (done["matched"], done["redriven"], sorted(done["flows"])) == (3, 3, sorted(flows))
    for flow_id in flows:
        assert (await shop.end(flow_id))["status"] == "completed"
    assert (await shop.api.post("/api/v1/work/redrive", {**request, "dry_run": True})).ok()["matched"] == 0
    assert len(shop.calls("other")) == 1


async def test_a_deadline_counts_anew(shop: Workshop) -> None:
    await shop.waits("job", {})
    flow_id = await shop.api.start("job", deadline_ms=100)
    assert (await shop.end(flow_id))["error"]["code"] == "DEADLINE_EXCEEDED"
    await redrive(shop, flow_id)
    assert (await shop.end(flow_id))["error"]["code"] == "DEADLINE_EXCEEDED"


async def test_a_flow_inside_is_begun_anew(shop: Workshop) -> None:
    await two_steps(shop)
    await shop.inner("outer", {"y": gives()}, {"goals": ["second"], "outputs": {"y": "y"}})
    flow_id = (await shop.run("outer"))["flow_id"]
    await redrive(shop, flow_id)
    flow = await shop.end(flow_id)
    assert (flow["status"], flow["outputs"]) == ("completed", {"y": 2})
