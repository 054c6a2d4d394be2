"""Long polls on one node of flows that end on another: by one read when they do, and by none before."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.testing import StepEndpoint
from tests.eventually import eventually
from tests.integration.scenario import dispatched
from tests.integration.several_nodes import ONLY_BY_WORD, PROMPT_SECONDS, deafen, lease_of, on, start_nodes, succeed
from tests.running import Connect, Node, StartNode
from tests.store_reads import noted_reads
from tests.wire import Api, Reply

pytestmark = pytest.mark.postgresql_only


async def waiting(node: Node, api: Api, *flow_ids: str) -> list[asyncio.Task[Reply]]:
    """Polls at a node, which have looked at the store."""
    results = node.engine.engine.results
    with noted_reads(node.engine.engine.store) as reads:
        polls = [asyncio.create_task(api.get(f"/api/v1/flows/{each}/result", wait="30")) for each in flow_ids]
        await eventually(lambda: len(results) == len(polls), what="the polls")
        await eventually(lambda: reads.count("results_of_flows") == len(polls), what="their looks")
    for _ in range(4):  # the readers answer in the order in which they are asked
        await node.engine.engine.store.read("flow_exists", flow_id=flow_ids[0])
    return polls


async def test_a_poll_is_answered_at_once_by_one_read_when_its_flow_ends_elsewhere(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    nodes = await start_nodes(start_node, 2, **ONLY_BY_WORD)
    a, b = map(connect, nodes)
    flow_id, received = await dispatched(a, endpoint)
    _, other = await dispatched(a, endpoint)
    polls = await waiting(nodes[1], b, *[flow_id] * 5)
    with noted_reads(nodes[1].engine.engine.store) as reads:
        for progress in (0.1, 0.2, 0.3):
            (await a.post(on(a, received, "/heartbeat"), {"progress": progress})).ok()
        await succeed(a, other)
        await succeed(a, received, x=1)
        answers = await asyncio.wait_for(asyncio.gather(*polls), PROMPT_SECONDS)
    assert [answer.ok()["outputs"] for answer in answers] == [{"x": 1}] * 5
    assert reads == ["results_of_flows"]


async def test_without_a_word_one_query_for_all_polls_finds_out(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    nodes = await start_nodes(start_node, 2, sweep_interval_ms=60_000, lease_ms=300_000)
    a, b = map(connect, nodes)
    deafen(nodes[1])
    started = [await dispatched(a, endpoint) for _ in range(3)]
    polls = await waiting(nodes[1], b, *(flow_id for flow_id, _ in started))
    await succeed(a, started[1][1], x=1)
    with noted_reads(nodes[1].engine.engine.store) as reads:
        await nodes[1].engine.engine.membership.renew()
        assert (await asyncio.wait_for(polls[1], PROMPT_SECONDS)).ok()["outputs"] == {"x": 1}
    assert reads == ["flows_not_open", "results_of_flows"]
    assert [poll.done() for poll in polls] == [False, True, False]
    for _, received in (started[0], started[2]):
        await succeed(b, received)
    await asyncio.wait_for(asyncio.gather(*polls), PROMPT_SECONDS)


async def test_a_node_does_not_rely_on_what_it_knew_before_others_came(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A flow that it started alone, and that ended on another node which has left again, is not taken for open."""
    stays = await start_node(**ONLY_BY_WORD)
    a = connect(stays)
    flow_id, received = await dispatched(a, endpoint)
    comes = await start_node(**ONLY_BY_WORD)
    await succeed(connect(comes), received, x=1)
    await comes.stop()
    await stays.engine.engine.membership.renew()
    assert lease_of(stays).others == 0
    answer = await asyncio.wait_for(a.get(f"/api/v1/flows/{flow_id}/result", wait="30"), PROMPT_SECONDS)
    assert answer.ok()["outputs"] == {"x": 1}


async def test_a_poll_looks_for_itself_while_there_are_other_nodes(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A flow that this node started may have ended elsewhere without a word."""
    nodes = await start_nodes(start_node, 2, **ONLY_BY_WORD)
    a, b = map(connect, nodes)
    deafen(nodes[0])
    flow_id, received = await dispatched(a, endpoint)
    await succeed(b, received, x=1)
    answer = await asyncio.wait_for(a.get(f"/api/v1/flows/{flow_id}/result", wait="30"), PROMPT_SECONDS)
    assert answer.ok()["outputs"] == {"x": 1}
