"""Deliveries: durable with their events, tried for a day, then given up; made again after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.errors import UnknownFlow
from counterfoil.domain.flows import StartFlow
from counterfoil.domain.receipts import Receipts
from counterfoil.domain.replies import Delivery as Arrival
from counterfoil.domain.replies import Reply
from counterfoil.domain.steps import DAY_MS
from counterfoil.domain.subscription_errors import UnknownSubscription
from counterfoil.domain.subscriptions import Delivery, SubscriptionDefinition
from counterfoil.engine.deliveries import AT_ONCE, AT_ONCE_TO_ONE, RULES, ClaimDelivery, RecordDelivery
from counterfoil.engine.messages import Outcome, in_hand_ms
from counterfoil.engine.subscriptions import DeleteSubscription, DisableSubscription, SendTest, secrets_of
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.batch import Batch
from counterfoil.testing.simulator import Call, CrashPoint, Simulator, answered, connection_refused, timed_out
from counterfoil.transport.signing import Signer, Verifier
from tests.store.records import definition

URL = "http://chat.test/hook"


async def subscribe(simulator: Simulator, name: str = "ops", url: str = URL, *events: str, **more: Any) -> str:
    """Make a subscription; its secret."""
    wanted = {"url": url, "events": list(events) or ["flow.*"], **more}
    document, _ = await simulator.engine.subscribers.put(name, SubscriptionDefinition.model_validate(wanted))
    return str(document["signing_secret"])


async def start(simulator: Simulator, flow_id: str = "flow", **more: Any) -> None:
    await simulator.engine.put_step("a", definition())
    await simulator.engine.start_flow(StartFlow(flow_id=flow_id, goals=["a"], **more))


async def sweep(simulator: Simulator) -> int:
    """All rounds that have something to do, and the end of what they began."""
    begun = 0
    while found := await simulator.sweep(SweepName.DELIVERIES):
        begun += found
    await simulator.engine.notifier.idle()
    return begun


async def kept(simulator: Simulator, name: str = "ops") -> list[dict[str, Any]]:
    page = await simulator.engine.subscribers.deliveries(name, cursor=None, limit=100)
    found: list[dict[str, Any]] = page["deliveries"]
    return found


def told(simulator: Simulator, url: str = URL) -> list[Call]:
    return [call for call in simulator.network.calls if call.url == url]


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


async def test_a_refused_command_tells_nobody(simulator: Simulator) -> None:
    await subscribe(simulator)
    with pytest.raises(UnknownFlow):
        await simulator.engine.cancel_flow("flow")
    assert await kept(simulator) == []


@pytest.mark.parametrize("point", CrashPoint)
async def test_event_and_delivery_are_durable_together_or_not_at_all(simulator: Simulator, point: CrashPoint) -> None:
    await subscribe(simulator)
    await simulator.engine.put_step("a", definition())
    start_flow = simulator.engine.start_flow(StartFlow(flow_id="flow", goals=["a"]))
    await simulator.crash_during(start_flow, point)
    await simulator.start()
    simulator.network.always(URL, answered())
    began = point is CrashPoint.AFTER_COMMIT
    assert len(await simulator.store.read("journal_of_flow", flow_id="flow", after=0, limit=1)) == began
    assert await sweep(simulator) == began


async def test_who_crashes_with_a_delivery_in_hand_makes_it_again_with_the_same_id(simulator: Simulator) -> None:
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


@pytest.mark.parametrize(
    "reply", [answered(500), answered(429), answered(425), answered(408), connection_refused(), timed_out()], ids=repr
)
async def test_who_cannot_be_told_now_is_told_later(simulator: Simulator, reply: Reply) -> None:
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
async def test_who_does_not_want_to_be_told_is_not_told_again(simulator: Simulator, reply: Reply) -> None:
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
    assert (SweepName.DELIVERIES, None) in simulator.wakeups, "whoever makes room says so"
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


# Who is still there ---------------------------------------------------------------------------------------------------


async def test_what_is_due_to_nobody_is_forgotten(simulator: Simulator) -> None:
    """A delivery that was written while its subscription was being deleted on another node."""
    await subscribe(simulator)
    await start(simulator)
    [waiting] = await kept(simulator)
    commit = simulator.engine.commit
    row = (await simulator.store.read("list_deliveries", subscription_id="ops", after=None, limit=1))[0][1:]
    await simulator.engine.subscribers.delete("ops")
    orphan = Delivery(*row)

    class Put:
        def needs(self, needs: Any) -> None: ...

        def decide(self, world: Any, now: int) -> None:
            world.deliveries.put(orphan.delivery_id, orphan)

    await commit.submit(Put())
    assert await simulator.next_due(SweepName.DELIVERIES) is not None
    assert await sweep(simulator) == 1
    assert told(simulator) == []
    assert await simulator.store.read("list_deliveries", subscription_id="ops", after=None, limit=9) == []
    await commit.submit(RecordDelivery(waiting["delivery_id"], Outcome("retried", "", 503, simulator.clock())))
    assert await simulator.next_due(SweepName.DELIVERIES) is None


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_subscription_deleted_beside_the_claim_of_its_delivery_leaves_nothing(
    simulator: Simulator, deleted_first: bool
) -> None:
    """In one batch, in either order."""
    await subscribe(simulator)
    await start(simulator)
    [waiting] = await kept(simulator)
    claim = ClaimDelivery(waiting["delivery_id"], 1_000)
    answers: list[Any] = []
    commands: list[Any] = [DeleteSubscription("ops"), claim] if deleted_first else [claim, DeleteSubscription("ops")]
    engine = simulator.engine
    batch = Batch([(each, answers.append) for each in commands], engine.commit._new_world, simulator.clock)
    await simulator.store.execute(batch)
    batch.answer()
    assert await simulator.store.read("list_deliveries", subscription_id="ops", after=None, limit=9) == []
    engine.context.known.controls = None
    await subscribe(simulator)
    assert await kept(simulator) == []


async def test_a_disabled_subscriber_is_told_nothing_that_was_due(simulator: Simulator) -> None:
    await subscribe(simulator)
    await start(simulator)
    await subscribe(simulator, enabled=False)
    await sweep(simulator)
    assert told(simulator) == []
    [given_up] = await kept(simulator)
    assert (given_up["status"], given_up["note"]) == ("given_up", "the subscription is disabled")


async def test_who_has_moved_is_not_disabled_for_the_old_address(simulator: Simulator) -> None:
    await subscribe(simulator)
    assert await simulator.engine.commit.submit(DisableSubscription("ops", "http://old.test/")) is False
    assert await simulator.engine.commit.submit(DisableSubscription("nobody", URL)) is False
    assert (await simulator.engine.subscribers.get("ops"))["enabled"] is True
    assert await simulator.engine.commit.submit(DisableSubscription("ops", URL)) is True
    assert await simulator.engine.commit.submit(DisableSubscription("ops", URL)) is False


async def test_the_same_subscription_again_changes_nothing(simulator: Simulator) -> None:
    secret = await subscribe(simulator)
    before = await simulator.engine.subscribers.get("ops")
    simulator.clock.advance(1)
    assert await subscribe(simulator) == secret
    assert await simulator.engine.subscribers.get("ops") == before
    assert await subscribe(simulator, "ops", "http://other.test/") == secret, "the secret is the subscription's"
    after = await simulator.engine.subscribers.get("ops")
    assert (after["url"], after["created_at"]) == ("http://other.test/", before["created_at"])
    assert after["updated_at"] > before["updated_at"]
    for use in (
        simulator.engine.subscribers.delete,
        simulator.engine.subscribers.test,
        simulator.engine.subscribers.get,
    ):
        with pytest.raises(UnknownSubscription):
            await use("nobody")


async def test_labels_are_looked_up_only_when_somebody_asks_for_them(simulator: Simulator) -> None:
    await start(simulator, labels={"team": "a"})
    await simulator.crash()
    await simulator.start()
    await subscribe(simulator, "a", URL, "flow.cancelled", match={"flow_labels": {"team": "a"}})
    await subscribe(simulator, "b", URL, "flow.cancelled", match={"flow_labels": {"team": "b"}})
    await simulator.engine.cancel_flow("flow")
    assert len(await kept(simulator, "a")) == 1
    assert await kept(simulator, "b") == []


# Signatures -----------------------------------------------------------------------------------------------------------


def test_each_subscription_has_a_secret_of_its_own_and_of_each_receipt_secret() -> None:
    old, new = Receipts([b"old" * 8]), Receipts([b"new" * 8, b"old" * 8])
    assert secrets_of(new, "a")[1:] == secrets_of(old, "a")
    assert len({*secrets_of(new, "a"), *secrets_of(new, "b")}) == 4
    headers = Signer(",".join(secrets_of(new, "a"))).headers("msg_1", 0, b"{}")
    for secret in secrets_of(new, "a"):
        Verifier(secret).verify(headers, b"{}", 0)
    assert len(headers["webhook-signature"].split()) == 2


async def test_the_secret_is_shown_where_it_is_asked_for_alone(simulator: Simulator) -> None:
    secret = await subscribe(simulator)
    subscribers = simulator.engine.subscribers
    assert (await subscribers.secret("ops"))["signing_secrets"] == [secret]
    shown = [await subscribers.get("ops"), await subscribers.page(cursor=None, limit=9), await subscribers.test("ops")]
    assert not [document for document in shown if "whsec_" in str(document)]
    with pytest.raises(UnknownSubscription):
        await subscribers.secret("nobody")


async def test_a_test_is_tried_again_like_all_others(simulator: Simulator) -> None:
    await subscribe(simulator)
    simulator.network.always(URL, answered(500))
    sent = await simulator.engine.commit.submit(SendTest("ops"))
    await sweep(simulator)
    [waiting] = await kept(simulator)
    assert (waiting["delivery_id"], waiting["attempts"], waiting["flow_id"]) == (sent.delivery_id, 1, None)
