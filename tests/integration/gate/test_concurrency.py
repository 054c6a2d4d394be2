"""Many agents at one gate at once, on each store, and on two nodes of PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tests.integration.agents import Agent, Gatehouse, begin
from tests.integration.several_nodes import start_nodes
from tests.running import Connect, StartNode
from tests.wire import Api, Reply

MANY = 100
Seats = list[Api]
"""The nodes at which agents ask, in turn."""


def codes(replies: list[Reply]) -> Counter[str]:
    return Counter(reply.code if reply.status >= 400 else str(reply.status) for reply in replies)


async def at_once(seats: Seats, count: int, call: Callable[[Api, int], Awaitable[Reply]]) -> list[Reply]:
    return await asyncio.gather(*(call(seats[number % len(seats)], number) for number in range(count)))


# ------------------------------------------------------------------------------------------------ what must hold


async def many_gates(agent: Agent, seats: Seats) -> None:
    """All count, in one order, and one of them was decided."""
    replies = await at_once(seats, MANY, lambda api, _: agent.at(api).ask("pay"))
    assert codes(replies) == {"200": MANY}
    bodies = [reply.body for reply in replies]
    assert sorted(body["retry_context"]["gate_count"] for body in bodies) == list(range(1, MANY + 1))
    assert Counter(body["decision_source"] for body in bodies) == {"fresh": 1, "cached": MANY - 1}
    assert len({body["decision_id"] for body in bodies}) == 1
    [first] = [body for body in bodies if body["decision_source"] == "fresh"]
    assert first["retry_context"]["gate_count"] == 1
    assert (await agent.step("pay"))["gate_count"] == MANY


async def many_claims(agent: Agent, seats: Seats) -> None:
    replies = await at_once(seats, MANY, lambda api, number: agent.at(api).ask("claim", claim={"holder": f"a{number}"}))
    assert codes(replies) == {"200": 1, "STEP_IN_FLIGHT": MANY - 1}
    step = await agent.step("claim")
    [granted] = [reply.body["claim"]["holder"] for reply in replies if reply.status == 200]
    assert (step["gate_count"], step["claim"]["holder"]) == (1, granted)


async def many_completions(agent: Agent, seats: Seats) -> None:
    """The same outcome is taken from every caller, another one from none but the first."""
    await agent.gate("same")
    replies = await at_once(seats, MANY, lambda api, _: agent.at(api).report("same", output={"n": 1}))
    assert codes(replies) == {"204": MANY}
    assert sum("Idempotent-Replayed" not in reply.headers for reply in replies) == 1
    await agent.gate("other")
    replies = await at_once(seats, MANY, lambda api, number: agent.at(api).report("other", output={"n": number}))
    assert codes(replies) == {"204": 1, "COMPLETION_CONFLICT": MANY - 1}
    [winner] = [number for number, reply in enumerate(replies) if reply.status == 204]
    context = await agent.context("other", {"include_prior_output": "true"})
    assert (context["completion_count"], context["prior_output"]) == (1, {"n": winner})
    assert (await agent.step("same"))["completion_count"] == 1
    for step_id in ("same", "other"):
        assert len(await agent.history(step_id, "work_succeeded")) == 1


async def two_first_keys(agent: Agent, seats: Seats) -> None:
    """Again and again, because two calls meet rarely: one key wins each time, and the other is told which."""
    for number in range(8):

        async def call(api: Api, key: int, step_id: str = f"race-{number}") -> Reply:
            return await agent.at(api).ask(step_id, idempotency_key=f"k{key}")

        replies = await at_once(seats, 2, call)
        assert codes(replies) == {"200": 1, "IDEMPOTENCY_KEY_MISMATCH": 1}
        [won] = [reply.body["retry_context"]["idempotency_key"] for reply in replies if reply.status == 200]
        [lost] = [reply.details for reply in replies if reply.status == 409]
        assert lost["expected_idempotency_key"] == won != lost["received_idempotency_key"]


async def two_workflows_with_one_global_key(seats: Seats) -> None:
    for _ in range(8):
        agents = [await begin(seats[number % len(seats)], idempotency_scope="global") for number in range(2)]
        key = agents[0].case
        replies = await asyncio.gather(*(agent.ask("pay", idempotency_key=key) for agent in agents))
        assert codes(replies) == {"200": 1, "IDEMPOTENCY_KEY_IN_USE": 1}
        [winner] = [agent for agent, reply in zip(agents, replies, strict=True) if reply.status == 200]
        [lost] = [reply.details for reply in replies if reply.status == 409]
        assert (lost["workflow_id"], lost["step_id"]) == (winner.workflow_id, "pay")


async def one_approval(agent: Agent, seats: Seats) -> None:
    """Of many approvals at once one counts; gate calls meanwhile see the state before or after."""
    await agent.rule("require_approval", match={"step_id": "held"})
    held = await agent.gate("held")
    path = f"/api/v1/approvals/{held['approval_id']}/approve"

    async def call(api: Api, number: int) -> Reply:
        return await (agent.at(api).ask("held") if number % 4 == 3 else api.post(path, {}))

    replies = await at_once(seats, 20, call)
    reviews = [reply for number, reply in enumerate(replies) if number % 4 != 3]
    assert codes(reviews) == {"200": 1, "NOT_PENDING": len(reviews) - 1}
    asked = {reply.ok()["decision"] for number, reply in enumerate(replies) if number % 4 == 3}
    assert asked <= {"allow", "require_approval"}
    assert (await agent.gate("held"))["decision"] == "allow"
    await agent.complete("held")


async def everything(seats: Seats) -> None:
    agent = await begin(seats[0])
    await many_gates(agent, seats)
    await many_claims(agent, seats)
    await many_completions(agent, seats)
    await two_first_keys(agent, seats)
    await one_approval(agent, seats)
    await two_workflows_with_one_global_key(seats)


# ------------------------------------------------------------------------------------------------ where


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("check", [many_gates, many_claims, many_completions, two_first_keys, one_approval])
async def test_on_one_node(house: Gatehouse, check: Callable[[Agent, Seats], Awaitable[None]]) -> None:
    await check(await house.agent(), [house.api])


@pytest.mark.asyncio(loop_scope="module")
async def test_one_global_key_on_one_node(house: Gatehouse) -> None:
    await two_workflows_with_one_global_key([house.api])


@pytest.mark.postgresql_only
async def test_on_two_nodes(start_node: StartNode, connect: Connect) -> None:
    await everything([connect(node) for node in await start_nodes(start_node, 2)])
