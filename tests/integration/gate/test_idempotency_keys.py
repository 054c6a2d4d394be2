"""Seed 000, statement by statement: keys, the rules by which they match, and how a mismatch is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.agents import Agent, Gatehouse

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = "payment:wire:acct4471:invoice-7721"
OTHER = "payment:wire:acct4471:invoice-9999"
MESSAGE = "idempotency_key does not match the key recorded on the step's first gate call"


def keyed(key: str | None) -> dict[str, Any]:
    return {} if key is None else {"idempotency_key": key}


async def second_call(agent: Agent, route: str, key: str | None) -> Any:
    """Call the gate again, or complete, with this key."""
    return await (agent.ask if route == "gate" else agent.report)("step-2", **keyed(key))


async def gated(house: Gatehouse, key: str | None) -> Agent:
    agent = await house.agent()
    await agent.gate("step-2", **keyed(key))
    return agent


# ------------------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize("key", ["k", "k" * 255, "ü" * 255, "\U0001f4b8" * 255, "invoice 7721 / 2"])
async def test_a_key_is_a_string_up_to_255_characters(house: Gatehouse, key: str) -> None:
    """
    > idempotency_key is an optional caller-supplied string, up to 255 characters, that pins a step to a business-level
    > identifier such as an invoice number, a customer-initiated wire transfer ID, or a content hash of the underlying
    > request. It gives your workflow a way to assert: "this step is about this transaction, and no other."
    """
    agent = await house.agent()
    assert (await agent.context("step-2", idempotency_key=key))["idempotency_key"] == key
    await agent.complete("step-2", idempotency_key=key)


@pytest.mark.parametrize("key", ["k" * 256, "ü" * 256, "k" * 100_000])
async def test_a_longer_key_is_a_bad_request(house: Gatehouse, key: str) -> None:
    """
    > A key longer than 255 characters is rejected with 400 BAD_REQUEST on both /gate and /complete.

    On the creation of a workflow too. Nothing is recorded.
    """
    agent = await house.agent()
    (await agent.ask("step-2", idempotency_key=key)).refused(400, "BAD_REQUEST")
    assert (await agent.workflow())["steps"] == []
    await agent.gate("step-2")
    (await agent.report("step-2", idempotency_key=key)).refused(400, "BAD_REQUEST")
    assert (await agent.step("step-2"))["completion_count"] == 0
    body: dict[str, Any] = {"workflow_name": "a", "idempotency_key": key}
    (await house.api.post("/api/v1/workflows", body)).refused(400, "BAD_REQUEST")


async def test_a_key_belongs_to_one_step_of_one_workflow(house: Gatehouse) -> None:
    """
    > Within this release, idempotency_key enforcement is scoped to a single (workflow_id, step_id). Key enforcement
    > across workflow IDs — preventing the same business transaction from being processed twice through two different
    > workflow runs — is a planned future enhancement and not part of this release. This page covers per-step behavior
    > only.

    So it is here, unless ``"idempotency_scope": "global"`` asks for keys that are unique across workflows: the
    enhancement exists.
    """
    one, two = await gated(house, KEY), await gated(house, KEY)
    assert (await one.context("step-3", idempotency_key=KEY))["gate_count"] == 1
    assert (await two.context("step-3", idempotency_key=OTHER))["gate_count"] == 1
    first = await house.agent(idempotency_scope="global")
    second = await house.agent(idempotency_scope="global")
    await first.gate("step-2", idempotency_key="transaction-1")
    details = (await second.ask("step-2", idempotency_key="transaction-1")).refused(409, "IDEMPOTENCY_KEY_IN_USE")
    assert (details["workflow_id"], details["step_id"]) == (first.workflow_id, "step-2")


async def test_the_key_is_passed_in_the_body_of_the_gate(house: Gatehouse) -> None:
    """
    > Supply idempotency_key in the /gate request body:

    > -d '{ "step_name": "Wire transfer", "step_type": "tool_call",
    > "idempotency_key": "payment:wire:acct4471:invoice-7721" }'
    """
    agent = await house.agent()
    body: dict[str, Any] = {"step_name": "Wire transfer", "step_type": "tool_call", "idempotency_key": KEY}
    assert (await agent.context("step-2", **body))["idempotency_key"] == KEY
    step = await agent.step("step-2")
    assert (step["step_name"], step["step_type"], step["idempotency_key"]) == ("Wire transfer", "tool_call", KEY)


async def test_the_key_is_recorded_echoed_and_immutable(house: Gatehouse) -> None:
    """
    > The key is recorded on the step row on the first gate call that sets it, and is echoed back on
    > retry_context.idempotency_key in every subsequent gate response for that step. Once set, the key is immutable —
    > subsequent gate calls for the same step must pass the same key, or they receive 409 IDEMPOTENCY_KEY_MISMATCH.
    """
    agent = await gated(house, KEY)
    for policy in ("idempotent", "reevaluate", "idempotent"):
        context = await agent.context("step-2", idempotency_key=KEY, retry_policy=policy)
        assert context["idempotency_key"] == KEY
        for wrong in (None, OTHER):
            reply = await agent.ask("step-2", **keyed(wrong), retry_policy=policy)
            reply.refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    assert (await agent.step("step-2"))["gate_count"] == 4, "what is refused does not count"


async def test_without_a_key_nothing_is_enforced(house: Gatehouse) -> None:
    """
    > A caller that never supplies an idempotency_key gets the pre-existing behavior: retry_context.idempotency_key is
    > the empty string "", and no key matching is enforced on /complete.
    """
    agent = await gated(house, None)
    assert (await agent.context("step-2"))["idempotency_key"] == ""
    await agent.complete("step-2")


async def test_a_completion_carries_the_key_of_its_gate(house: Gatehouse) -> None:
    """
    > When /complete lands for a step that set an idempotency key on its gate, the same key must be passed on the
    > completion request:

    > -d '{ "output": {"transfer_id": "txn-88f210"}, "tokens_in": 0, "tokens_out": 0, "cost_usd": 0,
    > "idempotency_key": "payment:wire:acct4471:invoice-7721" }'
    """
    agent = await gated(house, KEY)
    body: dict[str, Any] = {"output": {"transfer_id": "txn-88f210"}, "tokens_in": 0, "tokens_out": 0, "cost_usd": 0}
    (await agent.report("step-2", **body)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    await agent.complete("step-2", **body, idempotency_key=KEY)


# ------------------------------------------------------------------------------------------------ mismatch rules


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_present_and_the_same(house: Gatehouse, route: str) -> None:
    """
    > | Present | Same value | ✅ Accepted |
    """
    assert (await second_call(await gated(house, KEY), route, KEY)).status == (200 if route == "gate" else 204)


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_present_and_different(house: Gatehouse, route: str) -> None:
    """
    > | Present | Different value | ❌ 409 IDEMPOTENCY_KEY_MISMATCH |
    """
    (await second_call(await gated(house, KEY), route, OTHER)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_present_and_omitted(house: Gatehouse, route: str) -> None:
    """
    > | Present | Omitted | ❌ 409 IDEMPOTENCY_KEY_MISMATCH |
    """
    (await second_call(await gated(house, KEY), route, None)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_omitted_and_present(house: Gatehouse, route: str) -> None:
    """
    > | Omitted | Present | ❌ 409 IDEMPOTENCY_KEY_MISMATCH |
    """
    (await second_call(await gated(house, None), route, KEY)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_omitted_and_omitted(house: Gatehouse, route: str) -> None:
    """
    > | Omitted | Omitted | ✅ Accepted (legacy behavior) |
    """
    assert (await second_call(await gated(house, None), route, None)).status == (200 if route == "gate" else 204)


async def test_the_first_call_fixes_the_key_or_that_there_is_none(house: Gatehouse) -> None:
    """
    > The first /gate call on a step fixes the key (or absence of one) for that step's lifetime. Every subsequent /gate
    > and the /complete call must present exactly the same key state, including the "no key" case on both sides.

    > First /gate key | Subsequent /gate or /complete key | Result |
    """
    agent = await gated(house, None)
    await agent.complete("step-2")
    for route in ("gate", "complete"):
        (await second_call(agent, route, KEY)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    assert (await agent.context("step-2"))["idempotency_key"] == ""


async def test_both_endpoints_refuse_alike(house: Gatehouse) -> None:
    """
    > Mismatch is enforced on both endpoints: a repeat /gate with a different key fails the same way a /complete with a
    > different key does.
    """
    agent = await gated(house, KEY)
    at_gate, at_complete = await second_call(agent, "gate", OTHER), await second_call(agent, "complete", OTHER)
    assert at_gate.status == at_complete.status == 409
    assert at_gate.body == at_complete.body


# ------------------------------------------------------------------------------------------------ the envelope


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_the_envelope_of_a_mismatch(house: Gatehouse, route: str) -> None:
    """
    > A key mismatch on /gate or /complete returns HTTP 409 Conflict with this envelope:

    > { "error": { "code": "IDEMPOTENCY_KEY_MISMATCH",
    > "message": "idempotency_key does not match the key recorded on the step's first gate call",
    > "details": { "workflow_id": "wf_41231a72", "step_id": "step-2",
    > "expected_idempotency_key": "payment:wire:acct4471:invoice-7721",
    > "received_idempotency_key": "payment:wire:acct4471:invoice-9999" } } }
    """
    agent = await gated(house, KEY)
    reply = await second_call(agent, route, OTHER)
    assert reply.status == 409
    assert reply.body == {
        "error": {
            "code": "IDEMPOTENCY_KEY_MISMATCH",
            "message": MESSAGE,
            "details": {
                "workflow_id": agent.workflow_id,
                "step_id": "step-2",
                "expected_idempotency_key": KEY,
                "received_idempotency_key": OTHER,
            },
        }
    }


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_the_expected_key_is_empty_when_there_was_none(house: Gatehouse, route: str) -> None:
    """
    > expected_idempotency_keyis the empty string""when the step was first gated without a key but a later call supplied
    > one.
    """
    details = (await second_call(await gated(house, None), route, KEY)).details
    assert (details["expected_idempotency_key"], details["received_idempotency_key"]) == ("", KEY)


@pytest.mark.parametrize("route", ["gate", "complete"])
async def test_the_received_key_is_empty_when_it_was_omitted(house: Gatehouse, route: str) -> None:
    """
    > received_idempotency_keyis the empty string""when the step was first gated with a key but a later call omitted it.
    """
    details = (await second_call(await gated(house, KEY), route, None)).details
    assert (details["expected_idempotency_key"], details["received_idempotency_key"]) == (KEY, "")


async def test_a_mismatch_stays_one(house: Gatehouse) -> None:
    """
    > Treat a 409 as non-retriable without operator intervention. Either the caller generated the wrong key for the
    > step, or an earlier crash left the step with a key the current caller no longer has. Both cases require a human
    > decision before you can safely proceed.

    The operator finds the key of the step in its workflow.
    """
    agent = await gated(house, KEY)
    for _ in range(3):
        (await agent.ask("step-2", idempotency_key=OTHER)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    [step] = (await agent.workflow())["steps"]
    assert (step["idempotency_key"], step["gate_count"]) == (KEY, 1)
