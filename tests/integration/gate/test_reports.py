"""What agents report: the first outcome is final, the same again changes nothing, a failure leaves the step open."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.agents import Agent, Gatehouse

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGAIN: dict[str, Any] = {"retry_policy": "reevaluate"}
PRIOR = {"include_prior_output": "true"}


async def gated(house: Gatehouse, action: str = "allow") -> Agent:
    """An agent that has asked for its step."""
    agent = await house.agent()
    await agent.rule(action)
    await agent.gate("pay")
    return agent


# ------------------------------------------------------------------------------------------------ completions

SAME = [({}, {}), ({}, {"output": {}}), ({"output": {"a": 1, "b": 2}}, {"output": {"b": 2.0, "a": 1}})]
OTHER = [{"output": {"a": 2}}, {}, {"output": {"a": "1"}}, {"success": False}]


@pytest.mark.parametrize(("first", "again"), SAME)
async def test_the_same_completion_again(house: Gatehouse, first: dict[str, Any], again: dict[str, Any]) -> None:
    agent = await gated(house)
    await agent.complete("pay", **first, tokens_in=1, cost_usd=0.5)
    before = await agent.step("pay")
    await agent.complete("pay", **again, tokens_in=2, replayed=True)
    assert await agent.step("pay") == before


@pytest.mark.parametrize("other", OTHER)
async def test_another_outcome_is_refused(house: Gatehouse, other: dict[str, Any]) -> None:
    agent = await gated(house)
    await agent.complete("pay", output={"a": 1})
    before = await agent.step("pay")
    details = (await agent.report("pay", **other)).refused(409, "COMPLETION_CONFLICT")
    assert details["recorded_at"] == before["completed_at"]
    assert await agent.step("pay") == before
    assert (await agent.context("pay", PRIOR))["prior_output"] == {"a": 1}


async def test_what_was_never_asked_for_cannot_be_completed(house: Gatehouse) -> None:
    agent = await house.agent()
    (await agent.report("pay")).refused(404, "UNKNOWN_STEP")
    (await agent.report("pay", success=False)).refused(404, "UNKNOWN_STEP")


@pytest.mark.parametrize("report", [{"output": {"n": 1}}, {"success": False, "error": "no"}])
async def test_what_is_not_allowed_cannot_be_completed(house: Gatehouse, report: dict[str, Any]) -> None:
    """Blocked, held, rejected, or expired."""
    blocked = await gated(house, "block")
    held, rejected, expired = [await gated(house, "require_approval") for _ in range(3)]
    (await rejected.review("pay", "reject", reason="no")).ok()
    for agent, decision in ((blocked, "block"), (held, "require_approval"), (rejected, "block")):
        details = (await agent.report("pay", **report)).refused(409, "STEP_NOT_ALLOWED")
        assert details["decision"] == decision
        assert (await agent.step("pay"))["completion_count"] == 0
    house.clock.advance(hours=25)
    (await expired.report("pay", **report)).refused(409, "STEP_NOT_ALLOWED")


async def test_what_people_approved_can_be_completed_without_asking_again(house: Gatehouse) -> None:
    agent = await gated(house, "require_approval")
    (await agent.review("pay", "approve")).ok()
    await agent.complete("pay", output={"n": 1})
    assert (await agent.step("pay"))["completion_count"] == 1
    other = await gated(house, "require_approval")
    (await other.review("pay", "approve")).ok()
    await other.complete("pay", success=False, error="no funds")
    await other.complete("pay")


@pytest.mark.parametrize("verb", ["complete", "fail", "abort", "block", "other input"])
async def test_what_people_approved_can_end_otherwise(house: Gatehouse, verb: str) -> None:
    """Before the agent came back for it; what they said stays in the record."""
    agent = await gated(house, "require_approval")
    (await agent.review("pay", "approve")).ok()
    if verb == "block":
        await agent.rule("block")
        assert (await agent.gate("pay", **AGAIN))["decision"] == "block"
    elif verb == "other input":
        assert (await agent.gate("pay", **AGAIN, step_input={"n": 1}))["decision"] == "require_approval"
    else:
        (await agent.say(verb)).ok()
    first = (await house.api.get("/api/v1/approvals", flow_id=agent.workflow_id)).ok()["approvals"][0]
    assert first["status"] == "approved"


async def test_one_more_completion_after_a_reevaluation_that_allows(house: Gatehouse) -> None:
    """Both stay in the history, and the last is the one that is told."""
    agent = await gated(house)
    await agent.complete("pay", output={"n": 1})
    again = await agent.context("pay", PRIOR, **AGAIN)
    assert (again["completion_count"], again["prior_output"]) == (1, {"n": 1})
    await agent.complete("pay", output={"n": 2})
    await agent.complete("pay", output={"n": 2}, replayed=True)
    (await agent.report("pay", output={"n": 1})).refused(409, "COMPLETION_CONFLICT")
    context = await agent.context("pay", PRIOR)
    assert (context["completion_count"], context["prior_output"]) == (2, {"n": 2})
    reported = await agent.history("pay", "work_succeeded")
    assert [event["data"]["result"]["outputs"] for event in reported] == [{"n": 1}, {"n": 2}]
    assert context["prior_completion_at"] == reported[1]["at"]


async def test_a_reevaluation_that_blocks_takes_nothing_back(house: Gatehouse) -> None:
    """What was done stays done, its report may come again, and there is no other."""
    agent = await gated(house)
    await agent.complete("pay", output={"n": 1})
    await agent.rule("block")
    context = await agent.context("pay", PRIOR, **AGAIN)
    assert (context["prior_completion_status"], context["prior_output"]) == ("completed", {"n": 1})
    await agent.complete("pay", output={"n": 1}, replayed=True)
    (await agent.report("pay", output={"n": 2})).refused(409, "COMPLETION_CONFLICT")


# ------------------------------------------------------------------------------------------------ failures


async def test_a_failure_leaves_the_step_to_be_done(house: Gatehouse) -> None:
    agent = await gated(house)
    await agent.complete("pay", success=False, error="no funds", retriable=True, tokens_in=3)
    step = await agent.step("pay")
    assert (step["completion_count"], step["prior_completion_status"]) == (0, "gated_not_completed")
    [event] = await agent.history("pay", "work_not_completed")
    assert event["data"]["error"] == {"code": "STEP_FAILED", "message": "no funds", "retriable": True}
    assert event["data"]["usage"] == {"tokens_in": 3}
    context = await agent.context("pay", PRIOR)
    assert (context["completion_count"], context["prior_completion_status"]) == (0, "gated_not_completed")
    assert (context["prior_output_available"], context["prior_output"]) == (False, None)


async def test_the_same_failure_again_changes_nothing(house: Gatehouse) -> None:
    agent = await gated(house)
    await agent.complete("pay", success=False, error="no funds")
    before = await agent.step("pay")
    await agent.complete("pay", success=False, error="no funds", replayed=True)
    assert await agent.step("pay") == before
    await agent.complete("pay", success=False, error="another reason")
    assert len((await agent.step("pay"))["history"]) == len(before["history"]) + 1


async def test_success_after_a_failure_is_taken(house: Gatehouse) -> None:
    """With another call of the gate in between, or without: perhaps the failure was the network's."""
    for asks_again in (True, False):
        agent = await gated(house)
        await agent.complete("pay", success=False, error="no funds")
        if asks_again:
            assert (await agent.gate("pay"))["attempt"] == 2
        await agent.complete("pay", output={"n": 1})
        (await agent.report("pay", success=False, error="no funds")).refused(409, "COMPLETION_CONFLICT")
        assert (await agent.step("pay"))["completion_count"] == 1


async def test_every_attempt_may_fail_for_the_same_reason(house: Gatehouse) -> None:
    agent = await gated(house)
    for attempt in (1, 2, 3):
        await agent.complete("pay", success=False, error="no funds")
        assert len(await agent.history("pay", "work_not_completed")) == attempt
        assert (await agent.gate("pay"))["attempt"] == attempt + 1


async def test_an_empty_body_completes(house: Gatehouse) -> None:
    """And an empty body asks."""
    agent = await house.agent()
    path = f"{agent.path}/steps/pay"
    assert (await house.api.post(f"{path}/gate")).ok()["decision"] == "allow"
    assert (await house.api.post(f"{path}/complete")).status == 204
    context = await agent.context("pay", PRIOR)
    assert (context["prior_output_available"], context["prior_output"]) == (True, None)


async def test_usage_is_in_the_history(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.gate("llm", step_type="llm_call", model="m-1", provider="p", tokens_in=7, cost_usd=0.25)
    await agent.complete("llm", tokens_in=8, tokens_out=9, cost_usd=0.5)
    [decided] = await agent.history("llm", "gate_decided")
    assert decided["data"]["facts"]["usage"] == {"model": "m-1", "provider": "p", "tokens_in": 7, "cost_usd": 0.25}
    [done] = await agent.history("llm", "work_succeeded")
    assert done["data"]["usage"] == {"tokens_in": 8, "tokens_out": 9, "cost_usd": 0.5}


async def test_a_failure_that_is_reported_again_can_be_read_back(house: Gatehouse) -> None:
    """When its next attempt is, only the agent knows."""
    agent = await gated(house)
    for error in ("first", "second"):
        assert (await agent.report("pay", success=False, error=error)).status == 204
    flow = (await agent.api.get(f"/api/v1/flows/{agent.workflow_id}")).ok()
    [work] = flow["steps"]["pay"]["work"]
    [attempt] = (await agent.api.get(f"/api/v1/work/{work['work_id']}")).ok()["attempts"]
    assert (attempt["error"]["message"], attempt["next_attempt_at"]) == ("second", None)
