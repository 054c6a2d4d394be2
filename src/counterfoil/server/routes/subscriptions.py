"""``/api/v1/subscriptions``: who is told of what happens."""

from __future__ import annotations

import re

from aiohttp import web

from counterfoil.domain.errors import (
    InvalidInput,
    InvalidSubscription,
    PayloadTooLarge,
    SubscriptionDisabled,
    UnknownDelivery,
    UnknownSubscription,
    UnsupportedMediaType,
)
from counterfoil.domain.subscriptions.definitions import SUBSCRIPTION_ID_PATTERN, SubscriptionDefinition
from counterfoil.domain.urls import MASKED_FAULT, is_masked
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import ADMINS
from counterfoil.server.control_requests import ControlPaging
from counterfoil.server.requests import read_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.subscriptions import (
    DeliveriesPage,
    DeliveryDocument,
    SubscriptionDocument,
    SubscriptionPut,
    SubscriptionSecret,
    SubscriptionsPage,
)

_ID = re.compile(SUBSCRIPTION_ID_PATTERN)
_MOST_ID_CHARACTERS = 128

EXAMPLE = {
    "url": "https://chat.example/hooks/approvals",
    "events": ["approval.*", "flow.failed"],
    "match": {"flow_labels": {"team": "payments"}},
}


def subscription_routes(engine: EngineFacade) -> list[Route]:
    return [*_definitions(engine), *_deliveries(engine)]


def _definitions(engine: EngineFacade) -> list[Route]:
    async def list_subscriptions(request: web.Request) -> web.Response:
        wanted = read_query(request, ControlPaging)
        return json_response(await engine.subscribers.page(cursor=wanted.cursor, limit=wanted.limit))

    async def put_subscription(request: web.Request) -> web.Response:
        subscription_id = request.match_info["subscription_id"]
        if not _ID.fullmatch(subscription_id):
            fault = "must be 1 to 128 letters, digits, or . _ ~ : - and begin with a letter or digit"
            place = {"place": "subscription_id", "message": fault}
            raise InvalidSubscription("the subscription id is not valid", errors=[place])
        definition = await read_model(request, SubscriptionDefinition, InvalidSubscription)
        if is_masked(definition.url):
            raise InvalidSubscription(errors=[{"place": "url", "message": MASKED_FAULT}])
        document, created = await engine.subscribers.put(subscription_id, definition)
        return json_response(document, 201 if created else 200)

    async def get_subscription(request: web.Request) -> web.Response:
        return json_response(await engine.subscribers.get(_known(request)))

    async def get_subscription_secret(request: web.Request) -> web.Response:
        return json_response(await engine.subscribers.secret(_known(request)))

    async def delete_subscription(request: web.Request) -> web.Response:
        await engine.subscribers.delete(_known(request))
        return empty_response()

    return [
        Route(
            method="GET",
            path="/api/v1/subscriptions",
            handler=list_subscriptions,
            tag="subscriptions",
            summary="List the subscriptions, by id",
            query=ControlPaging,
            answers={200: SuccessAnswer(description="a page of subscriptions", model=SubscriptionsPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="PUT",
            path="/api/v1/subscriptions/{subscription_id}",
            handler=put_subscription,
            tag="subscriptions",
            summary="Make a subscription, or change it",
            description="It holds, on every node, for whatever happens after the answer. `signing_secret` checks the "
            "signatures of what is sent; it stays the same when the subscription is changed.",
            request=SubscriptionDefinition,
            example=EXAMPLE,
            answers={
                200: SuccessAnswer(description="changed, or the same as before", model=SubscriptionPut),
                201: SuccessAnswer(description="new", model=SubscriptionPut),
            },
            errors=(InvalidSubscription, UnsupportedMediaType, PayloadTooLarge),
            roles=ADMINS,
        ),
        Route(
            method="GET",
            path="/api/v1/subscriptions/{subscription_id}",
            handler=get_subscription,
            tag="subscriptions",
            summary="Show a subscription",
            answers={200: SuccessAnswer(description="the subscription", model=SubscriptionDocument)},
            errors=(UnknownSubscription,),
        ),
        Route(
            method="GET",
            path="/api/v1/subscriptions/{subscription_id}/secret",
            handler=get_subscription_secret,
            tag="subscriptions",
            summary="Show the secret that signs what a subscriber is told",
            answers={200: SuccessAnswer(description="the secret", model=SubscriptionSecret)},
            errors=(UnknownSubscription,),
            roles=ADMINS,
        ),
        Route(
            method="DELETE",
            path="/api/v1/subscriptions/{subscription_id}",
            handler=delete_subscription,
            tag="subscriptions",
            summary="Remove a subscription",
            description="What was still to be told is forgotten.",
            answers={204: SuccessAnswer(description="removed")},
            errors=(UnknownSubscription,),
            roles=ADMINS,
        ),
    ]


def _deliveries(engine: EngineFacade) -> list[Route]:
    async def list_deliveries(request: web.Request) -> web.Response:
        wanted = read_query(request, ControlPaging)
        return json_response(
            await engine.subscribers.deliveries(_known(request), cursor=wanted.cursor, limit=wanted.limit)
        )

    async def redeliver(request: web.Request) -> web.Response:
        delivery_id = request.match_info["delivery_id"]
        if len(delivery_id) > _MOST_ID_CHARACTERS:
            raise UnknownDelivery
        return json_response(await engine.subscribers.redeliver(_known(request), delivery_id), 202)

    async def test_subscription(request: web.Request) -> web.Response:
        return json_response(await engine.subscribers.test(_known(request)), 202)

    return [
        Route(
            method="GET",
            path="/api/v1/subscriptions/{subscription_id}/deliveries",
            handler=list_deliveries,
            tag="subscriptions",
            summary="List what a subscriber was not told yet",
            description="The oldest first; what could not be delivered for a day was given up, and stays until it is "
            "redelivered, or its flow pruned. What was delivered is not kept.",
            query=ControlPaging,
            answers={200: SuccessAnswer(description="a page of deliveries", model=DeliveriesPage)},
            errors=(InvalidInput, UnknownSubscription),
        ),
        Route(
            method="POST",
            path="/api/v1/subscriptions/{subscription_id}/deliveries/{delivery_id}/redeliver",
            handler=redeliver,
            tag="subscriptions",
            summary="Make a delivery now",
            description="One that was given up has all its tries again.",
            answers={202: SuccessAnswer(description="it is due", model=DeliveryDocument)},
            errors=(UnknownSubscription, UnknownDelivery, SubscriptionDisabled),
            roles=ADMINS,
        ),
        Route(
            method="POST",
            path="/api/v1/subscriptions/{subscription_id}/test",
            handler=test_subscription,
            tag="subscriptions",
            summary="Send a test to a subscriber",
            description="A message of type `test`, on the way of all others: signed, and tried again if need be.",
            answers={202: SuccessAnswer(description="it is due", model=DeliveryDocument)},
            errors=(UnknownSubscription, SubscriptionDisabled),
            roles=ADMINS,
        ),
    ]


def _known(request: web.Request) -> str:
    """The id of the path; one that no subscription can have is not worth a query."""
    subscription_id = request.match_info["subscription_id"]
    if not _ID.fullmatch(subscription_id):
        raise UnknownSubscription
    return subscription_id
