"""Answers about subscriptions and deliveries, as the OpenAPI document has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from counterfoil.domain.subscriptions.definitions import SubscriptionMatch
from counterfoil.server.answers import Document

Secret = Annotated[
    str, Field(description="checks the signatures of what this subscriber is told", examples=["whsec_MDEyMzQ1Njc4OWFi"])
]


class SubscriptionDocument(Document):
    subscription_id: str
    url: str
    events: list[str]
    match: SubscriptionMatch
    enabled: bool
    description: str
    note: Annotated[str | None, Field(description="why it is disabled, where the engine did it")]
    created_at: str
    updated_at: str


class SubscriptionPut(SubscriptionDocument):
    signing_secret: Secret


class SubscriptionSecret(Document):
    subscription_id: str
    signing_secret: Secret
    signing_secrets: Annotated[
        list[str], Field(description="all of them, where the engine has several receipt secrets; the present one first")
    ]


class SubscriptionsPage(Document):
    subscriptions: list[SubscriptionDocument]
    next_cursor: str | None


class DeliveryDocument(Document):
    """What a subscriber was not told yet, or could not be told."""

    delivery_id: Annotated[str, Field(description="the `webhook-id` of every try")]
    subscription_id: str
    type: str
    flow_id: str | None
    status: Literal["pending", "given_up"]
    attempts: int
    next_attempt_at: str | None
    note: Annotated[str | None, Field(description="what the last try came to")]
    created_at: str
    message: Annotated[dict[str, Any], Field(description="what is sent")]


class DeliveriesPage(Document):
    deliveries: list[DeliveryDocument]
    next_cursor: str | None
