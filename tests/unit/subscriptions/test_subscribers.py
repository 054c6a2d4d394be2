"""Subscribers that are disabled, deleted or gone, deliveries that go with their flows, and secrets."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.errors import UnknownSubscription
from counterfoil.domain.subscriptions.definitions import Delivery
from counterfoil.domain.work.receipts import Receipts
from counterfoil.engine.flows.prune import Prune
from counterfoil.engine.subscriptions.commands import DeleteSubscription, DisableSubscription, SendTest, secrets_of
from counterfoil.engine.subscriptions.deliveries import ClaimDelivery, RecordDelivery
from counterfoil.engine.subscriptions.messages import Outcome
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.kinds.subscriptions import DELIVERIES
from counterfoil.testing.simulator import Simulator, answered
from counterfoil.transport.signing import Signer, Verifier
from tests.by_hand import break_it
from tests.unit.subscriptions.telling import URL, kept, start, subscribe, sweep, told


async def test_deliveries_without_a_subscription_are_forgotten(simulator: Simulator) -> None:
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

        def decide(self, unit: Any, now: int) -> None:
            unit.records(DELIVERIES).put(orphan.delivery_id, orphan)

    await commit.submit(Put())
    assert await simulator.next_due(SweepName.DELIVERIES) is not None
    assert await sweep(simulator) == 1
    assert told(simulator) == []
    assert await simulator.store.read("list_deliveries", subscription_id="ops", after=None, limit=9) == []
    await commit.submit(RecordDelivery(waiting["delivery_id"], 0, Outcome("retried", "", 503, 1)))
    assert await simulator.next_due(SweepName.DELIVERIES) is None


async def together(simulator: Simulator, *commands: Any) -> list[Any]:
    """Decide and commit some commands in one batch; their answers."""
    answers: list[Any] = []
    batch = Batch([(each, answers.append) for each in commands], simulator.engine.commit._new_unit, simulator.clock)
    await simulator.store.execute(batch)
    batch.answer()
    return answers


@pytest.mark.parametrize("pruned_first", [True, False])
async def test_a_delivery_is_pruned_with_its_flow_but_not_while_it_is_in_flight(
    simulator: Simulator, pruned_first: bool
) -> None:
    """In one batch, in either order."""
    await subscribe(simulator)
    await start(simulator)
    await simulator.engine.flows.cancel("flow")
    started, _ = await kept(simulator)
    claim = ClaimDelivery(started["delivery_id"], 1_000)
    prune = Prune("flow", "{}", simulator.clock(), payloads=False)
    if pruned_first:
        assert await together(simulator, prune, claim) == [True, None]
        assert await kept(simulator) == []
    else:
        claimed, pruned = await together(simulator, claim, prune)
        assert (claimed[0].delivery_id, pruned) == (started["delivery_id"], False), "what is changed is left alone"
        assert len(await kept(simulator)) == 2
        assert await together(simulator, prune) == [True]
        assert await kept(simulator) == []


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_subscription_deleted_beside_the_claim_of_its_delivery_leaves_nothing(
    simulator: Simulator, deleted_first: bool
) -> None:
    """In one batch, in either order."""
    await subscribe(simulator)
    await start(simulator)
    [waiting] = await kept(simulator)
    claim = ClaimDelivery(waiting["delivery_id"], 1_000)
    delete = DeleteSubscription("ops")
    await together(simulator, *([delete, claim] if deleted_first else [claim, delete]))
    assert await simulator.store.read("list_deliveries", subscription_id="ops", after=None, limit=9) == []
    simulator.engine.context.known.controls = None  # as the writer would, after such a commit
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


async def test_a_subscription_of_another_version_stops_nothing_and_says_what_to_do(simulator: Simulator) -> None:
    await subscribe(simulator)
    await subscribe(simulator, "sane")
    await simulator.crash()
    break_it(simulator.place, "UPDATE subscriptions SET definition = '{}' WHERE subscription_id = 'ops'")
    await simulator.start()
    await start(simulator)
    assert (await kept(simulator), len(await kept(simulator, "sane"))) == ([], 1)
    shown = await simulator.engine.subscribers.get("ops")
    assert (shown["enabled"], (shown["note"] or "")[-14:]) == (False, ": PUT it again")
    await subscribe(simulator)
    assert (await simulator.engine.subscribers.get("ops"))["note"] is None


async def test_a_subscription_with_a_new_url_is_not_disabled_for_the_old_one(simulator: Simulator) -> None:
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


async def test_labels_are_looked_up_only_if_a_subscription_filters_by_them(simulator: Simulator) -> None:
    await start(simulator, labels={"team": "a"})
    await simulator.crash()
    await simulator.start()
    await subscribe(simulator, "a", URL, "flow.cancelled", match={"flow_labels": {"team": "a"}})
    await subscribe(simulator, "b", URL, "flow.cancelled", match={"flow_labels": {"team": "b"}})
    await simulator.engine.flows.cancel("flow")
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
