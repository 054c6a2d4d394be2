"""Checkpoints: from which completed step a run can continue, and what becomes of an aborted workflow then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.agents import Agent, Gatehouse, where
from tests.wire import Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRIOR = {"include_prior_output": "true"}


async def checkpoints(agent: Agent) -> list[dict[str, Any]]:
    page = (await agent.api.get(f"{agent.path}/checkpoints")).ok()
    assert page["workflow_id"] == agent.workflow_id
    found: list[dict[str, Any]] = page["checkpoints"]
    return found


async def resume(agent: Agent, checkpoint_id: Any = None, body: Any = None) -> Reply:
    middle = "" if checkpoint_id is None else f"/{checkpoint_id}"
    return await agent.api.post(f"{agent.path}/checkpoints{middle}/resume", body)


async def run(agent: Agent, *steps: str) -> None:
    for step_id in steps:
        await agent.gate(step_id, step_name=step_id.title(), step_type="llm_call")
        await agent.complete(step_id, output={"of": step_id})


async def test_every_gated_step_is_one(house: Gatehouse) -> None:
    agent = await house.agent()
    assert await checkpoints(agent) == []
    await run(agent, "look", "think")
    house.clock.advance(seconds=1)
    await agent.gate("act")
    found = await checkpoints(agent)
    assert [(each["step_id"], each["step_index"], each["is_resumable"]) for each in found] == [
        ("look", 0, True),
        ("think", 1, True),
        ("act", 2, False),
    ]
    assert len({each["id"] for each in found}) == 3
    first, *_, last = found
    assert (first["workflow_id"], first["step_name"], first["step_type"]) == (agent.workflow_id, "Look", "llm_call")
    assert (first["checkpoint_type"], first["gate_decision"], first["resume_count"]) == ("step_gate", "allow", 0)
    assert (last["completed_at"], first["completed_at"]) == (None, (await agent.step("look"))["completed_at"])


async def test_a_run_is_resumed_from_its_last_completed_step_or_from_another(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look", "think")
    await agent.gate("act")
    before = await agent.workflow()
    look, think, act = await checkpoints(agent)
    answer = (await resume(agent)).ok()
    assert (answer["resumed_from_checkpoint"], answer["resumed_from_index"]) == ("think", 1)
    assert (answer["checkpoint_id"], answer["workflow_id"], answer["status"]) == (
        think["id"],
        agent.workflow_id,
        "in_progress",
    )
    assert (answer["new_decision"], answer["decision_source"], answer["reopened"]) == ("allow", "cached", False)
    assert [(await resume(agent, look["id"], {})).ok()["resume_count"] for _ in range(2)] == [1, 2]
    assert [each["resume_count"] for each in await checkpoints(agent)] == [2, 1, 0]
    assert await agent.workflow() == before, "what is in progress stays as it was"
    told = await agent.history("look", "checkpoint_resumed")
    assert [event["data"] for event in told] == [{"by": "local", "reopened": False}] * 2
    details = (await resume(agent, act["id"])).refused(409, "NOT_RESUMABLE")
    assert details == {"workflow_id": agent.workflow_id, "step_id": "act", "status": "in_progress"}


async def test_the_count_survives_new_decisions_and_a_new_completion_has_a_new_id(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look")
    (before,) = await checkpoints(agent)
    (await resume(agent)).ok()
    await agent.gate("look", retry_policy="reevaluate")
    (between,) = await checkpoints(agent)
    assert (between["id"], between["is_resumable"], between["resume_count"]) == (before["id"], True, 1)
    await agent.complete("look", output={"of": "another run"})
    (after,) = await checkpoints(agent)
    assert after["id"] != before["id"]
    assert (after["is_resumable"], after["resume_count"]) == (True, 1)
    (await resume(agent, before["id"])).refused(404, "UNKNOWN_CHECKPOINT")
    assert (await resume(agent, after["id"])).ok()["resume_count"] == 2


async def test_an_aborted_workflow_goes_on(house: Gatehouse) -> None:
    """What was completed stays so, what the abort cancelled is evaluated and done anew."""
    agent = await house.agent()
    await run(agent, "look")
    first = await agent.gate("act", step_input={"n": 1})
    (await agent.say("abort", {"reason": "crashed"})).ok()
    (await agent.ask("look")).refused(409, "WORKFLOW_TERMINAL")
    answer = (await resume(agent)).ok()
    assert (answer["reopened"], answer["resumed_from_checkpoint"], answer["status"]) == (True, "look", "in_progress")
    document = await agent.workflow()
    assert (document["status"], document["error"], document["finished_at"]) == ("in_progress", None, None)
    again = await agent.gate("look", PRIOR)
    assert (again["cached"], again["work_status"]) == (True, "succeeded")
    assert again["retry_context"]["prior_output"] == {"of": "look"}
    (await agent.report("act", output={"late": True})).refused(409, "STEP_NOT_ALLOWED")
    (await agent.report("act", success=False, error="late")).refused(409, "STEP_NOT_ALLOWED")
    (await agent.ask("act", step_input={"n": 2})).refused(409, "STEP_INPUT_MISMATCH")
    second = await agent.gate("act", step_input={"n": 1})
    assert (second["decision"], second["cached"], second["work_status"]) == ("allow", False, "active")
    assert second["work_id"] != first["work_id"]
    assert second["retry_context"]["gate_count"] == 2
    assert second["retry_context"]["prior_completion_status"] == "gated_not_completed"
    assert (await agent.gate("act", step_input={"n": 1}))["cached"], "and once is enough"
    await agent.complete("act", output={"of": "act"})
    (await agent.say("complete")).ok()
    kinds = await house.api.event_types(agent.workflow_id)
    assert [kind for kind in kinds if kind.startswith("flow_")] == [
        *("flow_started", "flow_cancelled"),
        *("flow_redriven", "flow_completed"),
    ]


async def test_it_can_be_aborted_and_resumed_again(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look")
    for count in (1, 2, 3):
        await agent.gate("act")
        (await agent.say("abort")).ok()
        assert (await resume(agent)).ok()["resume_count"] == count
    assert (await agent.gate("act"))["retry_context"]["gate_count"] == 4


async def test_a_policy_that_came_meanwhile_counts_for_what_was_cancelled(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look")
    await agent.gate("act")
    (await agent.say("abort")).ok()
    await agent.rule({"type": "block", "reason": "not today"}, match={"step_id": "act"})
    (await resume(agent)).ok()
    blocked = await agent.gate("act")
    assert (blocked["decision"], blocked["cached"], blocked["reason"]) == ("block", False, "not today")
    (await agent.report("act")).refused(409, "STEP_NOT_ALLOWED")


async def test_a_policy_against_repeats_does_not_keep_a_run_from_going_on(house: Gatehouse) -> None:
    """The completed step is not run again, so nothing is evaluated for it."""
    agent = await house.agent()
    await agent.rule("block", where("step.prior_completion_status", "equals", "completed"))
    await run(agent, "pay")
    (await agent.say("abort")).ok()
    assert (await resume(agent)).ok()["new_decision"] == "allow"
    assert (await agent.gate("pay", retry_policy="reevaluate"))["decision"] == "block"
    (checkpoint,) = await checkpoints(agent)
    assert checkpoint["is_resumable"], "the completion is recorded all the same"


async def test_an_approval_that_became_void_is_requested_anew(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look")
    await agent.rule("require_approval", match={"step_id": "act"})
    held = await agent.gate("act")
    (await resume(agent)).refused(409, "APPROVAL_PENDING")
    assert [each["is_resumable"] for each in await checkpoints(agent)] == [False, False]
    (await agent.say("abort")).ok()
    assert [each["is_resumable"] for each in await checkpoints(agent)] == [True, False]
    assert (await agent.step("act"))["approval_status"] is None, "void"
    (await resume(agent)).ok()
    again = await agent.gate("act")
    assert (again["decision"], again["cached"], again["approval_status"]) == ("require_approval", False, "pending")
    assert again["approval_id"] != held["approval_id"]
    (await agent.review("act", "approve")).ok()
    assert (await agent.gate("act"))["decision"] == "allow"
    await agent.complete("act")
    _, act = await checkpoints(agent)
    assert (act["checkpoint_type"], act["gate_decision"], act["is_resumable"]) == ("approval_boundary", "allow", True)
    assert act["gate_reason"] == "Approved by local"


async def test_an_expired_approval_shows_its_reason(house: Gatehouse) -> None:
    agent = await house.agent()
    await agent.rule({"type": "require_approval", "expires_in": "1h"})
    await agent.gate("act")
    house.clock.advance(hours=2)
    await house.api.until_event(agent.workflow_id, "approval_expired")
    step = await agent.step("act")
    assert (step["decision"], step["approval_status"], step["approved_by"]) == ("block", None, None)
    assert step["decision_reason"].startswith("Expired: not approved before ")


async def test_a_rejected_step_ends_the_run(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look")
    await agent.rule("require_approval", match={"step_id": "act"})
    await agent.gate("act")
    (await agent.review("act", "reject")).ok()
    for _ in range(2):
        details = (await resume(agent)).refused(409, "STEP_REJECTED")
        assert details == {"workflow_id": agent.workflow_id, "steps": ["act"]}
        assert not any(each["is_resumable"] for each in await checkpoints(agent))
        await agent.say("abort")
    assert (await agent.workflow())["status"] == "aborted", "and stays so"


@pytest.mark.parametrize(("verb", "status"), [("complete", "completed"), ("fail", "failed")])
async def test_what_is_final_is_not_resumed(house: Gatehouse, verb: str, status: str) -> None:
    agent = await house.agent()
    await run(agent, "look")
    (await agent.say(verb)).ok()
    (checkpoint,) = await checkpoints(agent)
    assert not checkpoint["is_resumable"]
    before = await agent.workflow()
    for checkpoint_id in (None, checkpoint["id"]):
        details = (await resume(agent, checkpoint_id)).refused(409, "NOT_RESUMABLE")
        assert details == {"workflow_id": agent.workflow_id, "step_id": "look", "status": status}
    assert await agent.workflow() == before


async def test_a_run_without_a_completed_step_cannot_be_resumed(house: Gatehouse) -> None:
    agent = await house.agent()
    (await resume(agent)).refused(409, "NOT_RESUMABLE")
    await agent.gate("look")
    await agent.complete("look", success=False, error="no")
    assert (await resume(agent)).refused(409, "NOT_RESUMABLE") == {"workflow_id": agent.workflow_id}


async def test_ids_that_name_nothing(house: Gatehouse) -> None:
    agent, other = await house.agent(), await house.agent()
    await run(agent, "look")
    await run(other, "look")
    (foreign,) = await checkpoints(other)
    for odd in (foreign["id"], 0, "-1", "x", "1.5", "9" * 18, "9" * 40, "%00", "%F0%9F%92%B8", "1%2F2"):
        reply = await resume(agent, odd)
        assert (reply.status, reply.code) in ((404, "UNKNOWN_CHECKPOINT"), (400, "BAD_REQUEST")), (odd, reply.content)
    for absent in (Agent(house.api, "wf_nothing", ""), Agent(house.api, "%00", "")):
        assert (await house.api.get(f"{absent.path}/checkpoints")).status in (400, 404)
        assert (await resume(absent)).status in (400, 404)
    wrong: list[Any] = [[], "text", 7, True]
    for body in wrong:
        (await resume(agent, None, body)).refused(422, "INVALID_INPUT")


async def test_a_flow_of_the_engine_has_none(house: Gatehouse) -> None:
    await house.api.put_step("driven", "http://127.0.0.1:9/nobody", work={"max_retries": 0})
    flow = Agent(house.api, await house.api.start("driven"), "")
    (await house.api.get(f"{flow.path}/checkpoints")).refused(404, "UNKNOWN_WORKFLOW")
    (await resume(flow)).refused(404, "UNKNOWN_WORKFLOW")


async def test_two_resumes_at_once_reopen_it_once(house: Gatehouse) -> None:
    agent = await house.agent()
    await run(agent, "look")
    (await agent.say("abort")).ok()
    answers = [reply.ok() for reply in await asyncio.gather(*(resume(agent) for _ in range(5)))]
    assert sorted(answer["resume_count"] for answer in answers) == [1, 2, 3, 4, 5]
    assert [answer["reopened"] for answer in answers].count(True) == 1
