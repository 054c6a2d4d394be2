"""What policies see of effects, and keys that a caller gives, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.people import policy, put_policy
from tests.integration.planned import each, gives
from tests.integration.scenario import PATH, STEP
from tests.wire import Api

QUICK = {"init_backoff_ms": 5}
SECOND = {"field": "step.gate_count", "operator": "equals", "value": 2}


@pytest.mark.parametrize(
    ("first", "delivery"),
    [
        (Answer(fault="cut"), "unknown"),
        (Answer(503), "delivered"),
        (Answer(200, {"success": False, "retriable": True, "error": "later"}), "delivered"),
    ],
)
async def test_a_policy_sees_the_effect_and_the_delivery_before(
    api: Api, endpoint: StepEndpoint, first: Answer, delivery: str
) -> None:
    endpoint.answer(PATH, first, Answer(200, {"success": True}))
    expression = f"step.effect == 'dedupe' && step.prior_delivery == '{delivery}'"
    await put_policy(api, "second", policy(STEP, "block", reason="seen", conditions=[SECOND], expression=expression))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", effect={"policy": "dedupe"}, work=QUICK)
    error = (await api.final(await api.start(STEP)))["error"]
    assert (error["code"], error["message"]) == ("POLICY_BLOCKED", "seen")


@pytest.mark.parametrize(("first", "delivery"), [(Answer(fault="cut"), "unknown"), (Answer(500), "delivered")])
async def test_a_policy_sees_the_delivery_of_an_attempt_that_was_settled(
    api: Api, endpoint: StepEndpoint, first: Answer, delivery: str
) -> None:
    """It is the same that the item shows of the attempt."""
    endpoint.answer(PATH, first)
    expression = f"step.effect == 'reconcile' && step.prior_delivery == '{delivery}'"
    await put_policy(api, "second", policy(STEP, "block", reason="seen", conditions=[SECOND], expression=expression))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", effect={"policy": "reconcile"})
    flow_id = await api.start(STEP)
    work_id = (await api.until_work(flow_id, "not_completed", hold="reconcile"))["work_id"]
    (attempt,) = (await api.get(f"/api/v1/work/{work_id}")).ok()["attempts"]
    assert attempt["delivery"] == delivery
    (await api.post(f"/api/v1/reconciliations/{work_id}", {"outcome": "not_applied"})).ok()
    error = (await api.final(flow_id))["error"]
    assert (error["code"], error["message"]) == ("POLICY_BLOCKED", "seen")


async def test_conditions_see_the_same_and_a_first_attempt_has_no_delivery(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(200, {"success": True}))
    conditions = [
        {"field": "step.effect", "operator": "equals", "value": "idempotent"},
        {"field": "step.prior_delivery", "operator": "equals", "value": ""},
        {"field": "step.idempotency_key", "operator": "equals", "value": "order-7"},
    ]
    expression = "step.idempotency_key == 'order-7'"
    await put_policy(api, "first", policy(STEP, "block", reason="seen", conditions=conditions, expression=expression))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    blocked = await api.start(STEP, init_keys={STEP: "order-7"})
    assert (await api.final(blocked))["error"]["code"] == "POLICY_BLOCKED"
    assert endpoint.requests(PATH) == []
    assert (await api.final(await api.start(STEP, init_keys={STEP: "order-8"})))["status"] == "completed"


async def test_policies_about_effects_can_be_tried_out(api: Api) -> None:
    tried = policy("pay", "block", expression="step.effect == 'unsafe_once' && step.prior_delivery == 'unknown'")

    async def decision(**attempt: str) -> str:
        call = {"step_id": "pay", "attempt": attempt}
        document = (await api.post("/api/v1/policies/test", {"policy": tried, "call": call})).ok()
        subject = document["subject"]["attempt"]
        assert {name: subject[name] for name in attempt} == attempt
        return str(document["decision"])

    assert await decision(effect="unsafe_once", prior_delivery="unknown") == "block"
    assert await decision(effect="unsafe_once", prior_delivery="delivered") == "allow"
    refused = await api.post("/api/v1/policies/test", {"call": {"step_id": "pay", "attempt": {"effect": "twice"}}})
    assert [error["place"] for error in refused.refused(422, "INVALID_POLICY")["errors"]] == ["call.attempt.effect"]


async def test_a_given_key_is_sent_as_it_is(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(503), Answer(200, {"success": True}))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", work=QUICK)
    key = "refund:order-7 / again"
    flow_id = await api.start(STEP, init_keys={STEP: key})
    assert (await api.final(flow_id))["status"] == "completed"
    assert [sent.headers["Idempotency-Key"] for sent in endpoint.requests(PATH)] == [key, key]
    assert (await api.work(flow_id))["idempotency_key"] == key


async def test_items_of_a_fan_out_get_the_given_key_with_their_index(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(200, {"success": True, "outputs": {"twice": 2}}))
    attributes = {"n": each("number"), "twice": gives("number")}
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", attributes=attributes)
    assert (await api.final(await api.start(STEP, init={"n": [1, 2]}, init_keys={STEP: "order-7"})))["status"]
    keys = {sent.headers["Idempotency-Key"] for sent in endpoint.requests(PATH)}
    assert keys == {"order-7:0", "order-7:1"}


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("init_keys", "place"),
    [
        ({STEP: ""}, f"init_keys.{STEP}"),
        ({STEP: "a" * 256}, f"init_keys.{STEP}"),
        ({STEP: "a\nb"}, f"init_keys.{STEP}"),
        ({STEP: "schlüssel"}, f"init_keys.{STEP}"),
        ({STEP: " order-7"}, f"init_keys.{STEP}"),
        ({STEP: "order-7 "}, f"init_keys.{STEP}"),
        ({STEP: " "}, f"init_keys.{STEP}"),
        ({STEP: 7}, f"init_keys.{STEP}"),
        ({"other": "k"}, "init_keys"),
        ([], "init_keys"),
    ],
)
async def test_a_bad_key_is_refused_and_starts_nothing(
    api: Api, endpoint: StepEndpoint, init_keys: Any, place: str
) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    reply = await api.post("/api/v1/flows", {"goals": [STEP], "init_keys": init_keys})
    assert [error["place"] for error in reply.refused(422, "INVALID_INPUT")["errors"]] == [place]
    assert (await api.get("/api/v1/flows")).ok()["flows"] == []


async def test_an_unsafe_once_step_needs_a_control(api: Api, endpoint: StepEndpoint) -> None:
    step = {"endpoint": endpoint.url(PATH), "effect": {"policy": "unsafe_once"}}
    path = f"/api/v1/steps/{STEP}"
    errors = (await api.request("PUT", path, json=step)).refused(422, "UNSAFE_ONCE_REQUIRES_CONTROL")["errors"]
    assert [error["place"] for error in errors] == ["effect.policy"]
    await put_policy(api, "ask", policy("jo*", "require_approval"))
    (await api.request("PUT", path, json=step)).ok(201)
    (await api.request("PUT", path, json={**step, "control": {"approval": {}}})).ok(200)


async def test_what_endpoint_and_window_promise_must_fit(api: Api, endpoint: StepEndpoint) -> None:
    for effect, place in (
        ({"policy": "dedupe", "window": "7d", "downstream_window": "24h"}, "effect"),
        ({"window": "1w"}, "effect.window"),
        ({"policy": "twice"}, "effect.policy"),
    ):
        step = {"endpoint": endpoint.url(PATH), "effect": effect}
        errors = (await api.request("PUT", f"/api/v1/steps/{STEP}", json=step)).refused(422, "INVALID_STEP")["errors"]
        assert [error["place"].startswith(place) for error in errors] == [True], errors
