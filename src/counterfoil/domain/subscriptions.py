"""Subscriptions: who is told of which events, and what each of them is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool


class SubscriptionDefinition(BaseModel):
    """``PUT /api/v1/subscriptions/{subscription_id}``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    events: Annotated[list[str], Field(min_length=1, max_length=64)]
    enabled: StrictBool = True


@dataclass(frozen=True)
class Subscription:
    """As the store keeps it."""

    subscription_id: str
    definition: SubscriptionDefinition
    created_at: int
    updated_at: int


@dataclass(frozen=True)
class Delivery:
    """One message to one subscriber: durable until it was taken, or given up (``due_at`` None)."""

    delivery_id: str
    subscription_id: str
    flow_id: str
    type: str
    body: str
    """JSON text, as it is sent: its signature is made over these very bytes."""
    attempt: int
    due_at: int | None
    note: str | None
    created_at: int
