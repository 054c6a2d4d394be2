"""Cancelling: open work ends, workers are informed, and late reports are refused."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.errors import FlowFinal, UnknownFlow, WorkCancelled
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.replies import Reply, SendOutcome
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.flows.cancel import RecordCancelCall
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.cancel_calls import RULES
from counterfoil.testing.simulator import Simulator, answered, connection_refused, timed_out
from counterfoil.transport.signing import Signer
from tests.by_hand import Place
from tests.store.records import definition

CANCEL_URL = "http://worker.test/cancel"
SECRET = "whsec_" + "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0"


async def started(simulator: Simulator, **fields: Any) -> None:
    """A flow of two steps, both on their way."""
    for step_id in ("a", "b"):
        await simulator.engine.steps.put(step_id, definition(**fields))
    await simulator.engine.flows.start(StartFlow(flow_id="flow", goals=["a", "b"]))


async def events(simulator: Simulator) -> list[str]:
    rows = await simulator.store.read("journal_of_flow", flow_id="flow", after=0, limit=999)
    return [row[1] for row in rows]


async def test_everything_open_is_cancelled(simulator: Simulator) -> None:
    await started(simulator)
    document = await simulator.engine.flows.cancel("flow")
    assert document["status"] == "cancelled"
    assert {step["status"] for step in document["steps"].values()} == {"cancelled"}
    assert {step["work"][0]["status"] for step in document["steps"].values()} == {"cancelled"}


async def test_cancelling_again_changes_nothing(simulator: Simulator) -> None:
    await started(simulator)
    await simulator.engine.flows.cancel("flow")
    before = await events(simulator)
    assert (await simulator.engine.flows.cancel("flow"))["status"] == "cancelled"
    assert await events(simulator) == before


async def test_what_has_ended_cannot_be_cancelled(simulator: Simulator) -> None:
    await started(simulator)
    for call in simulator.network.waiting():
        await simulator.engine.reports.complete(call.metadata["work_id"], StepResult(success=True))
    with pytest.raises(FlowFinal) as caught:
        await simulator.engine.flows.cancel("flow")
    assert caught.value.details["status"] == "completed"


async def test_what_does_not_exist_cannot_be_cancelled(simulator: Simulator) -> None:
    with pytest.raises(UnknownFlow):
        await simulator.engine.flows.cancel("nowhere")


async def test_a_late_report_is_refused_and_a_heartbeat_is_told_of_the_cancellation(simulator: Simulator) -> None:
    await started(simulator)
    await simulator.engine.flows.cancel("flow")
    work_id = simulator.network.calls[0].metadata["work_id"]
    with pytest.raises(WorkCancelled):
        await simulator.engine.reports.complete(work_id, StepResult(success=True))
    answer = await simulator.engine.reports.heartbeat(work_id, Heartbeat(progress=0.5))
    assert (answer.cancel_requested, answer.deadline_at) == (True, None)
    assert (await simulator.engine.queries.receipt(work_id))["cancel_requested"]


async def test_the_answer_of_an_endpoint_does_not_revive_its_work(simulator: Simulator) -> None:
    await started(simulator)
    calls = simulator.network.waiting()
    await simulator.engine.flows.cancel("flow")
    before = await events(simulator)
    for call, reply in zip(calls, (answered(), answered(503)), strict=True):
        await simulator.network.answer(call, reply)
    assert await events(simulator) == before


# Telling workers -----------------------------------------------------------------------------------------------------


async def test_workers_are_told_what_is_no_longer_wanted(simulator: Simulator) -> None:
    await started(simulator, cancel_url=CANCEL_URL)
    sent = simulator.network.waiting()
    simulator.network.always(CANCEL_URL, answered(204))
    await simulator.engine.flows.cancel("flow")
    assert (SweepName.CANCEL_CALLS, simulator.clock()) in simulator.wakeups
    assert await simulator.sweep(SweepName.CANCEL_CALLS) == 2
    calls = [call for call in simulator.network.calls if call.url == CANCEL_URL]
    assert {call.metadata["work_id"] for call in calls} == {call.metadata["work_id"] for call in sent}
    for call in calls:
        assert call.headers["Idempotency-Key"] == f"cancel.{call.metadata['work_id']}"
        assert call.body["cancelled"] is True
        assert "receipt_token" not in call.metadata
    assert (await events(simulator)).count("cancel_delivered") == 2
    assert await simulator.sweep(SweepName.CANCEL_CALLS) == 0
    assert await simulator.next_due(SweepName.CANCEL_CALLS) is None


async def test_a_flow_that_fails_tells_the_workers_of_its_other_steps(simulator: Simulator) -> None:
    await started(simulator, cancel_url=CANCEL_URL)
    failing, other = simulator.network.waiting()
    simulator.network.always(CANCEL_URL, answered())
    await simulator.engine.reports.complete(failing.metadata["work_id"], StepResult(success=False, error="broken"))
    await simulator.sweep(SweepName.CANCEL_CALLS)
    [call] = [call for call in simulator.network.calls if call.url == CANCEL_URL]
    assert call.metadata["work_id"] == other.metadata["work_id"]
    assert call.body["reason"] == "the flow failed"


async def test_messages_are_signed_when_there_is_a_secret(place: Place) -> None:
    async with Simulator(place, signer=Signer(SECRET)) as simulator:
        await started(simulator, cancel_url=CANCEL_URL)
        simulator.network.always(CANCEL_URL, answered())
        await simulator.engine.flows.cancel("flow")
        await simulator.sweep(SweepName.CANCEL_CALLS)
        ids = [call.headers["webhook-id"] for call in simulator.network.calls]
        works = [call.metadata["work_id"] for call in simulator.network.calls[:2]]
        assert sorted(ids) == sorted([f"{work}.1" for work in works] + [f"cancel.{work}" for work in works])
        assert all(call.headers["webhook-signature"].startswith("v1,") for call in simulator.network.calls)


@pytest.mark.parametrize(
    "reply", [answered(500), answered(429), answered(408), connection_refused(), timed_out()], ids=repr
)
async def test_a_cancel_call_that_fails_now_is_repeated_later(simulator: Simulator, reply: Reply) -> None:
    await started(simulator, cancel_url=CANCEL_URL)
    simulator.network.always(CANCEL_URL, reply)
    await simulator.engine.flows.cancel("flow")
    assert await simulator.sweep(SweepName.CANCEL_CALLS) == 2
    assert await simulator.sweep(SweepName.CANCEL_CALLS) == 0, "not at once"
    due = await simulator.next_due(SweepName.CANCEL_CALLS)
    assert due is not None
    assert 250 <= due - simulator.clock() <= 500
    await simulator.crash()
    await simulator.start()
    simulator.network.always(CANCEL_URL, answered())
    simulator.clock.advance(500)
    assert await simulator.sweep(SweepName.CANCEL_CALLS) == 2, "a crash does not make the engine forget"
    assert (await events(simulator)).count("cancel_delivered") == 2


async def test_a_worker_may_ask_for_a_pause(simulator: Simulator) -> None:
    await started(simulator, cancel_url=CANCEL_URL)
    simulator.network.always(CANCEL_URL, answered(503, retry_after_ms=90_000))
    await simulator.engine.flows.cancel("flow")
    await simulator.sweep(SweepName.CANCEL_CALLS)
    assert await simulator.next_due(SweepName.CANCEL_CALLS) == simulator.clock() + 90_000


@pytest.mark.parametrize(
    "reply",
    [answered(404), answered(302), Reply(SendOutcome.NOT_DELIVERED, error="denied", denied=True, permanent=True)],
    ids=["404", "302", "denied"],
)
async def test_a_cancel_call_that_is_refused_is_not_repeated(simulator: Simulator, reply: Reply) -> None:
    await started(simulator, cancel_url=CANCEL_URL)
    simulator.network.always(CANCEL_URL, reply)
    await simulator.engine.flows.cancel("flow")
    await simulator.sweep(SweepName.CANCEL_CALLS)
    assert (await events(simulator)).count("cancel_undelivered") == 2
    assert await simulator.next_due(SweepName.CANCEL_CALLS) is None


async def test_telling_is_given_up_after_a_while(simulator: Simulator) -> None:
    await started(simulator, cancel_url=CANCEL_URL)
    simulator.network.always(CANCEL_URL, answered(503))
    await simulator.engine.flows.cancel("flow")
    for _ in range(RULES.max_retries + 3):
        await simulator.sweep(SweepName.CANCEL_CALLS)
        simulator.clock.advance(60_000)
    calls = [call for call in simulator.network.calls if call.url == CANCEL_URL]
    assert len(calls) == 2 * (RULES.max_retries + 1)
    rows = await simulator.store.read("journal_of_flow", flow_id="flow", after=0, limit=999)
    ended = [row[7] for row in rows if row[1] == "cancel_undelivered"]
    assert ended == ['{"calls":9,"note":"answered 503"}'] * 2


async def test_a_call_that_is_done_is_not_recorded_again(simulator: Simulator) -> None:
    """Two rounds may make the same call; the second finds that it has been taken care of."""
    before = await events(simulator)
    await simulator.engine.commit.submit(RecordCancelCall("nothing", delivered=True, retry_at=None, note=""))
    assert await events(simulator) == before
