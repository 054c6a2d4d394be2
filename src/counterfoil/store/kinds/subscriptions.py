"""Subscriptions, and the deliveries that subscribers are still to be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterfoil.domain.subscriptions.definitions import Delivery, Subscription, SubscriptionDefinition
from counterfoil.store.kinds.columns import Columns, Conversion, Row
from counterfoil.store.kinds.kind import (
    ChangesOf,
    Kind,
    Load,
    Lock,
    Phase,
    PruneStatement,
    Write,
    by_flow,
    filling,
    of_flow,
)

SUBSCRIPTION_COLUMNS = Columns(
    Subscription, {"definition": Conversion("{0}.model_dump_json(exclude_unset=True)", "{0}")}
)
_PUT = SUBSCRIPTION_COLUMNS.writer()


def read_subscription(row: Sequence[Any]) -> Subscription:
    """A stored subscription. One that this version does not understand tells no subscriber anything, and says so."""
    subscription_id, definition, note, created_at, updated_at = row
    try:
        parsed = SubscriptionDefinition.model_validate_json(definition)
    except ValueError:
        parsed = SubscriptionDefinition.model_construct(url="", events=[], enabled=False)
        note = "it was stored by another version and cannot be read: PUT it again"
    return Subscription(subscription_id, parsed, note, created_at, updated_at)


def _writes(of: ChangesOf[str, Subscription]) -> Iterator[Write]:
    subscriptions = of.records
    kept = sorted(subscriptions.items())
    yield Write("put_subscriptions", [_PUT.row(each) for _, each in kept if each is not None])
    gone: list[Row] = [(key,) for key, each in kept if each is None]
    yield Write("delete_subscriptions", gone, exact=False)
    yield Write("drop_deliveries", gone, exact=False)


SUBSCRIPTIONS: Kind[str, Subscription] = Kind(
    name="subscriptions",
    key=lambda subscription: subscription.subscription_id,
    loads=(
        Load(
            name="subscriptions",
            query="load_subscriptions",
            columns=SUBSCRIPTION_COLUMNS.names,
            fill=filling(lambda: SUBSCRIPTIONS, read_subscription),
        ),
    ),
    writes=_writes,
    written=Phase.OTHERS + 7,
    optimistic=False,
    writers={"put_subscriptions": _PUT},
)

DELIVERY_COLUMNS = Columns(Delivery)
_DELIVERY = DELIVERY_COLUMNS.writer()


def _writes_deliveries(of: ChangesOf[str, Delivery]) -> Iterator[Write]:
    deliveries = of.records
    gone = {key for key, each in of.changes.peek(SUBSCRIPTIONS).items() if each is None}
    told = sorted(deliveries.items())
    kept = [each for _, each in told if each is not None and each.subscription_id not in gone]
    yield Write("put_deliveries", [_DELIVERY.row(each) for each in kept])
    yield Write("delete_deliveries", [(key,) for key, each in told if each is None], exact=False)


DELIVERIES: Kind[str, Delivery] = Kind(
    name="deliveries",
    key=lambda delivery: delivery.delivery_id,
    loads=(
        Load(
            name="deliveries",
            query="load_deliveries",
            columns=DELIVERY_COLUMNS.names,
            fill=filling(lambda: DELIVERIES, DELIVERY_COLUMNS.read),
            lock=Lock(2, "lock_deliveries"),
        ),
    ),
    writes=_writes_deliveries,
    written=Phase.OTHERS + 9,
    prune=(of_flow("deliveries", order=34),),
    empty=(PruneStatement(5, "empty_deliveries", by_flow),),
    writers={"put_deliveries": _DELIVERY},
)
