"""``status_url``: what is asked, what each answer means, and what follows when nothing is found out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.domain.errors import AlreadyFailed
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.time import rfc3339
from counterfoil.domain.work.replies import Reply
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered, connection_refused, timed_out
from tests.store.records import ENDPOINT, definition
from tests.unit.effects.charges import HELD, RETRIED, look, queue, sent

STATUS = "http://worker.test/status"


async def sent_with(simulator: Simulator, policy: str, **fields: Any) -> str:
    """An item on the wire whose step has a status_url; its id."""
    control: dict[str, Any] = {"approval": {}} if policy == "unsafe_once" else {}
    fields = {"effect": {"policy": policy}, "control": control, "status_url": STATUS, **fields}
    await simulator.engine.steps.put("charge", definition(**fields))
    await simulator.engine.flows.start(StartFlow(flow_id="f", goals=["charge"]))
    if policy == "unsafe_once":
        page = await simulator.engine.control_queries.approvals(status="pending", flow_id=None, cursor=None, limit=9)
        await simulator.engine.approvals.review(page["approvals"][0]["approval_id"], "ann", "approve", None)
        await simulator.sweep(SweepName.REQUEUE)
    return str(simulator.network.calls[-1].metadata["work_id"])


async def unknown(simulator: Simulator, policy: str, **fields: Any) -> str:
    work_id = await sent_with(simulator, policy, **fields)
    if policy in ("reconcile", "unsafe_once"):
        await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], timed_out())
    else:
        await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered())
        simulator.clock.advance(60_000)
        await simulator.sweep(SweepName.DEADLINES)
    return work_id


async def probe(simulator: Simulator, reply: Reply) -> int:
    simulator.network.always(STATUS, reply)
    return await simulator.sweep(SweepName.PROBES)


EVERY_POLICY = [*RETRIED, *HELD]


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_what_is_asked(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy)
    assert await probe(simulator, answered(200, {"state": "unknown"})) == 1
    [call] = [call for call in simulator.network.calls if call.url == STATUS]
    work = await look(simulator, work_id)
    assert call.headers["Idempotency-Key"] == work["idempotency_key"]
    asked = {name: call.headers[f"Counterfoil-{name}"] for name in ("Flow-Id", "Step-Id", "Attempt")}
    assert asked == {"Flow-Id": "f", "Step-Id": "charge", "Attempt": "1"}
    token = simulator.network.calls[0].token
    assert all(token not in text for text in call.headers.values())


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_done_is_recorded(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy)
    body = {"state": "done", "result": {"success": True, "outputs": {"id": 1}}}
    await probe(simulator, answered(200, body))
    work = await look(simulator, work_id)
    assert (work["status"], work["outputs"], work["probed"]) == ("succeeded", {"id": 1}, True)
    assert await queue(simulator) == []
    assert await simulator.next_due(SweepName.PROBES) is None
    assert sent(simulator) == 1


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_not_found_proves_that_nothing_was_applied(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy)
    simulator.clock.advance(5_000)
    found_at = rfc3339(simulator.clock())
    await probe(simulator, answered(200, {"state": "not_found"}))
    work = await look(simulator, work_id)
    assert (work["status"], work["hold"]) == ("not_completed", None)
    assert await queue(simulator) == []
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.REQUEUE)
    assert sent(simulator) == 2
    assert (await look(simulator, work_id))["attempts"][-1]["planned_at"] == found_at


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_not_found_with_no_retry_left_fails(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy, work={"max_retries": 0})
    await probe(simulator, answered(200, {"state": "not_found"}))
    assert (await look(simulator, work_id))["error"]["code"] == "RETRIES_EXHAUSTED"


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize(
    ("first", "answer", "delivery"),
    [
        (timed_out(), {"state": "not_found"}, "not_delivered"),
        (answered(500), {"state": "not_found"}, "delivered"),
        (timed_out(), {"state": "unknown"}, "unknown"),
        (timed_out(), {"state": "done", "result": {"success": False, "error": "busy", "retriable": True}}, "delivered"),
    ],
)
async def test_what_an_answer_says_of_the_delivery(
    simulator: Simulator, retries: int, first: Reply, answer: dict[str, Any], delivery: str
) -> None:
    """What is not known was not delivered, unless the endpoint itself has answered."""
    work_id = await sent_with(simulator, "reconcile", work={"max_retries": retries})
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], first)
    await probe(simulator, answered(200, answer))
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert attempt["delivery"] == delivery


async def test_an_item_past_its_deadline_without_an_acknowledgement_may_not_have_been_delivered(
    simulator: Simulator,
) -> None:
    work = {"max_retries": 0, "ack_timeout_ms": 300_000}
    work_id = await sent_with(simulator, "idempotent", work=work)
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.DEADLINES)
    await probe(simulator, answered(200, {"state": "unknown"}))
    item = await look(simulator, work_id)
    assert (item["error"]["code"], item["attempts"][0]["delivery"]) == ("RETRIES_EXHAUSTED", "unknown")


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_running_makes_it_active_with_a_new_deadline(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy)
    await probe(simulator, answered(200, {"state": "running"}))
    work = await look(simulator, work_id)
    assert (work["status"], work["hold"], work["error"]) == ("active", None, None)
    assert await queue(simulator) == []
    simulator.clock.advance(2_000)
    done = {"state": "done", "result": {"success": True}}
    assert await probe(simulator, answered(200, done)) == 1
    assert (await look(simulator, work_id))["status"] == "succeeded"


ANSWERS_OF_NO_USE = [
    answered(404, {"state": "not_found"}),
    answered(500),
    answered(200, {"state": "lost"}),
    answered(200, {"state": "done"}),
    answered(200, b"nonsense"),
    answered(204),
    answered(302),
    connection_refused(),
    timed_out(),
]


@pytest.mark.either_store
@pytest.mark.parametrize("reply", ANSWERS_OF_NO_USE)
@pytest.mark.parametrize("policy", HELD)
async def test_any_other_answer_leaves_a_held_item_held(simulator: Simulator, policy: str, reply: Reply) -> None:
    work_id = await unknown(simulator, policy)
    await probe(simulator, reply)
    work = await look(simulator, work_id)
    assert (work["status"], work["hold"]) == ("not_completed", policy)
    [entry] = await queue(simulator)
    assert entry["last_probe"]["state"] == "error"
    assert await simulator.next_due(SweepName.PROBES) == simulator.clock() + 1_000


@pytest.mark.either_store
@pytest.mark.parametrize("reply", ANSWERS_OF_NO_USE)
async def test_any_other_answer_lets_an_idempotent_item_be_repeated(simulator: Simulator, reply: Reply) -> None:
    await unknown(simulator, "idempotent")
    await probe(simulator, reply)
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.REQUEUE)
    assert sent(simulator) == 2
    assert await simulator.next_due(SweepName.PROBES) is None


async def test_probes_follow_the_backoff(simulator: Simulator) -> None:
    await unknown(simulator, "reconcile", work={"backoff_type": "exponential", "max_backoff_ms": 4_000})
    waits = []
    for _ in range(4):
        await probe(simulator, answered(200, {"state": "unknown"}))
        due = await simulator.next_due(SweepName.PROBES)
        assert due is not None
        waits.append(due - simulator.clock())
        simulator.clock.now = due
    assert waits == [1_000, 2_000, 4_000, 4_000]


async def test_an_answer_that_comes_too_late_changes_nothing(simulator: Simulator) -> None:
    work_id = await unknown(simulator, "reconcile")
    asking = asyncio.create_task(simulator.sweep(SweepName.PROBES))
    while not simulator.network.waiting(STATUS):
        await asyncio.sleep(0)
    await simulator.engine.reconciliations.settle(work_id, Settlement(outcome="failed", error="gone"), "ann")
    simulator.network.waiting(STATUS)[0].reply.set_result(answered(200, {"state": "done", "result": {"success": True}}))
    await asking
    assert (await look(simulator, work_id))["status"] == "failed"


async def test_a_crash_while_asking_asks_again(simulator: Simulator) -> None:
    work_id = await unknown(simulator, "reconcile")
    asking = asyncio.create_task(simulator.sweep(SweepName.PROBES))
    while not simulator.network.waiting(STATUS):
        await asyncio.sleep(0)
    await simulator.crash()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await simulator.start()
    assert await probe(simulator, answered(200, {"state": "unknown"})) == 0, "the claim of the dead node still holds"
    simulator.clock.advance(15_000)
    assert await probe(simulator, answered(200, {"state": "done", "result": {"success": True}})) == 1
    assert (await look(simulator, work_id))["status"] == "succeeded"


async def test_a_cancelled_item_is_not_asked_about(simulator: Simulator) -> None:
    await unknown(simulator, "reconcile")
    await simulator.engine.flows.cancel("f")
    assert await probe(simulator, answered(200, {"state": "unknown"})) == 0
    assert await simulator.next_due(SweepName.PROBES) is None
    assert len(await queue(simulator)) == 1


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_a_worker_that_gives_the_attempt_back_ends_the_asking(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy)
    await probe(simulator, answered(200, {"state": "running"}))
    await simulator.engine.reports.complete(work_id, StepResult(success=False, retriable=True, retry_after=30))
    planned = (await look(simulator, work_id))["next_attempt_at"]
    simulator.clock.advance(5_000)
    assert await probe(simulator, answered(200, {"state": "running"})) == 0
    work = await look(simulator, work_id)
    assert (work["status"], work["next_attempt_at"]) == ("not_completed", planned)


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_a_heartbeat_ends_the_asking(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy)
    await simulator.engine.reports.heartbeat(work_id, Heartbeat())
    assert await simulator.next_due(SweepName.PROBES) is None
    assert await probe(simulator, answered(200, {"state": "not_found"})) == 0
    assert (await look(simulator, work_id))["status"] == "active"


@pytest.mark.parametrize("policy", EVERY_POLICY)
async def test_a_report_that_leaves_no_attempt_may_be_repeated(simulator: Simulator, policy: str) -> None:
    work_id = await unknown(simulator, policy, work={"max_retries": 0})
    report = StepResult(success=False, error="busy", retriable=True)
    await simulator.engine.reports.complete(work_id, report)
    assert (await look(simulator, work_id))["error"]["code"] == "RETRIES_EXHAUSTED"
    with pytest.raises(AlreadyFailed):
        await simulator.engine.reports.complete(work_id, report)


async def test_a_late_report_ends_the_asking(simulator: Simulator) -> None:
    work_id = await unknown(simulator, "idempotent")
    await simulator.engine.reports.complete(work_id, StepResult(success=True))
    assert await probe(simulator, answered(200, {"state": "unknown"})) == 0
    assert await simulator.next_due(SweepName.PROBES) is None


async def test_an_attempt_that_goes_on_running_gets_more_time(simulator: Simulator) -> None:
    work_id = await unknown(simulator, "reconcile")
    running = answered(200, {"state": "running"})
    await probe(simulator, running)
    for _ in range(4):
        simulator.clock.advance(40_000)
        await simulator.sweep(SweepName.DEADLINES)
        await probe(simulator, running)
        assert (await look(simulator, work_id))["status"] == "active"
    simulator.clock.advance(59_999)
    assert await simulator.sweep(SweepName.DEADLINES) == 0
    simulator.clock.advance(1)
    assert await simulator.sweep(SweepName.DEADLINES) == 1
    assert len(await queue(simulator)) == 1
