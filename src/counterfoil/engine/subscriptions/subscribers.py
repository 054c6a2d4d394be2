"""Subscriptions and their deliveries, as the API manages and shows them."""

from __future__ import annotations

import re
from typing import Any, cast

from counterfoil.domain.errors import UnknownSubscription
from counterfoil.domain.subscriptions.definitions import (
    SUBSCRIPTION_ID_PATTERN,
    Delivery,
    Subscription,
    SubscriptionDefinition,
)
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.domain.urls import mask_url
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.documents import fragment
from counterfoil.engine.queries.reading import Listed, not_a_cursor, numeric_cursor, read, read_list
from counterfoil.engine.subscriptions.commands import (
    DeleteSubscription,
    PutSubscription,
    Redeliver,
    SendTest,
    secrets_of,
)
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.kinds.subscriptions import read_subscription
from counterfoil.store.protocol import Store
from counterfoil.wire.subscriptions import (
    DeliveriesPage,
    DeliveryDocument,
    SubscriptionDocument,
    SubscriptionPut,
    SubscriptionSecret,
    SubscriptionsPage,
)


class Subscribers:
    """Subscriptions as documents; a secret is part of an answer to a put, or to the request for it, only."""

    def __init__(self, store: Store, context: EngineContext, commit: GroupCommit) -> None:
        self._store = store
        self._context = context
        self._commit = commit

    async def put(self, subscription_id: str, definition: SubscriptionDefinition) -> tuple[SubscriptionPut, bool]:
        """The subscription with its secret, and whether it is new."""
        subscription, created = await self._commit.submit(PutSubscription(subscription_id, definition))
        return {**subscription_document(subscription), "signing_secret": self._secrets(subscription_id)[0]}, created

    async def delete(self, subscription_id: str) -> None:
        await self._commit.submit(DeleteSubscription(subscription_id))

    async def test(self, subscription_id: str) -> DeliveryDocument:
        return delivery_document(await self._commit.submit(SendTest(subscription_id)))

    async def redeliver(self, subscription_id: str, delivery_id: str) -> DeliveryDocument:
        return delivery_document(await self._commit.submit(Redeliver(subscription_id, delivery_id)))

    async def get(self, subscription_id: str) -> SubscriptionDocument:
        rows = await read(self._store, "get_subscription", subscription_id=subscription_id)
        if not rows:
            raise UnknownSubscription
        return subscription_document(read_subscription(rows[0]))

    async def secret(self, subscription_id: str) -> SubscriptionSecret:
        """The secrets that its messages are signed with."""
        await self.get(subscription_id)
        secrets = self._secrets(subscription_id)
        return {"subscription_id": subscription_id, "signing_secret": secrets[0], "signing_secrets": secrets}

    async def page(self, *, cursor: str | None, limit: int) -> SubscriptionsPage:
        """By id; a cursor is the last id of the page before."""
        if cursor is not None and not re.fullmatch(SUBSCRIPTION_ID_PATTERN, cursor):
            raise not_a_cursor()
        rows, following = await self._list("list_subscriptions", limit, after=cursor)
        documents = [subscription_document(read_subscription(row)) for row in rows]
        return {"subscriptions": documents, "next_cursor": following}

    async def deliveries(self, subscription_id: str, *, cursor: str | None, limit: int) -> DeliveriesPage:
        """Deliveries that are pending or were given up, oldest first."""
        await self.get(subscription_id)
        rows, following = await self._list(
            "list_deliveries", limit, subscription_id=subscription_id, after=numeric_cursor(cursor)
        )
        return {"deliveries": [delivery_document(Delivery(*row[1:])) for row in rows], "next_cursor": following}

    async def _list(self, query: str, limit: int, **parameters: Any) -> Listed:
        return await read_list(self._store, query, self._context.page_bytes, limit, **parameters)

    def _secrets(self, subscription_id: str) -> list[str]:
        return secrets_of(self._context.receipts, subscription_id)


def subscription_document(subscription: Subscription) -> SubscriptionDocument:
    document = {
        "subscription_id": subscription.subscription_id,
        **subscription.definition.model_dump(mode="json"),
        "url": mask_url(subscription.definition.url),
        "note": subscription.note,
        "created_at": rfc3339(subscription.created_at),
        "updated_at": rfc3339(subscription.updated_at),
    }
    return cast(SubscriptionDocument, document)


def delivery_document(delivery: Delivery) -> DeliveryDocument:
    return {
        "delivery_id": delivery.delivery_id,
        "subscription_id": delivery.subscription_id,
        "type": delivery.type,
        "flow_id": delivery.flow_id or None,
        "status": "given_up" if delivery.due_at is None else "pending",
        "attempts": delivery.attempt,
        "next_attempt_at": optional_rfc3339(delivery.due_at),
        "note": delivery.note,
        "created_at": rfc3339(delivery.created_at),
        "message": fragment(delivery.body),
    }
