"""Subscriptions: which URL is notified of which events, and the deliveries that are not done."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from counterfoil.wire.schema import OneOf, Time, Values, described

Secret = Annotated[
    str,
    described("verifies the signatures of messages to this subscriber", examples=["whsec_MDEyMzQ1Njc4OWFi"]),
]


class SubscriptionMatchDocument(TypedDict):
    """Which of the named events are sent: every given field must match."""

    flow_labels: dict[str, str]
    step_id: str | None


class SubscriptionDocument(TypedDict):
    subscription_id: str
    url: str
    events: list[str]
    match: SubscriptionMatchDocument
    enabled: bool
    description: str
    note: Annotated[str | None, described("why the engine disabled the subscription")]
    created_at: Time
    updated_at: Time


class SubscriptionPut(SubscriptionDocument):
    signing_secret: Secret


class SubscriptionSecret(TypedDict):
    subscription_id: str
    signing_secret: Secret
    signing_secrets: Annotated[
        list[str], described("all of them, where the engine has several receipt secrets; the current one first")
    ]


class SubscriptionsPage(TypedDict):
    subscriptions: list[SubscriptionDocument]
    next_cursor: str | None


class DeliveryDocument(TypedDict):
    """A message that was not delivered yet, or was given up."""

    delivery_id: Annotated[str, described("the `webhook-id` of every attempt")]
    subscription_id: str
    type: str
    flow_id: str | None
    status: Annotated[str, OneOf(Literal["pending", "given_up"])]
    attempts: int
    next_attempt_at: Time | None
    note: Annotated[str | None, described("the result of the last attempt")]
    created_at: Time
    message: Annotated[Values, described("the body that is sent")]


class DeliveriesPage(TypedDict):
    deliveries: list[DeliveryDocument]
    next_cursor: str | None
