"""Seed 000, statement by statement: what the three states of a prior completion mean, and its output."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.agents import Agent, Gatehouse

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRIOR = {"include_prior_output": "true"}


async def completed(house: Gatehouse, **output: Any) -> Agent:
    """An agent whose step is done."""
    agent = await house.agent()
    await agent.gate("step-2")
    await agent.complete("step-2", output=output)
    return agent


# ------------------------------------------------------------------------------------------------ the three states


async def test_status_none(house: Gatehouse) -> None:
    """
    > "none" | First gate call for this (workflow_id, step_id). No prior attempt exists. |
    """
    one, other = await house.agent(), await house.agent()
    await one.gate("step-2")
    assert (await one.context("step-3"))["prior_completion_status"] == "none"
    assert (await other.context("step-2"))["prior_completion_status"] == "none"


async def test_status_completed(house: Gatehouse) -> None:
    """
    > "completed" | A prior gate landed and /complete was successfully called for it. The step has already produced
    > output, which can be retrieved via ?include_prior_output=true. |
    """
    agent = await completed(house, transfer_id="txn-88f210")
    context = await agent.context("step-2", PRIOR)
    assert context["prior_completion_status"] == "completed"
    assert context["prior_output"] == {"transfer_id": "txn-88f210"}


async def test_status_gated_not_completed(house: Gatehouse) -> None:
    """
    > "gated_not_completed" | A prior gate landed but /complete never followed. The earlier decision is known, but the
    > agent either crashed before calling /complete, is still working, or decided not to proceed. Note that AxonFlow
    > cannot distinguish these three cases — the Workflow Control Plane is cooperative, and only learns about execution
    > outcomes when the agent reports them. |

    Here it can: an agent that still works has a claim that lives, one that gave up has said so, and of one that crashed
    the claim lapses. The field says the same of all three.
    """
    agent = await house.agent()
    mine = {"lease_seconds": 60, "holder": "me"}
    for step_id in ("works", "crashed"):
        await agent.gate(step_id, claim=mine if step_id == "works" else {"lease_seconds": 0.1, "holder": "me"})
    await agent.gate("gave-up")
    await agent.complete("gave-up", success=False, error="no funds")
    house.clock.advance(seconds=1)
    steps = {step["step_id"]: step for step in (await agent.workflow())["steps"]}
    assert steps["works"]["claim"]["holder"] == "me"
    assert steps["crashed"]["claim"] is None
    assert steps["gave-up"]["error"]["message"] == "no funds"
    for step_id in steps:
        context = await agent.context(step_id, claim=mine)
        assert context["prior_completion_status"] == "gated_not_completed"
        assert context["last_decision"] == "allow"


async def test_a_retry_is_any_call_after_the_first(house: Gatehouse) -> None:
    """
    > A retry is any gate call with gate_count > 1. From there, the shape of prior_completion_status tells you what to
    > do:

    > # Step already finished on a previous attempt. Safe to short-circuit
    > # and return the prior output to your workflow.

    > # Prior gate landed but no /complete. Decide whether to re-run or
    > # bail based on your own state. AxonFlow will re-gate, but the
    > # policy decision in last_decision tells you what was said before.
    """
    agent = await house.agent()
    await agent.gate("step-2")
    unfinished = await agent.context("step-2")
    assert (unfinished["gate_count"], unfinished["prior_completion_status"]) == (2, "gated_not_completed")
    assert unfinished["last_decision"] == "allow"
    await agent.complete("step-2", output={"n": 1})
    finished = await agent.context("step-2", PRIOR)
    assert (finished["gate_count"], finished["prior_completion_status"]) == (3, "completed")
    assert finished["prior_output"] == {"n": 1}


async def test_the_session_retry_reuses_the_output(house: Gatehouse) -> None:
    """
    > In the session-retry case — upstream caller re-fires /gate for the same step after /complete already landed —
    > prior_completion_status == "completed" tells you to skip re-execution and reuse the earlier output. That is the
    > signal that lets you prevent duplicate side-effects on the caller's side, assuming you have access to the prior
    > output.
    """
    agent = await completed(house, transfer_id="txn-88f210")
    answer = await agent.gate("step-2", PRIOR)
    assert answer["retry_context"]["prior_completion_status"] == "completed"
    assert answer["retry_context"]["prior_output"] == {"transfer_id": "txn-88f210"}
    assert (await agent.step("step-2"))["work_status"] == "succeeded", "asking does not open it again"


# ------------------------------------------------------------------------------------------------ prior_output

CALL = {"step_name": "Transfer funds", "step_type": "tool_call"}


@pytest.mark.parametrize("query", [{}, {"include_prior_output": "false"}, {"include_prior_output": "1"}])
async def test_the_output_is_given_only_if_it_is_asked_for(house: Gatehouse, query: dict[str, str]) -> None:
    """
    > By default, prior_output is null even when a prior attempt completed. Prior step output may be large or contain
    > sensitive data, so retrieval is opt-in via a query parameter:

    > In every other case — ?include_prior_output=false or omitted, no prior completion, or first call on this step —
    > prior_output is null.
    """
    agent = await completed(house, secret="s")
    reply = await agent.ask("step-2", query, **CALL)
    assert reply.ok()["retry_context"]["prior_output"] is None
    assert reply.body["retry_context"]["prior_output_available"] is True
    assert b"secret" not in reply.content


async def test_the_output_is_the_object_that_was_completed_with(house: Gatehouse) -> None:
    """
    > "http://localhost:8080/api/v1/workflows/wf_abc123/steps/step-2/gate?include_prior_output=true" \\

    > "step_name": "Transfer funds", "step_type": "tool_call"

    > When ?include_prior_output=true and prior_completion_status == "completed", the prior_output field is populated
    > with the object that was passed to /complete on the earlier attempt.
    """
    output = {"transfer_id": "txn-88f210", "deep": [{"n": 12345678901234567890}, None, 0.5], "": "ü"}
    agent = await completed(house, **output)
    assert (await agent.context("step-2", PRIOR, **CALL))["prior_output"] == output


async def test_asking_for_the_output_on_the_first_call_is_harmless(house: Gatehouse) -> None:
    """
    > Passing ?include_prior_output=true on the very first call for a step is a harmless no-op: there is no prior
    > attempt to surface.
    """
    agent = await house.agent()
    asked, plain = await agent.gate("step-2", PRIOR), await agent.gate("step-3")
    assert asked.keys() == plain.keys()
    assert asked["retry_context"]["prior_output"] is None
    assert asked["retry_context"]["prior_completion_status"] == "none"


async def test_a_caller_can_look_first(house: Gatehouse) -> None:
    """
    > prior_output_available always reflects whether a prior output could be returned, independent of the query
    > parameter. A caller can check prior_output_available first to decide whether to re-issue the gate with
    > ?include_prior_output=true.
    """
    agent = await completed(house, n=1)
    assert (await agent.context("step-2"))["prior_output_available"] is True
    assert (await agent.context("step-2", PRIOR))["prior_output"] == {"n": 1}
    assert (await agent.context("step-3", PRIOR))["prior_output_available"] is False
    assert (await agent.context("step-3", PRIOR))["prior_output_available"] is False
