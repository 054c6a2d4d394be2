"""Simultaneous starts with one run key, on three nodes of PostgreSQL and on SQLite."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.integration.flows.run_keys import active_at_most_once, flows_of_key, start
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
from tests.wire import Api

# ------------------------------------------------------------------------------------------------------- simultaneously


async def nodes_of(store_name: str, start_node: StartNode, connect: Connect) -> list[Api]:
    """Three nodes on PostgreSQL, one on SQLite."""
    return [connect(await start_node()) for _ in range(3 if store_name == "postgresql" else 1)]


@pytest.mark.parametrize("on_conflict", ["reject", "adopt"])
async def test_of_two_hundred_simultaneous_starts_one_is_admitted(
    store_name: str, start_node: StartNode, connect: Connect, endpoint: StepEndpoint, on_conflict: str
) -> None:
    apis = await nodes_of(store_name, start_node, connect)
    await apis[0].put_step(STEP, endpoint.url(PATH))
    replies = await asyncio.gather(*(start(apis[number % len(apis)], on_conflict) for number in range(200)))
    counts = Counter(reply.status for reply in replies)
    assert counts == {201: 1, (409 if on_conflict == "reject" else 200): 199}
    owner = next(reply.body["flow_id"] for reply in replies if reply.status == 201)
    for reply in replies:
        if on_conflict == "adopt":
            assert (reply.body["flow_id"], reply.body["reused"]) == (owner, reply.status == 200)
        elif reply.status == 409:
            assert reply.refused(409, "RUN_KEY_CONFLICT") == {"flow_id": owner, "status": "active"}
    await endpoint.received(PATH)
    await apis[0].until_acknowledged(owner)
    assert await flows_of_key(apis[0]) == [owner]
    assert len(endpoint.requests(PATH)) == 1


@pytest.mark.parametrize("count", [50, 200])
async def test_of_many_simultaneous_superseders_one_is_active_at_every_moment(
    store_name: str, start_node: StartNode, connect: Connect, endpoint: StepEndpoint, count: int
) -> None:
    apis = await nodes_of(store_name, start_node, connect)
    await apis[0].put_step(STEP, endpoint.url(PATH))
    replies = await asyncio.gather(*(start(apis[number % len(apis)], "supersede") for number in range(count)))
    assert Counter(reply.status for reply in replies) == {201: count}
    superseded = {reply.body["flow_id"]: reply.body.get("superseded") for reply in replies}
    assert len(superseded) == count
    assert sorted(Counter(superseded.values()).values()) == [1] * count, "a chain: each is superseded by one other"
    (last,) = await flows_of_key(apis[0], status="active")
    assert set(superseded.values()) == {None, *superseded} - {last}
    events = [event for flow_id in superseded for event in await apis[0].events(flow_id)]
    assert active_at_most_once(events) == last


async def test_starts_with_other_keys_do_not_meet(
    store_name: str, start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    apis = await nodes_of(store_name, start_node, connect)
    await apis[0].put_step(STEP, endpoint.url(PATH), kind="sync")
    endpoint.answer(PATH, Answer(body={"success": True}))
    replies = await asyncio.gather(*(start(apis[n % len(apis)], key=f"order:{n // 2}") for n in range(100)))
    assert {reply.status for reply in replies} <= {201, 409}
    started = Counter(reply.status for reply in replies)[201]
    assert 50 <= started <= 100
