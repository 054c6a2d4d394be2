"""Commands for subscriptions and their deliveries.

No secret is stored: the signing secret of a subscription is derived from the engine's receipt secret and the id of the
subscription. With several receipt secrets there are as many, and a message has a signature of each.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, replace

from counterfoil.domain.errors import SubscriptionDisabled, UnknownDelivery, UnknownSubscription
from counterfoil.domain.subscriptions.definitions import Delivery, Subscription, SubscriptionDefinition
from counterfoil.domain.subscriptions.notices import trial
from counterfoil.domain.work.receipts import Receipts
from counterfoil.store.kinds.subscriptions import DELIVERIES, SUBSCRIPTIONS
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


def secrets_of(receipts: Receipts, subscription_id: str) -> list[str]:
    """The secrets of a subscription, as Standard Webhooks writes them; the first one is the present one."""
    return [f"whsec_{b64encode(key).decode()}" for key in receipts.derived("subscription", subscription_id)]


@dataclass(slots=True)
class PutSubscription:
    """``PUT /api/v1/subscriptions/{subscription_id}``. The same definition again changes nothing."""

    subscription_id: str
    definition: SubscriptionDefinition

    def needs(self, needs: ReadSet) -> None:
        needs.subscriptions.add(self.subscription_id)

    def decide(self, unit: UnitOfWork, now: int) -> tuple[Subscription, bool]:
        """The subscription, and whether it is new."""
        found = unit.records(SUBSCRIPTIONS).get(self.subscription_id)
        if found is not None and found.definition == self.definition:
            return found, False
        created_at = now if found is None else found.created_at
        subscription = Subscription(self.subscription_id, self.definition, None, created_at, now)
        unit.records(SUBSCRIPTIONS).put(self.subscription_id, subscription)
        return subscription, found is None


@dataclass(slots=True)
class DisableSubscription:
    """The subscriber answered 410 Gone at this URL: disable the subscription, unless its URL has changed meanwhile."""

    subscription_id: str
    url: str

    def needs(self, needs: ReadSet) -> None:
        needs.subscriptions.add(self.subscription_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        found = unit.records(SUBSCRIPTIONS).get(self.subscription_id)
        if found is None or not found.definition.enabled or found.definition.url != self.url:
            return False
        definition = found.definition.model_copy(update={"enabled": False})
        note = "disabled by the engine: the subscriber answered 410 Gone"
        unit.records(SUBSCRIPTIONS).put(
            self.subscription_id, replace(found, definition=definition, note=note, updated_at=now)
        )
        return True


@dataclass(slots=True)
class DeleteSubscription:
    """No event is delivered by it from now on, and its pending deliveries are deleted."""

    subscription_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.subscriptions.add(self.subscription_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        _known(unit, self.subscription_id)
        unit.records(SUBSCRIPTIONS).put(self.subscription_id, None)


@dataclass(slots=True)
class SendTest:
    """``POST .../test``: a delivery without an event, made like any other."""

    subscription_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.subscriptions.add(self.subscription_id)

    def decide(self, unit: UnitOfWork, now: int) -> Delivery:
        _enabled(unit, self.subscription_id)
        delivery = trial(self.subscription_id, f"msg_{unit.new_id()}", now)
        unit.records(DELIVERIES).put(delivery.delivery_id, delivery)
        return delivery


@dataclass(slots=True)
class Redeliver:
    """``POST .../deliveries/{delivery_id}/redeliver``: due now; with all its retries again, if it was given up."""

    subscription_id: str
    delivery_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.subscriptions.add(self.subscription_id)
        needs.deliveries.add(self.delivery_id)

    def decide(self, unit: UnitOfWork, now: int) -> Delivery:
        _enabled(unit, self.subscription_id)
        found = unit.delivery(self.delivery_id)
        if found is None or found.subscription_id != self.subscription_id:
            raise UnknownDelivery
        attempt = 0 if found.due_at is None else found.attempt
        delivery = replace(found, attempt=attempt, due_at=now)
        unit.records(DELIVERIES).put(self.delivery_id, delivery)
        return delivery


def _known(unit: UnitOfWork, subscription_id: str) -> Subscription:
    found = unit.records(SUBSCRIPTIONS).get(subscription_id)
    if found is None:
        raise UnknownSubscription
    return found


def _enabled(unit: UnitOfWork, subscription_id: str) -> None:
    if not _known(unit, subscription_id).definition.enabled:
        raise SubscriptionDisabled
