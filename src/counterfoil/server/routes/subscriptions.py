"""``/api/v1/subscriptions``: URLs that are notified of events."""

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
    return [*_reading_routes(engine), *_changing_routes(engine), *_deliveries(engine)]


def _reading_routes(engine: EngineFacade) -> list[Route]:
    async def list_subscriptions(request: web.Request) -> web.Response:
        wanted = read_query(request, ControlPaging)
        return json_response(await engine.subscribers.page(cursor=wanted.cursor, limit=wanted.limit))

    async def get_subscription(request: web.Request) -> web.Response:
        return json_response(await engine.subscribers.get(_known(request)))

    async def get_subscription_secret(request: web.Request) -> web.Response:
        return json_response(await engine.subscribers.secret(_known(request)))

    return [
        Route(
            method="GET",
            path="/api/v1/subscriptions",
            handler=list_subscriptions,
            tag="subscriptions",
            summary="List the subscriptions, by id",
            description="One page; `next_cursor` leads to the next page. Signing secrets are not shown.",
            query=ControlPaging,
            answers={200: SuccessAnswer(description="a page of subscriptions", model=SubscriptionsPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/subscriptions/{subscription_id}",
            handler=get_subscription,
            tag="subscriptions",
            summary="Show a subscription",
            description="The definition, without the signing secret. If the engine disabled the subscription, `note` "
            "says why.",
            answers={200: SuccessAnswer(description="the subscription", model=SubscriptionDocument)},
            errors=(UnknownSubscription,),
        ),
        Route(
            method="GET",
            path="/api/v1/subscriptions/{subscription_id}/secret",
            handler=get_subscription_secret,
            tag="subscriptions",
            summary="Show the secret that signs the messages to a subscriber",
            description="The subscriber verifies the signature of each message with it. While the engine has several "
            "receipt secrets, `signing_secrets` lists one signing secret for each; messages carry a signature of "
            "each.",
            answers={200: SuccessAnswer(description="the secret", model=SubscriptionSecret)},
            errors=(UnknownSubscription,),
            roles=ADMINS,
        ),
    ]


def _changing_routes(engine: EngineFacade) -> list[Route]:
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

    async def delete_subscription(request: web.Request) -> web.Response:
        await engine.subscribers.delete(_known(request))
        return empty_response()

    return [
        Route(
            method="PUT",
            path="/api/v1/subscriptions/{subscription_id}",
            handler=put_subscription,
            tag="subscriptions",
            summary="Create or change a subscription",
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
            method="DELETE",
            path="/api/v1/subscriptions/{subscription_id}",
            handler=delete_subscription,
            tag="subscriptions",
            summary="Remove a subscription",
            description="Its pending deliveries are deleted.",
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
            summary="List the pending deliveries of a subscription",
            description="Oldest first. A delivery that fails for a day is given up, and stays until it is "
            "redelivered or its flow is pruned. Completed deliveries are not kept.",
            query=ControlPaging,
            answers={200: SuccessAnswer(description="a page of deliveries", model=DeliveriesPage)},
            errors=(InvalidInput, UnknownSubscription),
        ),
        Route(
            method="POST",
            path="/api/v1/subscriptions/{subscription_id}/deliveries/{delivery_id}/redeliver",
            handler=redeliver,
            tag="subscriptions",
            summary="Retry a delivery now",
            description="A delivery that was given up gets all its attempts again.",
            answers={202: SuccessAnswer(description="the delivery is due", model=DeliveryDocument)},
            errors=(UnknownSubscription, UnknownDelivery, SubscriptionDisabled),
            roles=ADMINS,
        ),
        Route(
            method="POST",
            path="/api/v1/subscriptions/{subscription_id}/test",
            handler=test_subscription,
            tag="subscriptions",
            summary="Send a test to a subscriber",
            description="A message of type `test`, signed and retried like every other message.",
            answers={202: SuccessAnswer(description="the delivery is due", model=DeliveryDocument)},
            errors=(UnknownSubscription, SubscriptionDisabled),
            roles=ADMINS,
        ),
    ]


def _known(request: web.Request) -> str:
    """The id of the path; an id that no subscription can have raises UnknownSubscription without a query."""
    subscription_id = request.match_info["subscription_id"]
    if not _ID.fullmatch(subscription_id):
        raise UnknownSubscription
    return subscription_id
