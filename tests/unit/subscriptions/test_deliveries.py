"""Deliveries: durable with their events, tried for a day, then given up; made again after a crash."""

from __future__ import annotations

import pytest

from counterfoil.domain.errors import UnknownFlow
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.definitions import DAY_MS
from counterfoil.domain.work.replies import Reply
from counterfoil.domain.work.replies import SendOutcome as Arrival
from counterfoil.engine.subscriptions.deliveries import AT_ONCE, AT_ONCE_TO_ONE, RULES, ClaimDelivery
from counterfoil.engine.subscriptions.messages import in_hand_ms
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import CrashPoint, Simulator, answered, connection_refused, timed_out
from tests.store.records import definition
from tests.unit.subscriptions.telling import URL, eventually_sent, kept, start, subscribe, sweep, told


async def test_a_delivery_is_written_with_its_event_and_due_at_once(simulator: Simulator) -> None:
    secret = await subscribe(simulator)
    await start(simulator)
    [waiting] = await kept(simulator)
    assert (waiting["type"], waiting["flow_id"], waiting["status"]) == ("flow.started", "flow", "pending")
    assert (SweepName.DELIVERIES, simulator.clock()) in simulator.wakeups
    simulator.network.always(URL, answered(204))
    assert await sweep(simulator) == 1
    [call] = told(simulator)
    assert call.headers["webhook-id"] == waiting["delivery_id"]
    assert await kept(simulator) == []
    assert await simulator.next_due(SweepName.DELIVERIES) is None
    assert await sweep(simulator) == 0
    assert secret.startswith("whsec_")


async def test_a_refused_command_makes_no_delivery(simulator: Simulator) -> None:
    await subscribe(simulator)
    with pytest.raises(UnknownFlow):
        await simulator.engine.flows.cancel("flow")
    assert await kept(simulator) == []


@pytest.mark.parametrize("point", CrashPoint)
async def test_event_and_delivery_are_durable_together_or_not_at_all(simulator: Simulator, point: CrashPoint) -> None:
    await subscribe(simulator)
    await simulator.engine.steps.put("a", definition())
    start_flow = simulator.engine.flows.start(StartFlow(flow_id="flow", goals=["a"]))
    await simulator.crash_during(start_flow, point)
    await simulator.start()
    simulator.network.always(URL, answered())
    began = point is CrashPoint.AFTER_COMMIT
    assert len(await simulator.store.read("journal_of_flow", flow_id="flow", after=0, limit=1)) == began
    assert await sweep(simulator) == began


async def test_after_a_crash_a_delivery_in_flight_is_repeated_with_the_same_id(simulator: Simulator) -> None:
    await subscribe(simulator)
    await start(simulator)
    assert await simulator.sweep(SweepName.DELIVERIES) == 1
    await simulator.crash()
    await simulator.start()
    simulator.network.always(URL, answered())
    assert await sweep(simulator) == 0, "for all that is known, it is being made"
    simulator.clock.advance(in_hand_ms(RULES))
    assert await sweep(simulator) == 1
    first, second = told(simulator)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


async def test_the_late_answer_of_a_lapsed_claim_spoils_nothing(simulator: Simulator) -> None:
    """Two nodes have it in hand one after the other; the first one wakes up late."""
    await subscribe(simulator)
    await start(simulator)
    await simulator.sweep(SweepName.DELIVERIES)
    [first] = await eventually_sent(simulator, 1)
    simulator.clock.advance(in_hand_ms(RULES))
    await simulator.sweep(SweepName.DELIVERIES)
    first, second = await eventually_sent(simulator, 2)
    await simulator.network.answer(first, answered(500))
    [in_hand] = await kept(simulator)
    assert (in_hand["attempts"], in_hand["note"]) == (0, None), "the second one is still at it"
    await simulator.network.answer(second, answered())
    assert await kept(simulator) == []


async def test_what_is_in_hand_no_longer_is_not_sent(simulator: Simulator) -> None:
    await subscribe(simulator)
    await start(simulator)
    [waiting] = await kept(simulator)
    commit = simulator.engine.commit
    claimed = await commit.submit(ClaimDelivery(waiting["delivery_id"], 1_000))
    assert claimed is not None
    simulator.clock.advance(1_000)
    await simulator.engine.notifier._make(*claimed)
    assert told(simulator) == []
    assert (await kept(simulator))[0]["status"] == "pending"


@pytest.mark.parametrize(
    "reply", [answered(500), answered(425), connection_refused(), timed_out()], ids=["500", "425", "refused", "silent"]
)
async def test_a_delivery_that_fails_now_is_repeated_later(simulator: Simulator, reply: Reply) -> None:
    await subscribe(simulator)
    await start(simulator)
    simulator.network.always(URL, reply)
    assert await sweep(simulator) == 1
    due = await simulator.next_due(SweepName.DELIVERIES)
    assert due is not None
    assert 2_500 <= due - simulator.clock() <= 5_000
    simulator.network.always(URL, answered())
    simulator.clock.advance(5_000)
    assert await sweep(simulator) == 1
    assert await kept(simulator) == []


@pytest.mark.parametrize(
    "reply",
    [answered(404), answered(301), Reply(Arrival.NOT_DELIVERED, error="not allowed", denied=True, permanent=True)],
    ids=["404", "301", "denied"],
)
async def test_a_delivery_that_is_refused_is_not_repeated(simulator: Simulator, reply: Reply) -> None:
    await subscribe(simulator)
    await start(simulator)
    simulator.network.always(URL, reply)
    await sweep(simulator)
    [given_up] = await kept(simulator)
    assert (given_up["status"], given_up["attempts"]) == ("given_up", 1)
    assert await simulator.next_due(SweepName.DELIVERIES) is None


async def test_telling_is_given_up_after_about_a_day_and_begun_anew_by_hand(simulator: Simulator) -> None:
    await subscribe(simulator)
    await start(simulator)
    simulator.network.always(URL, answered(503))
    began = simulator.clock()
    while (due := await simulator.next_due(SweepName.DELIVERIES)) is not None:
        simulator.clock.now = max(due, simulator.clock())
        await sweep(simulator)
    assert len(told(simulator)) == RULES.max_retries + 1
    assert DAY_MS / 2 <= simulator.clock() - began <= 1.5 * DAY_MS
    [given_up] = await kept(simulator)
    assert (given_up["status"], given_up["note"]) == ("given_up", "answered 503")
    again = await simulator.engine.subscribers.redeliver("ops", given_up["delivery_id"])
    assert (again["status"], again["attempts"]) == ("pending", 0)
    assert (SweepName.DELIVERIES, simulator.clock()) in simulator.wakeups
    assert await sweep(simulator) == 1
    assert (await kept(simulator))[0]["status"] == "pending"


async def test_a_slow_subscriber_leaves_places_for_others(simulator: Simulator) -> None:
    slow = "http://slow.test/"
    await subscribe(simulator, "slow", slow, "work.created", "work.dispatched")
    await subscribe(simulator, "quick", URL, "flow.started")
    simulator.network.always(URL, answered())
    for number in range(AT_ONCE_TO_ONE):
        await start(simulator, f"flow-{number}")
    while await simulator.sweep(SweepName.DELIVERIES):
        pass
    assert len(told(simulator)) == AT_ONCE_TO_ONE, "all, though the other has not answered once"
    waiting = simulator.network.waiting(slow)
    assert AT_ONCE_TO_ONE <= len(waiting) < 2 * AT_ONCE_TO_ONE
    assert await simulator.next_due(SweepName.DELIVERIES) is None, "what is due is due to one that is busy"
    simulator.wakeups.clear()
    for call in waiting:
        await simulator.network.answer(call, answered())
    assert (SweepName.DELIVERIES, None) in simulator.wakeups, "a delivery that ends wakes the sweep"
    simulator.network.always(slow, answered())
    await sweep(simulator)
    assert (await kept(simulator, "slow"), await kept(simulator, "quick")) == ([], [])


async def test_no_more_are_made_at_once_than_there_are_places(simulator: Simulator) -> None:
    for number in range(1 + AT_ONCE // AT_ONCE_TO_ONE):
        await subscribe(simulator, f"s{number}", f"http://s{number}.test/", "*")
    for number in range(AT_ONCE_TO_ONE):
        await start(simulator, f"flow-{number}")
    while await simulator.sweep(SweepName.DELIVERIES):
        pass
    assert simulator.engine.notifier.is_full
    assert len(simulator.engine.notifier._tasks) == AT_ONCE
    assert await simulator.next_due(SweepName.DELIVERIES) is None


async def test_a_stop_lets_what_is_under_way_finish_and_leaves_the_rest(simulator: Simulator) -> None:
    await subscribe(simulator)
    await start(simulator)
    await simulator.sweep(SweepName.DELIVERIES)
    await simulator.stop(0)
    await simulator.start()
    simulator.network.always(URL, answered())
    simulator.clock.advance(in_hand_ms(RULES))
    assert await sweep(simulator) == 1
