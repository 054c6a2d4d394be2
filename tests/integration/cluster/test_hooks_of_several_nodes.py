"""One owner per token over all nodes: many claimers of one token at once, and payloads at every node."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle
from typing import Any

import aiohttp
import pytest

from tests.eventually import eventually
from tests.integration.hooking import HOOK, order, path_of, post, put_hook
from tests.integration.several_nodes import start_nodes
from tests.running import StartNode
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

NODES, CLAIMERS = 3, 20


async def claimers(
    start_node: StartNode, session: aiohttp.ClientSession, on_conflict: str
) -> tuple[list[Api], list[str]]:
    """Twenty flows that register one token at once, over three nodes."""
    apis = [Api(session, node.url) for node in await start_nodes(start_node, NODES)]
    await put_hook(apis[0], hook={"on_conflict": on_conflict})
    turns = cycle(apis)
    return apis, await asyncio.gather(*(order(next(turns)) for _ in range(CLAIMERS)))


async def ended(api: Api, flows: list[str], count: int) -> dict[str, dict[str, Any]]:
    """What has become of the flows that have ended, once so many have."""

    async def look() -> dict[str, dict[str, Any]] | None:
        found = {flow_id: await api.flow(flow_id) for flow_id in flows}
        over = {flow_id: flow for flow_id, flow in found.items() if flow["status"] != "active"}
        return over if len(over) >= count else None

    return await eventually(look, what=f"{count} flows that ended")


async def test_of_many_that_fail_on_a_conflict_one_owns_the_token(
    start_node: StartNode, session: aiohttp.ClientSession
) -> None:
    apis, flows = await claimers(start_node, session, "fail")
    over = await ended(apis[0], flows, CLAIMERS - 1)
    (owner,) = set(flows) - set(over)
    assert {flow["error"]["code"] for flow in over.values()} == {"HOOK_CONFLICT"}
    assert {flow["error"]["details"]["flow_id"] for flow in over.values()} == {owner}
    assert (await post(apis[1], "order:1", {"confirmed": True})).ok()["flow_id"] == owner
    assert (await apis[2].final(owner))["status"] == "completed"


async def test_of_many_that_wait_each_is_the_owner_once(start_node: StartNode, session: aiohttp.ClientSession) -> None:
    apis, flows = await claimers(start_node, session, "wait")
    turns = cycle(apis)

    async def took() -> dict[str, Any] | None:
        reply = await post(next(turns), "order:1", {"confirmed": True})
        return reply.body if reply.status == 200 else None

    owners = [(await eventually(took, what="an owner"))["flow_id"] for _ in range(CLAIMERS)]
    assert Counter(owners) == Counter(flows)
    for flow_id in flows:
        assert (await apis[0].final(flow_id))["outputs"] == {"confirmed": True}
    (await post(apis[0], "order:1", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")


async def test_of_many_that_supersede_one_is_left_and_all_others_fail(
    start_node: StartNode, session: aiohttp.ClientSession
) -> None:
    apis, flows = await claimers(start_node, session, "supersede")
    over = await ended(apis[0], flows, CLAIMERS - 1)
    (owner,) = set(flows) - set(over)
    assert {flow["error"]["code"] for flow in over.values()} == {"HOOK_SUPERSEDED"}
    assert (await apis[1].get(path_of("order:1"))).ok()["flow_id"] == owner
    assert (await post(apis[2], "order:1", {"confirmed": True})).ok()["flow_id"] == owner
    assert (await apis[0].final(owner))["status"] == "completed"


async def test_a_delivery_that_is_sent_to_all_nodes_at_once_is_recorded_once(
    start_node: StartNode, session: aiohttp.ClientSession
) -> None:
    apis = [Api(session, node.url) for node in await start_nodes(start_node, NODES)]
    await put_hook(apis[0], hook={"collect": 5})
    flow_id = await order(apis[0])
    sent = [(api, number) for number in range(5) for api in apis]
    answers = await asyncio.gather(*(post(api, "order:1", number, f"d{number}") for api, number in sent))
    assert Counter(answer.ok()["duplicate"] for answer in answers) == {False: 5, True: 10}
    outputs = (await apis[1].final(flow_id))["outputs"]
    assert sorted(outputs["payloads"]) == [0, 1, 2, 3, 4]
    assert {answer.body["step_id"] for answer in answers} == {HOOK}
