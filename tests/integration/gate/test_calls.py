"""The gate beyond the seed: keys, inputs, decisions and claims."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest

from tests.eventually import eventually
from tests.integration.agents import Agent, Gatehouse, where
from tests.wire import moment

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGAIN: dict[str, Any] = {"retry_policy": "reevaluate"}


def keyed(key: str | None) -> dict[str, Any]:
    return {} if key is None else {"idempotency_key": key}


# ------------------------------------------------------------------------------------------------ keys

KEYS = [None, "", "one", "other"]
"""Absent and empty are the same."""


@pytest.mark.parametrize("route", ["gate", "reevaluate", "complete"])
async def test_every_key_against_every_other(house: Gatehouse, route: str) -> None:
    agent = await house.agent()
    for number, (first, later) in enumerate(itertools.product(KEYS[:3], KEYS)):
        step_id = f"pay-{number}"
        assert (await agent.context(step_id, **keyed(first)))["idempotency_key"] == (first or "")
        if route == "complete":
            reply = await agent.report(step_id, **keyed(later))
        else:
            reply = await agent.ask(step_id, **keyed(later), **(AGAIN if route == "reevaluate" else {}))
        if (first or "") == (later or ""):
            assert reply.status in (200, 204), reply.content
        else:
            assert reply.refused(409, "IDEMPOTENCY_KEY_MISMATCH") == {
                "workflow_id": agent.workflow_id,
                "step_id": step_id,
                "expected_idempotency_key": first or "",
                "received_idempotency_key": later or "",
            }


@pytest.mark.parametrize("status", ["blocked", "held", "completed", "failed report"])
async def test_a_key_is_compared_whatever_became_of_the_step(house: Gatehouse, status: str) -> None:
    agent = await house.agent()
    if status in ("blocked", "held"):
        await agent.rule("block" if status == "blocked" else "require_approval")
    await agent.gate("pay", idempotency_key="one")
    if status == "completed":
        await agent.complete("pay", idempotency_key="one")
    elif status == "failed report":
        await agent.complete("pay", idempotency_key="one", success=False)
    (await agent.ask("pay", idempotency_key="other")).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    (await agent.report("pay")).refused(409, "IDEMPOTENCY_KEY_MISMATCH")
    (await agent.report("pay", success=False)).refused(409, "IDEMPOTENCY_KEY_MISMATCH")


# ------------------------------------------------------------------------------------------------ what is refused


async def test_refused_calls_change_and_count_nothing(house: Gatehouse) -> None:
    """Whatever they are refused for: the next answer is the one that it would have been without them."""
    agent = await house.agent()
    await agent.gate("pay", idempotency_key="k", step_input={"n": 1}, claim={"lease_seconds": 60, "holder": "me"})
    before = await agent.step("pay")
    call: dict[str, Any] = {"idempotency_key": "k", "step_input": {"n": 1}}
    mine: dict[str, Any] = {"claim": {"holder": "me", "lease_seconds": 60}}
    refusals = [
        await agent.ask("pay", step_input={"n": 1}, **mine),
        await agent.ask("pay", idempotency_key="k", step_input={"n": 2}, **mine),
        await agent.ask("pay", **call),
        await agent.ask("pay", **call, **AGAIN),
        await agent.ask("pay", **call, claim={"holder": "another"}),
        await agent.ask("pay", **{**call, "idempotency_key": "k" * 256}),
        await agent.ask("pay", **call, retry_policy="sometimes"),
        await agent.ask("pay", {"include_prior_output": "x" * 17}, **call),
        await agent.report("pay", idempotency_key="other"),
    ]
    assert [(reply.status, reply.code) for reply in refusals] == [
        (409, "IDEMPOTENCY_KEY_MISMATCH"),
        (409, "STEP_INPUT_MISMATCH"),
        (409, "STEP_IN_FLIGHT"),
        (409, "STEP_IN_FLIGHT"),
        (409, "STEP_IN_FLIGHT"),
        (400, "BAD_REQUEST"),
        (422, "INVALID_INPUT"),
        (422, "INVALID_INPUT"),
        (409, "IDEMPOTENCY_KEY_MISMATCH"),
    ]
    assert await agent.step("pay") == before
    context = await agent.context("pay", **call, **mine)
    assert context["gate_count"] == 2


async def test_a_refused_first_call_leaves_no_step(house: Gatehouse) -> None:
    agent = await house.agent()
    (await agent.ask("pay", step_input=7)).refused(422, "INVALID_INPUT")
    assert (await agent.workflow())["steps"] == []
    assert (await agent.context("pay"))["gate_count"] == 1


# ------------------------------------------------------------------------------------------------ decisions


async def test_the_chain_of_last_decisions(house: Gatehouse) -> None:
    """Each call tells the decision of the one before, cached ones and people's included."""
    agent = await house.agent()
    told = [await agent.gate("pay"), await agent.gate("pay")]
    policy = await agent.rule("block")
    told += [await agent.gate("pay"), await agent.gate("pay", **AGAIN), await agent.gate("pay")]
    await agent.drop(policy)
    policy = await agent.rule("require_approval")
    told += [await agent.gate("pay", **AGAIN), await agent.gate("pay")]
    (await agent.review("pay", "approve")).ok()
    told += [await agent.gate("pay"), await agent.gate("pay")]
    assert [(answer["decision"], answer["retry_context"]["last_decision"]) for answer in told] == [
        ("allow", "allow"),
        ("allow", "allow"),
        ("allow", "allow"),
        ("block", "allow"),
        ("block", "block"),
        ("require_approval", "block"),
        ("require_approval", "require_approval"),
        ("allow", "require_approval"),
        ("allow", "allow"),
    ]
    assert [answer["retry_context"]["gate_count"] for answer in told] == list(range(1, 10))


async def test_every_evaluation_has_an_id_and_all_are_kept(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.rule("block", where("step.gate_count", "equals", 3))
    policies = ["idempotent", "idempotent", "reevaluate", "idempotent", "reevaluate"]
    answers = [await agent.gate("pay", retry_policy=policy) for policy in policies]
    ids = [answer["decision_id"] for answer in answers]
    assert ids == [ids[0], ids[0], ids[2], ids[2], ids[4]]
    assert len(set(ids)) == 3
    history = await agent.history("pay", "gate_decided")
    assert [
        (event["data"]["decision_id"], event["data"]["decision"], event["data"]["cached"]) for event in history
    ] == [
        (ids[0], "allow", False),
        (ids[0], "allow", True),
        (ids[2], "block", False),
        (ids[2], "block", True),
        (ids[4], "allow", False),
    ]


SAME = [
    ({"step_input": {"a": 1, "b": [1, {"c": 2, "d": 3}]}}, {"step_input": {"b": [1, {"d": 3, "c": 2}], "a": 1}}),
    ({"step_input": {"n": 1}}, {"step_input": {"n": 1.0}}),
    ({"step_input": {"n": 100}}, {"step_input": {"n": 1e2}}),
    ({}, {"step_input": {}}),
    ({"step_name": "a", "model": "m", "provider": "p", "tokens_in": 1}, {"step_name": "b", "cost_usd": 2}),
    ({"step_type": "llm_call"}, {"step_type": "tool_call"}),
    ({"tool_context": {"tool_name": "t"}}, {"tool_context": {"tool_name": "t", "tool_input": {}}}),
]
OTHER = [
    ({"step_input": {"n": 1}}, {"step_input": {"n": 2}}),
    ({"step_input": {"n": 1}}, {"step_input": {"n": "1"}}),
    ({"step_input": {"n": 1}}, {"step_input": {"n": True}}),
    ({"step_input": {"n": None}}, {"step_input": {}}),
    ({"step_input": {"n": [1, 2]}}, {"step_input": {"n": [2, 1]}}),
    ({"step_input": {"n": 1}}, {}),
    ({}, {"tool_context": {"tool_name": "t"}}),
    ({"tool_context": {"tool_name": "t"}}, {"tool_context": {"tool_name": "u"}}),
    ({"tool_context": {"tool_name": "t", "tool_input": {"n": 1}}}, {"tool_context": {"tool_name": "t"}}),
]


@pytest.mark.parametrize(("first", "later"), SAME)
async def test_the_same_input_in_another_form(house: Gatehouse, first: dict[str, Any], later: dict[str, Any]) -> None:
    """Inputs are compared as canonical JSON; names, models and usage are not compared."""
    agent = await house.agent()
    await agent.gate("pay", **first)
    assert (await agent.gate("pay", **later))["cached"] is True


@pytest.mark.parametrize(("first", "later"), OTHER)
async def test_another_input(house: Gatehouse, first: dict[str, Any], later: dict[str, Any]) -> None:
    """It is refused both ways, and a reevaluation is the way out."""
    agent = await house.agent()
    await agent.gate("pay", **first)
    details = (await agent.ask("pay", **later)).refused(409, "STEP_INPUT_MISMATCH")
    assert (details["workflow_id"], details["step_id"]) == (agent.workflow_id, "pay")
    assert details["expected_input_digest"] != details["received_input_digest"]
    assert (await agent.gate("pay", **later, **AGAIN))["cached"] is False
    (await agent.ask("pay", **first)).refused(409, "STEP_INPUT_MISMATCH")
    assert (await agent.context("pay", **later))["gate_count"] == 3


async def test_another_input_of_a_step_under_way_is_another_item(house: Gatehouse) -> None:
    agent = await house.agent()
    first = await agent.gate("pay", step_input={"n": 1})
    second = await agent.gate("pay", step_input={"n": 2}, **AGAIN)
    assert first["work_id"] != second["work_id"]
    items = (await house.api.flow(agent.workflow_id))["steps"]["pay"]["work"]
    assert sorted(item["status"] for item in items) == ["active", "cancelled"]
    await agent.complete("pay")


async def test_people_are_asked_about_a_step_that_is_under_way(house: Gatehouse) -> None:
    """Allowed, asked again, and to be approved now: the attempt is over, nothing can be reported until they agree."""
    agent = await house.agent()
    await agent.gate("pay", claim={"holder": "me", "lease_seconds": 60})
    await agent.rule("require_approval")
    held = await agent.gate("pay", **AGAIN, claim={"holder": "me"})
    assert (held["decision"], held["approval_status"], held["claim"]) == ("require_approval", "pending", None)
    (await agent.report("pay")).refused(409, "STEP_NOT_ALLOWED")
    (await agent.ask("pay", **AGAIN)).refused(409, "APPROVAL_HOLD")
    (await agent.review("pay", "approve")).ok()
    granted = await agent.gate("pay", claim={"holder": "another"})
    assert (granted["decision"], granted["claim"]["holder"]) == ("allow", "another")
    await agent.complete("pay")


async def test_people_are_shown_all_that_they_are_asked_about(house: Gatehouse) -> None:
    """The tool beside the input, and an input that has the tool's name too."""
    agent = await house.agent()
    await agent.rule("require_approval")
    tool = {"tool_name": "t", "tool_type": None, "tool_input": {"a": 1}}
    inputs: list[dict[str, Any]] = [{"n": 1}, {"tool_context": "mine"}]
    for number, given in enumerate(inputs):
        held = await agent.gate(f"pay-{number}", step_input=given, tool_context=tool)
        shown = (await house.api.get(f"/api/v1/approvals/{held['approval_id']}")).ok()["arguments"]
        whole = {**given, "tool_context": tool} if number == 0 else {"step_input": given, "tool_context": tool}
        assert shown == whole


# ------------------------------------------------------------------------------------------------ claims


async def lapsed(agent: Agent, step_id: str) -> Any:
    return await agent.history(step_id, "work_not_completed")


async def test_a_claim_makes_allow_exclusive(house: Gatehouse) -> None:
    agent = await house.agent()
    mine = {"holder": "me", "lease_seconds": 60}
    first = await agent.gate("pay", claim=mine)
    assert first["claim"]["holder"] == "me"
    leased = moment(first["claim"]["lease_expires_at"]) - moment(first["retry_context"]["last_attempt_at"])
    assert leased.total_seconds() == 60
    others: list[dict[str, Any]] = [{"claim": {"holder": "another"}}, {"claim": {}}, {}]
    for claim in others:
        details = (await agent.ask("pay", **claim)).refused(409, "STEP_IN_FLIGHT")
        assert details == {
            "workflow_id": agent.workflow_id,
            "step_id": "pay",
            "lease_expires_at": first["claim"]["lease_expires_at"],
        }
    house.clock.advance(seconds=30)
    renewed = await agent.gate("pay", claim=mine)
    assert moment(renewed["claim"]["lease_expires_at"]) > moment(first["claim"]["lease_expires_at"])
    assert (renewed["work_id"], renewed["attempt"]) == (first["work_id"], first["attempt"])


async def test_a_claim_without_a_name_is_given_one(house: Gatehouse) -> None:
    """With the id of the answer, the agent can ask again."""
    agent = await house.agent()
    holder = (await agent.gate("pay", claim={}))["claim"]["holder"]
    assert holder
    (await agent.ask("pay", claim={})).refused(409, "STEP_IN_FLIGHT")
    assert (await agent.gate("pay", claim={"holder": holder}))["claim"]["holder"] == holder


async def test_a_claim_ends_with_its_lease(house: Gatehouse) -> None:
    """The sweep journals it; the late report of the first is taken, unless another agent was quicker."""
    agent = await house.agent()
    for step_id in ("late", "taken"):
        await agent.gate(step_id, claim={"holder": "first", "lease_seconds": 10})
    house.clock.advance(seconds=10)
    for step_id in ("late", "taken"):
        [event] = await eventually(partial(lapsed, agent, step_id), what="the end of the lease")
        assert event["data"]["error"]["code"] == "NOT_REPORTED"
        assert (await agent.step(step_id))["claim"] is None
    await agent.complete("late", output={"by": "first"})
    taken = await agent.gate("taken", claim={"holder": "second", "lease_seconds": 10})
    assert (taken["claim"]["holder"], taken["attempt"]) == ("second", 2)
    assert taken["retry_context"]["prior_completion_status"] == "gated_not_completed"
    await agent.complete("taken", output={"by": "second"})
    (await agent.report("taken", output={"by": "first"})).refused(409, "COMPLETION_CONFLICT")


async def test_a_completed_step_cannot_be_claimed(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("pay", claim={"holder": "first"})
    await agent.complete("pay")
    again = await agent.gate("pay", claim={"holder": "second"})
    assert (again["decision"], again["claim"]) == ("allow", None)
    assert again["retry_context"]["prior_completion_status"] == "completed"


async def test_a_reported_failure_gives_the_claim_back(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("pay", claim={"holder": "first"})
    await agent.complete("pay", success=False, error="no funds")
    assert (await agent.gate("pay", claim={"holder": "second"}))["claim"]["holder"] == "second"


@pytest.mark.parametrize("decision", ["block", "require_approval"])
async def test_nothing_is_claimed_that_is_not_allowed(house: Gatehouse, decision: str) -> None:
    agent = await house.agent()
    await agent.rule(decision)
    assert (await agent.gate("pay", claim={"holder": "me"}))["claim"] is None
    assert (await agent.gate("pay", claim={"holder": "another"}))["decision"] == decision
