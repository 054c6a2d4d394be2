"""Seed 002, statement by statement, as far as it is about the idempotency of a step."""

from __future__ import annotations

from collections import Counter

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.integration.planned import each, gives
from tests.wire import Api

CHARGE = "/charge"


class PaymentApi:
    """Charges once for each key, as Stripe does. The first answer of each key is lost on its way."""

    def __init__(self, endpoint: StepEndpoint) -> None:
        self.endpoint = endpoint
        self.attempts: Counter[str] = Counter()
        endpoint.answer(CHARGE, self.charge)

    async def charge(self, received: Received) -> Answer:
        key = received.headers["Idempotency-Key"]
        assert key == received.metadata["idempotency_key"]
        self.attempts[key] += 1
        if self.attempts[key] == 1:
            return Answer(fault="cut")
        return Answer(body={"success": True, "outputs": {"charge": key}})


async def test_a_charge_whose_confirmation_is_lost_is_made_once(api: Api, endpoint: StepEndpoint) -> None:
    """
    > Consider a payment API that charges the user $10, but due to network failures, the confirmation response is lost.
    > When the step retries (because the previous attempt was considered a failure), it will charge the user again.

    > To prevent this, many external APIs support idempotency keys. An idempotency key is a unique identifier for an
    > operation that can be used to deduplicate requests.

    > Every step invocation has a stable stepId that stays the same across retries. Use it as the idempotency key when
    > calling third-party APIs.

    > // This guarantees only one charge is created even if the step retries

    > • Stable across retries: stepId does not change between attempts.
    """
    payments = PaymentApi(endpoint)
    await api.put_step("charge", endpoint.url(CHARGE), kind="sync")
    flow_id = await api.start("charge", init={"amount": 10, "currency": "usd"})
    (charged,) = {(await api.final(flow_id))["outputs"]["charge"]}
    assert payments.attempts == {charged: 2}, "two attempts, one charge"
    assert (await api.work(flow_id))["idempotency_key"] == charged


async def test_each_call_that_is_to_have_an_effect_of_its_own_has_its_own_key(api: Api, endpoint: StepEndpoint) -> None:
    """
    > • Globally unique per step: Fulfills the uniqueness requirement for an idempotency key.

    Over items, steps and flows, also where the arguments are the same.
    """
    payments = PaymentApi(endpoint)
    attributes = {"amount": each("number"), "charge": gives()}
    for step_id in ("charge", "refund"):
        await api.put_step(step_id, endpoint.url(CHARGE), kind="sync", attributes=attributes)
    for step_id in ("charge", "charge", "refund"):
        await api.final(await api.start(step_id, init={"amount": [10, 10]}))
    assert sorted(payments.attempts.values()) == [2] * 6
