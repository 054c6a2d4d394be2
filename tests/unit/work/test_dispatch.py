"""Dispatch: what is sent, what each answer means for the attempt, and that no answer is lost or counts twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.replies import Reply
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.subscriptions.messages import USER_AGENT
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.engine.work.dispatch import traceparent
from counterfoil.testing.simulator import Call, Simulator, answered, connection_refused, timed_out
from tests.by_hand import full_disk, stubborn_work
from tests.eventually import eventually
from tests.store.records import ENDPOINT, definition, work_item


async def sent(simulator: Simulator, init: dict[str, Any] | None = None, **fields: Any) -> Call:
    await simulator.engine.steps.put("step", definition(**fields))
    metadata = {"tenant": "t1", "flow_id": "forged", "webhook_url": "forged"}
    request = StartFlow(flow_id="flow", goals=["step"], init=init or {}, metadata=metadata)
    await simulator.engine.flows.start(request)
    [call] = simulator.network.waiting()
    return call


async def work(simulator: Simulator) -> dict[str, Any]:
    document = await simulator.engine.queries.flow("flow")
    item = document["steps"]["step"]["work"][0]
    return {**await simulator.engine.queries.work_item(item["work_id"])}


async def events(simulator: Simulator) -> list[str]:
    rows = await simulator.store.read("journal_of_flow", flow_id="flow", after=0, limit=999)
    return [row[1] for row in rows]


# What is sent --------------------------------------------------------------------------------------------------------


async def test_the_intent_is_durable_before_anything_is_sent(simulator: Simulator) -> None:
    await sent(simulator)
    item = await work(simulator)
    assert (item["status"], item["attempt"]) == ("active", 1)
    assert item["deadline_at"] == rfc3339(simulator.clock() + 60_000)


async def test_what_an_async_endpoint_receives(simulator: Simulator) -> None:
    call = await sent(simulator, {"a": 1})
    item = await work(simulator)
    assert (call.url, call.timeout_ms) == (ENDPOINT, 2_000)
    assert call.body["arguments"] == {"a": 1}
    metadata = dict(call.metadata)
    token = metadata.pop("receipt_token")
    assert simulator.engine.reports.work_of("flow", "step", token) == item["work_id"]
    assert metadata.pop("retry_context")["gate_count"] == 1
    assert metadata == {
        "tenant": "t1",
        "flow_id": "flow",
        "step_id": "step",
        "work_id": item["work_id"],
        "attempt": 1,
        "max_attempts": 3,
        "idempotency_key": item["idempotency_key"],
        "webhook_url": f"http://engine/webhook/flow/step/{token}",
        "heartbeat_url": f"http://engine/webhook/flow/step/{token}/heartbeat",
        "deadline_at": item["deadline_at"],
    }
    assert call.headers["User-Agent"] == USER_AGENT
    assert call.headers["Idempotency-Key"] == item["idempotency_key"]
    assert call.headers["Content-Type"] == "application/json"


async def test_a_sync_endpoint_is_told_of_no_webhook(simulator: Simulator) -> None:
    call = await sent(simulator, kind="sync", work={"max_retries": -1})
    assert not {"webhook_url", "heartbeat_url", "deadline_at"} & set(call.metadata)
    assert call.metadata["max_attempts"] is None


async def test_token_and_key_are_the_same_in_every_attempt_and_process(simulator: Simulator) -> None:
    first = await sent(simulator)
    await simulator.crash()
    await simulator.start()
    await simulator.sweep(SweepName.ORPHANS)
    simulator.clock.advance(1_000)
    await simulator.sweep(SweepName.REQUEUE)
    [second] = simulator.network.waiting()
    assert (first.attempt, second.attempt) == (1, 2)
    for name in ("receipt_token", "idempotency_key", "work_id", "webhook_url"):
        assert first.metadata[name] == second.metadata[name]
    context = second.metadata["retry_context"]
    assert (context["gate_count"], context["prior_completion_status"]) == (2, "gated_not_completed")
    assert context["first_attempt_at"] != context["last_attempt_at"]
    assert len(context) == 10


def test_a_trace_is_of_the_flow_and_a_span_of_the_attempt() -> None:
    first, second = traceparent(work_item(attempt=1)), traceparent(work_item(attempt=2))
    assert [len(part) for part in first.split("-")] == [2, 32, 16, 2]
    assert first.split("-")[1] == second.split("-")[1]
    assert first.split("-")[2] != second.split("-")[2]


# What an answer means ------------------------------------------------------------------------------------------------

ANSWERS: list[tuple[str, Reply, str, str | None]] = [
    ("async", answered(), "active", None),
    ("async", answered(202, {"success": True, "outputs": {"a": 1}}), "active", None),
    ("async", answered(200, b"thank you"), "active", None),
    ("async", answered(200, {"success": False, "error": "no"}), "failed", "STEP_FAILED"),
    ("async", answered(200, {"success": False, "retriable": True}), "not_completed", "NOT_COMPLETED"),
    ("async", answered(503), "not_completed", "ENDPOINT_UNAVAILABLE"),
    ("async", answered(429), "not_completed", "ENDPOINT_UNAVAILABLE"),
    ("async", answered(404), "failed", "ENDPOINT_REJECTED"),
    ("async", answered(301), "failed", "ENDPOINT_REDIRECT"),
    ("async", connection_refused(), "not_completed", "NOT_DELIVERED"),
    ("async", timed_out(), "not_completed", "UNKNOWN_OUTCOME"),
    ("sync", answered(), "succeeded", None),
    ("sync", answered(200, {"success": True, "outputs": {"a": 1}}), "succeeded", None),
    ("sync", answered(200, b"thank you"), "failed", "INVALID_RESPONSE"),
    ("sync", answered(200, {"success": False, "error": "no"}), "failed", "STEP_FAILED"),
    ("sync", answered(200, {"success": False, "retriable": True}), "not_completed", "NOT_COMPLETED"),
    ("sync", answered(500), "not_completed", "ENDPOINT_UNAVAILABLE"),
    ("sync", timed_out(), "not_completed", "UNKNOWN_OUTCOME"),
]


@pytest.mark.either_store
@pytest.mark.parametrize(("kind", "reply", "status", "code"), ANSWERS)
async def test_every_row_of_the_table(
    simulator: Simulator, kind: str, reply: Reply, status: str, code: str | None
) -> None:
    call = await sent(simulator, kind=kind)
    await simulator.network.answer(call, reply)
    item = await work(simulator)
    assert item["status"] == status
    [attempt] = item["attempts"]
    assert (attempt["error"] or {}).get("code") == code
    if status == "active":
        assert attempt["acknowledged_at"] is not None


async def test_an_odd_acknowledgement_is_noted(simulator: Simulator) -> None:
    call = await sent(simulator)
    await simulator.network.answer(call, answered(200, b"thank you"))
    rows = await simulator.store.read("journal_of_flow", flow_id="flow", after=0, limit=999)
    [data] = [row[7] for row in rows if row[1] == "work_acknowledged"]
    assert "not JSON" in data


async def test_a_pause_that_was_asked_for_is_kept(simulator: Simulator) -> None:
    call = await sent(simulator)
    await simulator.network.answer(call, answered(503, retry_after_ms=7_000))
    assert (await work(simulator))["next_attempt_at"] == rfc3339(simulator.clock() + 7_000)


@pytest.mark.parametrize("reply", [answered(), answered(503), answered(404), timed_out()], ids=repr)
async def test_a_result_that_came_before_the_answer_stays(simulator: Simulator, reply: Reply) -> None:
    call = await sent(simulator)
    await simulator.engine.reports.complete(call.metadata["work_id"], StepResult(success=True))
    before = await events(simulator)
    await simulator.network.answer(call, reply)
    assert await events(simulator) == before
    assert (await work(simulator))["status"] == "succeeded"


async def test_the_answer_of_an_older_attempt_does_not_count_for_the_newer_one(simulator: Simulator) -> None:
    first = await sent(simulator)
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.DEADLINES)
    simulator.clock.advance(1_000)
    await simulator.sweep(SweepName.REQUEUE)
    assert [call.attempt for call in simulator.network.waiting()] == [1, 2]
    await simulator.network.answer(first, answered(404))
    item = await work(simulator)
    assert (item["status"], item["attempt"], item["acknowledged_at"]) == ("active", 2, None)


async def test_an_endpoint_that_names_an_older_attempt_still_gives_this_one_back(simulator: Simulator) -> None:
    first = await sent(simulator)
    await simulator.network.answer(first, answered(503))
    simulator.clock.advance(1_000)
    await simulator.sweep(SweepName.REQUEUE)
    [second] = simulator.network.waiting()
    await simulator.network.answer(second, answered(200, {"success": False, "retriable": True, "attempt": 1}))
    assert (await work(simulator))["status"] == "not_completed"


# Nothing is lost -----------------------------------------------------------------------------------------------------


async def test_an_answer_is_recorded_once_the_store_is_back(simulator: Simulator) -> None:
    call = await sent(simulator)
    with full_disk(simulator.place):
        answering = asyncio.create_task(simulator.network.answer(call, answered(404)))
        await eventually(lambda: failures(simulator) >= 2, what="a second try")
    await asyncio.wait_for(answering, 10)
    assert (await work(simulator))["status"] == "failed"


def failures(simulator: Simulator) -> float:
    text, _ = simulator.engine.metrics.render()
    [line] = [line for line in text.decode().splitlines() if line.startswith("counterfoil_store_failures_total ")]
    return float(line.rpartition(" ")[2])


async def test_an_answer_that_cannot_be_recorded_before_the_end_is_left_to_the_next_start(
    simulator: Simulator,
) -> None:
    call = await sent(simulator)
    await simulator.engine.commit.close()
    await simulator.network.answer(call, answered(404))
    await simulator.stop()
    await simulator.start()
    assert await simulator.sweep(SweepName.ORPHANS) == 1
    assert (await work(simulator))["status"] == "not_completed"


async def test_an_answer_that_cannot_be_decided_does_not_stop_the_others(simulator: Simulator) -> None:
    call = await sent(simulator)
    with stubborn_work(simulator.place):
        await simulator.network.answer(call, answered(404))
    assert (await work(simulator))["status"] == "active", "the deadline will see to it"
    assert simulator.engine.slots.under_way == 0


async def test_a_transport_that_breaks_makes_the_outcome_unknown(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(url: str, **_: Any) -> Reply:
        raise ZeroDivisionError

    await simulator.engine.steps.put("step", definition())
    monkeypatch.setattr(simulator.network, "post", broken)
    await simulator.engine.flows.start(StartFlow(flow_id="flow", goals=["step"]))
    item = await eventually(lambda: given_back(simulator), what="the attempt given back")
    assert item["attempts"][0]["delivery"] == "unknown"
    assert simulator.engine.slots.under_way == 0


async def given_back(simulator: Simulator) -> dict[str, Any] | None:
    item = await work(simulator)
    return item if item["status"] == "not_completed" else None


# Stopping ------------------------------------------------------------------------------------------------------------


async def test_a_stop_lets_what_is_under_way_finish(simulator: Simulator) -> None:
    call = await sent(simulator)
    stopping = asyncio.create_task(simulator.engine.stop(30))
    await asyncio.sleep(0)
    await simulator.network.answer(call, answered(404))
    assert await stopping == 0
    assert (await work(simulator))["status"] == "failed"


async def test_a_stop_leaves_the_rest_for_the_next_start(simulator: Simulator) -> None:
    await sent(simulator)
    assert await simulator.stop(grace_seconds=0.01) == 1
    await simulator.start()
    assert (await work(simulator))["status"] == "active"
    assert await simulator.sweep(SweepName.ORPHANS) == 1


async def test_nothing_new_is_sent_while_stopping(simulator: Simulator) -> None:
    await simulator.engine.steps.put("step", definition())
    simulator.engine.dispatcher.stop()
    await simulator.engine.flows.start(StartFlow(flow_id="flow", goals=["step"]))
    assert simulator.network.calls == []
    assert (await work(simulator))["status"] == "pending"


# Ended before it was sent --------------------------------------------------------------------------------------------


async def test_what_was_cancelled_in_the_commit_that_claimed_it_is_not_sent(simulator: Simulator) -> None:
    await simulator.engine.steps.put("step", definition())
    starting = simulator.engine.flows.start(StartFlow(flow_id="flow", goals=["step"]))
    await asyncio.gather(starting, simulator.engine.flows.cancel("flow"))
    assert (await work(simulator))["status"] == "cancelled"
    assert simulator.network.calls == []
    assert simulator.engine.slots.under_way == 0


async def test_what_succeeded_in_the_commit_that_claimed_its_retry_is_not_sent_again(simulator: Simulator) -> None:
    """The late result of the first attempt and the claim of the second meet in one batch: no second effect."""
    call = await sent(simulator)
    await simulator.network.answer(call, timed_out())
    simulator.clock.advance(1_000)
    work_id = call.metadata["work_id"]
    claim = ClaimDue(work_id, "flow")
    claimed, completion = await asyncio.gather(
        simulator.engine.commit.submit(claim), simulator.engine.reports.complete(work_id, StepResult(success=True))
    )
    assert (claimed, completion.verdict) == (True, "accepted")
    assert (await work(simulator))["status"] == "succeeded"
    assert simulator.network.waiting() == []


async def test_an_attempt_given_back_and_claimed_again_in_one_commit_is_sent_once(simulator: Simulator) -> None:
    call = await sent(simulator, work={"init_backoff_ms": 0})
    await simulator.network.answer(call, timed_out())
    work_id, submit = call.metadata["work_id"], simulator.engine.commit.submit
    claim = ClaimDue(work_id, "flow")
    back = simulator.engine.reports.complete(work_id, StepResult(success=False, retriable=True))
    await asyncio.gather(submit(claim), back, submit(claim))
    assert [call.attempt for call in simulator.network.waiting()] == [3]
