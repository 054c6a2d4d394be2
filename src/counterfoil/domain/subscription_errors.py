"""What is refused about subscriptions: a branch of the tree in errors.py."""

from __future__ import annotations

from counterfoil.domain.errors import Conflict, Invalid, Unknown


class UnknownSubscription(Unknown):
    code = "UNKNOWN_SUBSCRIPTION"
    default_message = "no subscription has this id"


class UnknownDelivery(Unknown):
    code = "UNKNOWN_DELIVERY"
    default_message = "no such delivery: already delivered, or never existed"


class InvalidSubscription(Invalid):
    code = "INVALID_SUBSCRIPTION"
    default_message = "the subscription is not valid"


class SubscriptionDisabled(Conflict):
    code = "SUBSCRIPTION_DISABLED"
    default_message = "this subscription is disabled; PUT it with enabled: true first"
