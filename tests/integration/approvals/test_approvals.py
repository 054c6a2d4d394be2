"""Approvals at the gate: which reviewers may give one, how often, for what and until when, and what it allows."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.people import (
    KEYED,
    Document,
    again,
    approval,
    approvals,
    approve,
    asked,
    begin,
    call_gate,
    clients,
    complete,
    decided,
    gate,
    policy,
    put_policy,
    reject,
    step_path,
)
from tests.integration.scenario import NO_SWEEPS
from tests.running import Node, StartNode
from tests.wire import Api, Reply, moment, seconds_from_now

INPUT = {"amount": 100}
Team = dict[str, Api]


@pytest.fixture
async def keyed(start_node: StartNode) -> Node:
    return await start_node(**KEYED)


@pytest.fixture
async def team(keyed: Node, session: aiohttp.ClientSession) -> Team:
    """A client for each key of an engine at which the step ``pay`` needs an approval."""
    team = clients(session, keyed.url)
    await put_policy(team["ada"], "payments", policy("pay", reason="money leaves", severity="high"))
    return team


async def held(team: Team) -> tuple[str, str]:
    """A workflow whose payment waits for people: its id, and that of the approval."""
    workflow_id = await begin(team["olga"])
    answer = await gate(team["olga"], workflow_id, step_input=INPUT)
    assert (answer["decision"], answer["approval_status"]) == ("require_approval", "pending")
    return workflow_id, answer["approval_id"]


async def test_an_approval_is_listed_with_all_that_a_reviewer_must_know_and_lets_the_step_go(team: Team) -> None:
    agent, reviewer = team["olga"], team["rita"]
    workflow_id = await begin(agent)
    tool = {"tool_name": "bank", "tool_input": {"to": "acme"}}
    answer = await gate(agent, workflow_id, step_input=INPUT, tool_context=tool)
    (shown,) = await approvals(team["vic"], status="pending")
    arguments = {**INPUT, "tool_context": {**tool, "tool_type": None}}
    assert (shown["approval_id"], shown["arguments"]) == (answer["approval_id"], arguments)
    assert (shown["reason"], shown["severity"], shown["requester"]) == ("money leaves", "high", "olga")
    assert [(each["policy_id"], each["version"]) for each in shown["policies"]] == [("payments", 1)]
    assert (shown["workflow_id"], shown["step_id"], shown["attempt"]) == (workflow_id, "pay", 1)
    assert 86_000 < seconds_from_now(shown["expires_at"]) < 86_401
    assert [event["type"] for event in shown["history"]][-1] == "gate_decided"
    assert [each["approval_id"] for each in await approvals(reviewer, flow_id=workflow_id)] == [answer["approval_id"]]
    assert await approvals(reviewer, flow_id="wf_other") == await approvals(reviewer, status="approved") == []
    (await reviewer.get("/api/v1/approvals", status="open")).refused(422, "INVALID_INPUT")
    pending = (await reviewer.get("/api/v1/workflows/approvals/pending")).ok()
    (known,) = pending["pending_approvals"]
    assert (pending["count"], known["workflow_id"], known["step_id"]) == (1, workflow_id, "pay")
    assert (known["step_input"], known["decision"]) == (arguments, "require_approval")
    (await complete(agent, workflow_id)).refused(409, "STEP_NOT_ALLOWED")
    (await agent.post(f"/api/v1/workflows/{workflow_id}/complete")).refused(409, "APPROVAL_PENDING")
    told = (await approve(reviewer, shown["approval_id"], "called them")).ok()
    assert (told["status"], told["approvals_given"], told["decided_at"]) == ("approved", 1, told["reviews"][0]["at"])
    answer = await gate(agent, workflow_id, step_input=INPUT, tool_context=tool)
    assert (answer["decision"], answer["cached"], answer["reason"]) == ("allow", True, "Approved by rita: called them")
    assert (await complete(agent, workflow_id)).status == 204
    assert await decided(agent, workflow_id) == [("approval_approved", "rita", "called them")]
    (event,) = [event for event in await agent.events(workflow_id) if event["type"] == "approval_approved"]
    assert (event["at"], event["step_id"]) == (told["decided_at"], "pay")


async def test_of_two_reviewers_at_once_exactly_one_lands(team: Team) -> None:
    """Whatever each reviewer wants, and by whichever of the two paths."""
    for turn in range(4):
        workflow_id, approval_id = await held(team)
        replies = await asyncio.gather(
            approve(team["rita"], approval_id, "yes"),
            team["rob"].post(step_path(workflow_id, "pay", "approve" if turn % 2 else "reject"), {}),
            approve(team["ada"], approval_id),
        )
        assert sorted(reply.status for reply in replies) == [200, 409, 409]
        refused = [reply.refused(409, "NOT_PENDING") for reply in replies if reply.status == 409]
        now = await approval(team["vic"], approval_id)
        assert {details["status"] for details in refused} == {now["status"]}
        assert len(now["reviews"]) == 1
        assert len(await decided(team["vic"], workflow_id)) == 1


async def test_two_approvals_need_two_different_keys_and_one_rejection_is_enough(team: Team) -> None:
    await put_policy(team["ada"], "two", policy("pay", approvals=2))
    workflow_id, approval_id = await held(team)
    first = (await approve(team["rita"], approval_id)).ok()
    assert (first["status"], first["approvals_given"], first["approvals_needed"]) == ("pending", 1, 2)
    (await approve(team["rita"], approval_id)).refused(409, "SAME_REVIEWER")
    path = step_path(workflow_id, "pay", "approve")
    (await team["rita"].post(path, {})).refused(409, "SAME_REVIEWER")
    assert (await gate(team["olga"], workflow_id, step_input=INPUT))["decision"] == "require_approval"
    (await complete(team["olga"], workflow_id)).refused(409, "STEP_NOT_ALLOWED")
    answer = (await team["rob"].post(path, {"comment": "fine"})).ok()
    assert (answer["approval_status"], answer["decision"], answer["approved_by"]) == ("approved", "allow", "rob")
    assert (await gate(team["olga"], workflow_id, step_input=INPUT))["decision"] == "allow"
    expected = [("approval_reviewed", "rita", None), ("approval_approved", "rob", "fine")]
    assert await decided(team["vic"], workflow_id) == expected
    workflow_id, approval_id = await held(team)
    (await approve(team["rita"], approval_id)).ok()
    assert (await reject(team["rob"], approval_id, "no")).ok()["status"] == "rejected"
    (await approve(team["ada"], approval_id)).refused(409, "NOT_PENDING")
    assert (await gate(team["olga"], workflow_id, step_input=INPUT))["decision"] == "block"
    for _ in range(3):  # both at once, and each of them twice
        _, approval_id = await held(team)
        replies = await asyncio.gather(*(approve(team[name], approval_id) for name in ("rita", "rob", "rita", "rob")))
        told = [reply.ok()["status"] for reply in replies if reply.status == 200]
        assert len(told) == 2
        assert "approved" in told
        now = await approval(team["vic"], approval_id)
        assert sorted(review["by"] for review in now["reviews"]) == ["rita", "rob"]


async def test_requester_and_starter_may_not_approve_where_that_is_separated(team: Team) -> None:
    await put_policy(team["ada"], "payments", policy("pay", separate_requester=True))
    workflow_id = await begin(team["ada"])
    answer = await gate(team["olga"], workflow_id)  # begun by one, asked for by another
    (await approve(team["ada"], answer["approval_id"])).refused(403, "SELF_APPROVAL")
    path = step_path(workflow_id, "pay", "approve")
    (await team["ada"].post(path, {"comment": "I am rita"})).refused(403, "SELF_APPROVAL")
    (await team["rita"].post(path)).ok()
    workflow_id = await begin(team["olga"])
    answer = await gate(team["ada"], workflow_id)  # the caller of the gate, this time
    (await approve(team["ada"], answer["approval_id"])).refused(403, "SELF_APPROVAL")
    assert (await reject(team["ada"], answer["approval_id"])).ok()["status"] == "rejected", "a requester may reject"
    assert await decided(team["vic"], workflow_id) == [("approval_rejected", "ada", None)]


async def test_the_key_alone_names_the_reviewer_and_each_role_does_its_own(team: Team) -> None:
    workflow_id, approval_id = await held(team)
    path = f"/api/v1/approvals/{approval_id}/approve"
    for forged in ({"approved_by": "rob"}, {"reviewer": "rob"}, {"by": "rob", "comment": "x"}):
        (await team["rita"].post(path, forged)).refused(422, "INVALID_INPUT")
    for name in ("olga", "vic"):
        (await team[name].post(path, {})).refused(403, "FORBIDDEN")
        (await team[name].post(step_path(workflow_id, "pay", "reject"), {})).refused(403, "FORBIDDEN")
    (await Api(team["vic"].session, team["vic"].url).post(path)).refused(401, "UNAUTHENTICATED")
    for name in ("rita", "vic"):
        (await call_gate(team[name], workflow_id)).refused(403, "FORBIDDEN")
        (await team[name].post("/api/v1/workflows", {"workflow_name": "w"})).refused(403, "FORBIDDEN")
        definition = policy("pay", "allow")
        reply = await team[name].request("PUT", "/api/v1/policies/payments", json=definition)
        reply.refused(403, "FORBIDDEN")
    reply = await team["rita"].post(path, {"comment": "rob says yes"}, **{"X-User": "rob", "X-Forwarded-User": "rob"})
    assert [review["by"] for review in reply.ok()["reviews"]] == ["rita"]
    assert await decided(team["vic"], workflow_id) == [("approval_approved", "rita", "rob says yes")]


async def test_a_rejection_blocks_that_step_only_and_cannot_be_got_around(team: Team) -> None:
    agent = team["olga"]
    workflow_id, approval_id = await held(team)
    (await reject(team["rita"], approval_id, "wrong account")).ok()
    answer = await gate(agent, workflow_id, step_input=INPUT)
    assert (answer["decision"], answer["reason"]) == ("block", "Rejected by rita: wrong account")
    (await complete(agent, workflow_id)).refused(409, "STEP_NOT_ALLOWED")
    reply = await call_gate(agent, workflow_id, step_input=INPUT, retry_policy="reevaluate")
    assert reply.refused(409, "APPROVAL_HOLD")["approval_status"] == "rejected"
    (await agent.post(f"/api/v1/workflows/{workflow_id}/resume")).refused(409, "STEP_REJECTED")
    assert (await gate(agent, workflow_id, "look"))["decision"] == "allow"
    assert (await complete(agent, workflow_id, "look")).status == 204
    answer = await again(agent, workflow_id, step_input={"amount": 5})
    assert answer["decision"] == "require_approval", "about something else, people are asked anew"
    (await approve(team["rita"], answer["approval_id"])).ok()
    (await agent.post(f"/api/v1/workflows/{workflow_id}/resume")).ok()
    reply = await team["rita"].post(step_path(workflow_id, "look", "approve"))
    reply.refused(409, "NO_APPROVAL_NEEDED")
    (await team["rita"].post(step_path(workflow_id, "never", "approve"))).refused(404, "UNKNOWN_STEP")
    (await approve(team["rita"], "apr_unknown")).refused(404, "UNKNOWN_APPROVAL")


async def test_other_arguments_make_the_question_void_and_ask_another(team: Team) -> None:
    agent = team["olga"]
    workflow_id, approval_id = await held(team)
    reply = await call_gate(agent, workflow_id, step_input=INPUT, retry_policy="reevaluate")
    assert reply.refused(409, "APPROVAL_HOLD")["approval_id"] == approval_id
    (await call_gate(agent, workflow_id, step_input={"amount": 1})).refused(409, "STEP_INPUT_MISMATCH")
    answer = await again(agent, workflow_id, step_input={"amount": 1_000_000})
    assert (answer["decision"], answer["approval_status"]) == ("require_approval", "pending")
    assert answer["approval_id"] != approval_id
    assert (await approve(team["rita"], approval_id)).refused(409, "NOT_PENDING")["status"] == "void"
    assert (await approval(team["vic"], approval_id))["status"] == "void"
    (shown,) = await asked(team["vic"], workflow_id)
    assert (shown["approval_id"], shown["arguments"]) == (answer["approval_id"], {"amount": 1_000_000})
    assert answer["retry_context"]["gate_count"] == 2, "what was refused is not counted"
    (await team["rita"].post(step_path(workflow_id, "pay", "approve"))).ok()
    assert (await approval(team["vic"], answer["approval_id"]))["status"] == "approved"
    assert (await gate(agent, workflow_id, step_input={"amount": 1_000_000}))["decision"] == "allow"
    workflow_id, approval_id = await held(team)
    (await agent.post(f"/api/v1/workflows/{workflow_id}/abort", {"reason": "changed my mind"})).ok()
    assert (await approve(team["rita"], approval_id)).refused(409, "NOT_PENDING")["status"] == "void"


async def test_an_approval_expires_by_the_sweep_and_another_call_asks_again(
    start_node: StartNode, session: aiohttp.ClientSession
) -> None:
    clock = MovableClock()
    team = clients(session, (await start_node(clock, **KEYED)).url)
    await put_policy(team["ada"], "payments", policy("pay", expires_in="10m", approvals=2))
    workflow_id, approval_id = await held(team)
    (await approve(team["rita"], approval_id)).ok()
    clock.advance(minutes=9)
    (await gate(team["olga"], workflow_id, "look"))
    assert (await approval(team["vic"], approval_id))["status"] == "pending"
    clock.advance(minutes=1)

    async def expired() -> bool:
        return bool((await approval(team["vic"], approval_id))["status"] == "expired")

    await eventually(expired, what="the end of the approval")
    (await approve(team["rob"], approval_id)).refused(409, "APPROVAL_EXPIRED")
    (await reject(team["rob"], approval_id)).refused(409, "APPROVAL_EXPIRED")
    answer = await gate(team["olga"], workflow_id, step_input=INPUT)
    assert (answer["decision"], answer["approval_status"]) == ("block", "expired")
    assert await decided(team["vic"], workflow_id) == [
        ("approval_reviewed", "rita", None),
        ("approval_expired", None, None),
    ]
    document = await approval(team["vic"], approval_id)
    assert moment(document["decided_at"]) >= moment(document["expires_at"])
    await put_policy(team["ada"], "payments", policy("pay", "allow"))
    answer = await again(team["olga"], workflow_id, step_input=INPUT)
    assert answer["decision"] == "require_approval", "silence is not a way around people"
    assert answer["approval_id"] != approval_id


async def test_an_approval_between_deadline_and_sweep_is_too_late(
    start_node: StartNode, session: aiohttp.ClientSession
) -> None:
    """And one that races the sweep: exactly one of them wins, and everything else tells of that one."""
    clock = MovableClock()
    node = await start_node(clock, **KEYED, **NO_SWEEPS)
    team, approvals = clients(session, node.url), node.engine.engine.approvals
    await put_policy(team["ada"], "payments", policy("pay", expires_in="10m"))
    workflow_id, approval_id = await held(team)
    clock.advance(minutes=10)
    details = (await approve(team["rita"], approval_id)).refused(409, "APPROVAL_EXPIRED")
    assert details["status"] == "expired"
    (await team["rita"].post(step_path(workflow_id, "pay", "reject"))).refused(409, "APPROVAL_EXPIRED")
    assert (await gate(team["olga"], workflow_id, step_input=INPUT))["decision"] == "require_approval"
    assert await approvals.expire(clock(), 10) == 1
    for margin_ms in (0, 8, 16, 40):
        workflow_id, approval_id = await held(team)
        clock.advance(milliseconds=600_000 - margin_ms)

        async def sweep() -> None:
            await eventually(lambda: approvals.expire(clock(), 10), within=0.1, what="an end")

        reply, _ = await asyncio.gather(approve(team["rita"], approval_id), sweep(), return_exceptions=True)
        assert isinstance(reply, Reply)
        status = (await approval(team["vic"], approval_id))["status"]
        assert status == ("approved" if reply.status == 200 else "expired"), reply.content
        decision = (await gate(team["olga"], workflow_id, step_input=INPUT))["decision"]
        assert decision == ("allow" if status == "approved" else "block")
        assert [kind for kind, _, _ in await decided(team["vic"], workflow_id)] == [f"approval_{status}"]


async def test_what_people_agreed_to_may_be_done_without_asking_again(team: Team) -> None:
    """The agent may have waited for the approval itself; its report is taken, whichever it is."""
    agent = team["olga"]
    workflow_id, approval_id = await held(team)
    (await approve(team["rita"], approval_id)).ok()
    assert (await complete(agent, workflow_id, output={"paid": 1})).status == 204
    assert (await approval(team["vic"], approval_id))["status"] == "approved"
    workflow_id, approval_id = await held(team)
    (await approve(team["rita"], approval_id)).ok()
    assert (await complete(agent, workflow_id, success=False, error="the bank is closed")).status == 204
    answer = await gate(agent, workflow_id, step_input=INPUT)
    assert (answer["decision"], answer["retry_context"]["prior_completion_status"]) == ("allow", "gated_not_completed")
    (await agent.post(f"/api/v1/workflows/{workflow_id}/abort")).ok()
    assert (await approval(team["vic"], approval_id))["status"] == "approved", "what they decided stands"


async def test_what_happens_at_one_moment_is_decided_one_after_the_other(team: Team) -> None:
    """The gate, people and the agent's report share a commit here: each sees what the one before has done."""
    agent = team["olga"]
    for _ in range(4):
        workflow_id = await begin(agent)
        assert (await gate(agent, workflow_id, "look"))["decision"] == "allow"
        await put_policy(team["ada"], "looks", policy("look"))
        path = step_path(workflow_id, "look", "approve")
        replies = await asyncio.gather(
            call_gate(agent, workflow_id, "look", retry_policy="reevaluate"),
            team["rita"].post(path),
            call_gate(agent, workflow_id, "look"),
            complete(agent, workflow_id, "look", success=False, error="later"),
            team["rob"].post(path),
        )
        assert {reply.status for reply in replies} <= {200, 204, 409}, [reply.content for reply in replies]
        assert replies[0].ok()["decision"] == "require_approval"
        assert sum(reply.status == 200 for reply in (replies[1], replies[4])) <= 1
        assert (await team["ada"].request("DELETE", "/api/v1/policies/looks")).status == 204


async def test_reevaluating_always_allows_once_for_each_approval(team: Team) -> None:
    agent = team["olga"]
    workflow_id, approval_id = await held(team)
    (await approve(team["rita"], approval_id)).ok()
    answer = await again(agent, workflow_id, step_input=INPUT)
    assert (answer["decision"], answer["decision_source"], answer["approval_id"]) == ("allow", "fresh", approval_id)
    assert answer["reason"].startswith("Approved by rita")
    assert (await complete(agent, workflow_id, success=False, error="the bank is closed")).status == 204
    answer = await again(agent, workflow_id, step_input=INPUT)
    assert answer["decision"] == "require_approval", "they agreed to one attempt, and that was made"
    (await approve(team["rita"], answer["approval_id"])).ok()
    await put_policy(team["ada"], "closed", {"name": "closed", "action": {"type": "block", "reason": "closed today"}})
    answer = await again(agent, workflow_id, step_input=INPUT)
    assert (answer["decision"], answer["reason"]) == ("block", "closed today")


async def test_pending_approvals_name_their_workflow_and_step(team: dict[str, Api], endpoint: StepEndpoint) -> None:
    """Page by page, oldest first, with the total; a flow that the engine drives has its goals for a name."""
    await put_policy(team["ada"], "asked", policy("act-*"))
    agent, reviewer = team["olga"], team["rita"]
    workflow_id = await begin(agent, workflow_name="refund of 7")
    await gate(agent, workflow_id, "look")
    for number in (1, 2):
        named = {"step_name": f"Act {number}", "step_type": "llm_call"}
        await gate(agent, workflow_id, f"act-{number}", **named, step_input={"n": number})
    await team["ada"].put_step("driven", endpoint.url("/driven"), control={"approval": {"approvals": 1}})
    flow_id = await agent.start("driven")
    await asked(reviewer, flow_id)

    async def page(**params: str) -> Document:
        found: Document = (await reviewer.get("/api/v1/workflows/approvals/pending", **params)).ok()
        return found

    whole = await page(tenant="7")
    assert (whole["count"], whole["total"], whole["limit"], whole["offset"]) == (3, 3, 20, 0)
    assert [
        (each["workflow_id"], each["workflow_name"], each["step_id"], each["step_index"], each["step_name"])
        for each in whole["pending_approvals"]
    ] == [
        (workflow_id, "refund of 7", "act-1", 1, "Act 1"),
        (workflow_id, "refund of 7", "act-2", 2, "Act 2"),
        (flow_id, "driven", "driven", 0, None),
    ]
    first = whole["pending_approvals"][0]
    assert (first["step_type"], first["step_input"], first["approval_status"]) == ("llm_call", {"n": 1}, "pending")
    seen = []
    for offset in range(4):
        part = await page(limit="1", offset=str(offset))
        assert (part["total"], part["count"], part["has_more"]) == (3, int(offset < 3), offset < 2)
        seen += part["pending_approvals"]
    assert seen == whole["pending_approvals"]
    (await approve(reviewer, first["approval_id"])).ok()
    assert [(each["total"], each["count"]) for each in (await page(), await page(offset="1"))] == [(2, 2), (2, 1)]
    for wrong in ({"offset": "-1"}, {"limit": "0"}, {"offset": "x"}):
        (await reviewer.get("/api/v1/workflows/approvals/pending", **wrong)).refused(422, "INVALID_INPUT")
