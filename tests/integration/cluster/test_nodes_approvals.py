"""Approvals and policies with two nodes on one PostgreSQL: every call works at either node."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.eventually import eventually
from tests.integration.people import (
    KEYED,
    approval,
    approve,
    asked,
    begin,
    clients,
    complete,
    decided,
    gate,
    policy,
    put_policy,
    reject,
)
from tests.integration.scenario import PATH, STEP
from tests.integration.several_nodes import ONLY_BY_WORD, start_nodes, succeed
from tests.running import Connect, StartNode

pytestmark = pytest.mark.postgresql_only

TURNS = 4


async def test_of_two_reviewers_at_two_nodes_exactly_one_lands_and_the_work_is_sent_once(
    start_node: StartNode, session: aiohttp.ClientSession, endpoint: StepEndpoint
) -> None:
    nodes = await start_nodes(start_node, 2, **ONLY_BY_WORD, **KEYED)
    here, there = (clients(session, node.url) for node in nodes)
    await put_policy(here["ada"], "payments", policy("pay"))
    await here["ada"].put_step(STEP, endpoint.url(PATH), control={"approval": {}})
    flows = []
    for turn in range(TURNS):
        workflow_id = await begin(here["olga"])
        gated = (await gate(there["olga"], workflow_id))["approval_id"]
        flow_id = await here["olga"].start(STEP)
        (question,) = await asked(there["vic"], flow_id)
        sent = question["approval_id"]
        other = reject if turn == 0 else approve
        replies = await asyncio.gather(
            approve(here["rita"], gated),
            other(there["rob"], gated),
            approve(there["rita"], sent),
            approve(here["rob"], sent),
        )
        for pair in (replies[:2], replies[2:]):
            assert sorted(reply.status for reply in pair) == [200, 409]
            for reply in pair:
                assert reply.status == 200 or reply.refused(409, "NOT_PENDING")
        for each in (workflow_id, flow_id):
            assert len(await decided(here["vic"], each)) == 1
        decision = (await gate(here["olga"], workflow_id))["decision"]
        status = (await approval(there["vic"], gated))["status"]
        assert (status, decision) in {("approved", "allow"), ("rejected", "block")}
        reply = await complete(there["olga"], workflow_id)
        assert reply.status == 204 if decision == "allow" else reply.refused(409, "STEP_NOT_ALLOWED")
        flows.append(flow_id)
    for flow_id in flows:
        await here["olga"].until_acknowledged(flow_id)
    assert sorted(each.metadata["flow_id"] for each in endpoint.requests(PATH)) == sorted(flows)
    for received in endpoint.requests(PATH):
        await succeed(there["olga"], received)


async def test_an_approval_at_one_node_and_the_sweep_of_another_do_not_both_win(
    start_node: StartNode, connect: Connect
) -> None:
    clock = MovableClock()
    nodes = await start_nodes(start_node, 2, clock=clock, **ONLY_BY_WORD)
    here, there = map(connect, nodes)
    sweeper = nodes[1].engine.engine.approvals
    await put_policy(here, "payments", policy("pay", expires_in="2m"))
    for margin_ms in (8, 20, 32, 44):
        workflow_id = await begin(here)
        question = (await gate(here, workflow_id))["approval_id"]
        clock.advance(milliseconds=120_000 - margin_ms)

        async def sweep() -> None:
            await eventually(lambda: sweeper.expire(clock(), 10), within=0.15, what="an end")

        await asyncio.gather(approve(here, question), sweep(), return_exceptions=True)
        status = (await approval(there, question))["status"]
        assert [kind for kind, _, _ in await decided(here, workflow_id)] == [f"approval_{status}"]
        decision = (await gate(there, workflow_id))["decision"]
        assert (status, decision) in {("approved", "allow"), ("expired", "block")}


async def test_a_policy_holds_on_every_node_once_its_put_is_answered(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    here, there = map(connect, await start_nodes(start_node, 2, **ONLY_BY_WORD))
    await here.put_step(STEP, endpoint.url(PATH))
    workflow_id = await begin(here)
    for turn in range(TURNS):
        one, other = (here, there) if turn % 2 else (there, here)
        assert (await gate(other, workflow_id, f"before-{turn}"))["decision"] == "allow"
        await put_policy(one, "no", policy(None, "block", reason=f"no {turn}"))
        answer = await gate(other, workflow_id, f"after-{turn}")
        assert (answer["decision"], answer["reason"]) == ("block", f"no {turn}")
        error = (await other.final(await other.start(STEP)))["error"]
        assert (error["code"], error["message"]) == ("POLICY_BLOCKED", f"no {turn}")
        if turn % 3:
            await put_policy(one, "no", policy(None, "block", enabled=False))
        else:
            assert (await one.request("DELETE", "/api/v1/policies/no")).status == 204
    assert endpoint.requests(PATH) == []
    flow_id = await there.start(STEP)
    await there.succeed(await endpoint.received(PATH))
    assert (await here.final(flow_id))["status"] == "completed"
