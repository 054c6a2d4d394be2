"""Work items with one key: one of them is sent, the others wait and take its result."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.replies import Reply
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered, connection_refused, timed_out
from tests.store.records import ENDPOINT, definition

DAY = 86_400_000


async def register(simulator: Simulator, policy: str = "dedupe", **fields: Any) -> None:
    effect = {"policy": policy, "scope": "global", **fields.pop("effect", {})}
    await simulator.engine.steps.put("charge", definition(effect=effect, **fields))


async def begin(simulator: Simulator, flow_id: str, **init: Any) -> str:
    """Start a flow; the id of its item."""
    await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=["charge"], init=init or {"order": 7}))
    return str((await simulator.engine.queries.flow(flow_id))["steps"]["charge"]["work"][-1]["work_id"])


async def look(simulator: Simulator, work_id: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(orjson.dumps(await simulator.engine.queries.work_item(work_id)))
    return document


async def journal(simulator: Simulator, flow_id: str) -> list[tuple[str, dict[str, Any]]]:
    page = orjson.loads(orjson.dumps(await simulator.engine.queries.events(flow_id)))
    return [(event["type"], event["data"]) for event in page["events"]]


async def result(simulator: Simulator, flow_id: str) -> tuple[str, dict[str, Any]]:
    found, _ = await simulator.engine.queries.result(flow_id, 0)
    document = orjson.loads(orjson.dumps(found))
    return document["status"], document["outputs"]


def sent(simulator: Simulator) -> int:
    return len([call for call in simulator.network.calls if call.url == ENDPOINT])


async def test_the_second_waits_and_takes_the_result_of_the_first(simulator: Simulator) -> None:
    await register(simulator)
    first, second = await begin(simulator, "a"), await begin(simulator, "b")
    assert sent(simulator) == 1
    waiting = await look(simulator, second)
    assert (waiting["status"], waiting["hold"], waiting["attempt"]) == ("pending", "dedup", 0)
    await simulator.engine.reports.complete(first, StepResult(success=True, outputs={"id": 1}))
    assert await simulator.sweep(SweepName.DEDUP) == 1
    assert await result(simulator, "b") == ("completed", {"id": 1})
    taken = await look(simulator, second)
    assert (taken["status"], taken["dedup_of"], taken["attempts"]) == ("succeeded", first, [])
    kinds = [kind for kind, _ in await journal(simulator, "b")]
    assert [kind for kind in kinds if kind.startswith("dedup")] == ["dedup_wait", "dedup_hit"]
    assert sent(simulator) == 1
    assert b"counterfoil_dedup_hits_total 1.0" in simulator.engine.metrics.render()[0]


async def test_a_recorded_result_is_reused_within_the_window(simulator: Simulator) -> None:
    await register(simulator)
    first = await begin(simulator, "a")
    await simulator.engine.reports.complete(first, StepResult(success=True, outputs={"id": 1}))
    simulator.clock.advance(DAY - 1)
    await begin(simulator, "b")
    assert await result(simulator, "b") == ("completed", {"id": 1})
    simulator.clock.advance(1)
    await begin(simulator, "c")
    assert sent(simulator) == 2
    assert (await result(simulator, "c"))[0] == "active"


async def test_a_result_is_forgotten_after_its_window(simulator: Simulator) -> None:
    await register(simulator, effect={"window": "90s"})
    first = await begin(simulator, "a")
    await simulator.engine.reports.complete(first, StepResult(success=True))
    assert await simulator.next_due(SweepName.FORGETTING) == simulator.clock() + 90_000
    assert await simulator.sweep(SweepName.FORGETTING) == 0
    simulator.clock.advance(90_000)
    assert await simulator.sweep(SweepName.FORGETTING) == 1
    assert await simulator.next_due(SweepName.FORGETTING) is None


async def test_a_failure_is_reused_like_a_success(simulator: Simulator) -> None:
    await register(simulator)
    first, second = await begin(simulator, "a"), await begin(simulator, "b")
    await simulator.engine.reports.complete(first, StepResult(success=False, error="declined"))
    await simulator.sweep(SweepName.DEDUP)
    taken = await look(simulator, second)
    assert (taken["status"], taken["error"]["message"], taken["dedup_of"]) == ("failed", "declined", first)
    third = await begin(simulator, "c")
    assert (await look(simulator, third))["status"] == "failed"
    assert sent(simulator) == 1


async def test_a_redrive_is_sent_whatever_the_window_holds(simulator: Simulator) -> None:
    await register(simulator)
    first = await begin(simulator, "a")
    await simulator.engine.reports.complete(first, StepResult(success=False, error="declined"))
    await simulator.engine.flows.redrive("a")
    assert sent(simulator) == 2
    again = simulator.network.calls[-1].metadata["work_id"]
    await simulator.engine.reports.complete(again, StepResult(success=True, outputs={"id": 2}))
    await begin(simulator, "b")
    assert await result(simulator, "b") == ("completed", {"id": 2})


async def review(simulator: Simulator) -> None:
    """Approve the only item that is held."""
    page = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    [approval] = page["approvals"]
    await simulator.engine.approvals.review(approval["approval_id"], "ann", "approve", None)
    await simulator.sweep(SweepName.REQUEUE)


async def test_a_redrive_that_was_never_sent_leaves_the_recorded_result(simulator: Simulator) -> None:
    await register(simulator, control={"approval": {}})
    first = await begin(simulator, "a")
    await review(simulator)
    await simulator.engine.reports.complete(first, StepResult(success=False, error="declined"))
    await simulator.engine.flows.redrive("a")
    waiting = await begin(simulator, "b")
    assert (await look(simulator, waiting))["hold"] == "dedup", "the redriven item has the key"
    await simulator.engine.flows.cancel("a")
    await simulator.sweep(SweepName.DEDUP)
    for work_id in (waiting, await begin(simulator, "c")):
        taken = await look(simulator, work_id)
        assert (taken["status"], taken["error"]["message"], taken["dedup_of"]) == ("failed", "declined", first)
    assert sent(simulator) == 1
    assert simulator.examine() == []


async def test_waiting_items_go_ahead_in_their_order_when_the_owner_is_cancelled_unsent(simulator: Simulator) -> None:
    await register(simulator, control={"approval": {}})
    items = [await begin(simulator, flow_id) for flow_id in "abcd"]
    page = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    assert [approval["flow_id"] for approval in page["approvals"]] == ["a"], "people are asked once"
    await simulator.engine.flows.cancel("a")
    await simulator.engine.flows.cancel("b")
    while await simulator.sweep(SweepName.DEDUP):
        pass
    await simulator.sweep(SweepName.REQUEUE)
    page = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    assert [approval["flow_id"] for approval in page["approvals"]] == ["c"]
    assert (await look(simulator, items[3]))["hold"] == "dedup"


async def test_a_rejection_is_no_result_of_the_others(simulator: Simulator) -> None:
    await register(simulator, control={"approval": {}})
    await begin(simulator, "a")
    second = await begin(simulator, "b")
    page = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
    await simulator.engine.approvals.review(page["approvals"][0]["approval_id"], "ann", "reject", "no")
    await simulator.sweep(SweepName.DEDUP)
    await simulator.sweep(SweepName.REQUEUE)
    assert (await look(simulator, second))["status"] == "held"


@pytest.mark.parametrize(("policy", "hold"), [("reconcile", "reconcile"), ("idempotent", None)])
async def test_an_owner_cancelled_after_delivery(simulator: Simulator, policy: str, hold: str | None) -> None:
    await register(simulator, policy)
    await begin(simulator, "a")
    second = await begin(simulator, "b")
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered())
    await simulator.engine.flows.cancel("a")
    await simulator.sweep(SweepName.DEDUP)
    await simulator.sweep(SweepName.REQUEUE)
    work = await look(simulator, second)
    assert work["hold"] == hold
    assert work["status"] == ("not_completed" if hold else "active")
    assert sent(simulator) == (1 if hold else 2)


async def took_over_an_unknown_outcome(simulator: Simulator) -> str:
    """An item that was never sent, in the queue because an equal one was cancelled after it was sent; its id."""
    await register(simulator, "reconcile")
    await begin(simulator, "a")
    second = await begin(simulator, "b")
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered())
    await simulator.engine.flows.cancel("a")
    await simulator.sweep(SweepName.DEDUP)
    return second


@pytest.mark.parametrize(("outcome", "status"), [("applied", "succeeded"), ("failed", "failed")])
async def test_an_outcome_that_was_taken_over_is_settled(simulator: Simulator, outcome: Any, status: str) -> None:
    second = await took_over_an_unknown_outcome(simulator)
    third = await begin(simulator, "c")
    told = await simulator.engine.reconciliations.settle(second, Settlement(outcome=outcome), "ann")
    assert told == {"work_id": second, "status": status}
    await simulator.sweep(SweepName.DEDUP)
    taken = await look(simulator, third)
    assert (taken["status"], taken["dedup_of"]) == (status, second)
    assert sent(simulator) == 1


async def test_an_outcome_that_was_taken_over_and_not_applied_is_sent(simulator: Simulator) -> None:
    second = await took_over_an_unknown_outcome(simulator)
    told = await simulator.engine.reconciliations.settle(second, Settlement(outcome="not_applied"), "ann")
    assert told == {"work_id": second, "status": "not_completed"}
    await simulator.sweep(SweepName.REQUEUE)
    assert sent(simulator) == 2


@pytest.mark.parametrize("policy", ["reconcile", "unsafe_once"])
async def test_an_owner_cancelled_before_it_was_sent_leaves_no_unknown_outcome(
    simulator: Simulator, policy: str
) -> None:
    await register(simulator, policy, control={"approval": {}})
    await begin(simulator, "a")
    second = await begin(simulator, "b")
    await simulator.engine.flows.cancel("a")
    await simulator.sweep(SweepName.DEDUP)
    await simulator.sweep(SweepName.REQUEUE)
    assert (await look(simulator, second))["status"] == "held"
    assert (await simulator.engine.effect_queries.reconciliations())["reconciliations"] == []


@pytest.mark.parametrize("reply", [connection_refused(), answered(503), answered(429)])
async def test_an_owner_cancelled_after_it_was_not_taken_leaves_no_unknown_outcome(
    simulator: Simulator, reply: Reply
) -> None:
    await register(simulator, "reconcile")
    await begin(simulator, "a")
    second = await begin(simulator, "b")
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], reply)
    await simulator.engine.flows.cancel("a")
    await simulator.sweep(SweepName.DEDUP)
    await simulator.sweep(SweepName.REQUEUE)
    assert (await look(simulator, second))["status"] == "active"
    assert sent(simulator) == 2


async def test_waiting_for_an_owner_in_the_reconciliation_queue(simulator: Simulator) -> None:
    await register(simulator, "reconcile")
    first, second = await begin(simulator, "a"), await begin(simulator, "b")
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], timed_out())
    assert (await look(simulator, second))["hold"] == "dedup"
    await simulator.engine.reports.complete(first, StepResult(success=True, outputs={"id": 1}))
    await simulator.sweep(SweepName.DEDUP)
    assert await result(simulator, "b") == ("completed", {"id": 1})


async def test_other_arguments_are_another_key(simulator: Simulator) -> None:
    await register(simulator, effect={"key": {"strip": ["reason"]}})
    await begin(simulator, "a", order=7, reason="broken")
    await begin(simulator, "b", order=8, reason="broken")
    await begin(simulator, "c", order=7, reason="was broken")
    assert sent(simulator) == 2


async def test_keys_given_by_callers_are_shared_by_flows(simulator: Simulator) -> None:
    await simulator.engine.steps.put("charge", definition(effect={"policy": "dedupe"}))
    keys = {"charge": "refund:order-7"}
    for flow_id in "ab":
        request = StartFlow(flow_id=flow_id, goals=["charge"], init={"flow": flow_id}, init_keys=keys)
        await simulator.engine.flows.start(request)
    assert [call.headers["Idempotency-Key"] for call in simulator.network.calls] == ["refund:order-7"]


async def test_many_wait_for_one(simulator: Simulator) -> None:
    await register(simulator)
    first = await begin(simulator, "f0")
    for number in range(1, 40):
        await begin(simulator, f"f{number}")
    await simulator.crash()
    await simulator.start()
    await simulator.engine.reports.complete(first, StepResult(success=True, outputs={"id": 1}))
    while await simulator.sweep(SweepName.DEDUP, limit=7):
        pass
    assert [await result(simulator, f"f{number}") for number in range(40)] == [("completed", {"id": 1})] * 40
    assert sent(simulator) == 1
