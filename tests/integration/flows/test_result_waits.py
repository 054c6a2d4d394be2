"""Polls that wait for a result: answered when their flow ends, however it ends, with what a later poll is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.eventually import eventually
from tests.integration.agents import begin
from tests.integration.planned import Workshop, each, gives, succeeded, takes
from tests.integration.scenario import dispatched
from tests.running import Node
from tests.store_reads import noted_reads
from tests.wire import Api, Reply

WAITS = 3
Ending = Callable[[], Awaitable[object]]
Scenario = Callable[[Workshop], Awaitable[tuple[list[str], Ending]]]


async def polls_of(node: Node, api: Api, flow_id: str, count: int = WAITS) -> list[asyncio.Task[Reply]]:
    """So many polls of a flow that wait."""
    results = node.engine.engine.results
    before = len(results)
    polls = [asyncio.create_task(api.get(f"/api/v1/flows/{flow_id}/result", wait="30")) for _ in range(count)]
    await eventually(lambda: len(results) == before + count, what="the polls")
    return polls


async def completes(shop: Workshop) -> tuple[list[str], Ending]:
    flow_id, received = await dispatched(shop.api, shop.endpoint)
    return [flow_id], lambda: shop.api.succeed(received, a=1, big=2**60, text="ünïcödé")


async def fails(shop: Workshop) -> tuple[list[str], Ending]:
    flow_id, received = await dispatched(shop.api, shop.endpoint)
    return [flow_id], lambda: shop.api.complete(received, {"success": False, "error": "broken"})


async def is_cancelled(shop: Workshop) -> tuple[list[str], Ending]:
    flow_id, _ = await dispatched(shop.api, shop.endpoint)
    return [flow_id], lambda: shop.api.post(f"/api/v1/flows/{flow_id}/cancel")


async def misses_its_deadline(shop: Workshop) -> tuple[list[str], Ending]:
    flow_id, _ = await dispatched(shop.api, shop.endpoint, start={"deadline_ms": 700})
    return [flow_id], lambda: asyncio.sleep(0)


async def has_many_steps(shop: Workshop) -> tuple[list[str], Ending]:
    await shop.sync("one", {"a": gives()}, succeeded(a=1))
    await shop.sync("two", {"a": takes(), "b": gives()}, succeeded(b=2))
    await shop.sync("three", {"b": takes(), "c": gives()}, succeeded(c=3))
    await shop.waits("four", {"c": takes(), "d": gives()})
    flow_id = await shop.api.start("four")
    return [flow_id], lambda: shop.report("four", d=4)


async def fans_out(shop: Workshop) -> tuple[list[str], Ending]:
    await shop.waits("each", {"n": each(), "out": gives()})
    flow_id = await shop.api.start("each", init={"n": [1, 2]})
    await shop.report("each", 1, out="a")
    return [flow_id], lambda: shop.report("each", 2, out="b")


async def is_undone(shop: Workshop) -> tuple[list[str], Ending]:
    await shop.sync("book", {"booking": gives()}, succeeded(booking="b1"), compensate=shop.undoing("book"))
    await shop.waits("ship", {"booking": takes(), "shipped": gives()})
    flow_id = await shop.api.start("ship")
    return [flow_id], lambda: shop.fail("ship")


async def is_inside_another(shop: Workshop) -> tuple[list[str], Ending]:
    await shop.waits("charge", {"amount": takes(), "paid": gives()})
    mapping = {"goals": ["charge"], "inputs": {"amount": "order"}, "outputs": {"receipt": "paid"}}
    await shop.inner("payment", {"order": takes(), "receipt": gives()}, mapping)
    flow_id = await shop.api.start("payment", init={"order": 5})
    inner = (await shop.endpoint.received("/charge")).metadata["flow_id"]
    return [flow_id, inner], lambda: shop.report("charge", paid="yes")


async def is_an_agents(shop: Workshop) -> tuple[list[str], Ending]:
    agent = await begin(shop.api)
    return [agent.workflow_id], lambda: shop.api.post(f"/api/v1/workflows/{agent.workflow_id}/complete")


async def is_redriven(shop: Workshop) -> tuple[list[str], Ending]:
    await shop.waits("job", {"a": gives()})
    flow_id = await shop.api.start("job")
    await shop.fail("job")
    assert (await shop.api.final(flow_id))["status"] == "failed"
    (await shop.api.post(f"/api/v1/flows/{flow_id}/redrive")).ok()
    await shop.endpoint.received("/job", 2)
    return [flow_id], lambda: shop.report("job", 2, a=1)


WAYS: list[Scenario] = [
    completes,
    fails,
    is_cancelled,
    misses_its_deadline,
    has_many_steps,
    fans_out,
    is_undone,
    is_inside_another,
    is_an_agents,
    is_redriven,
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_flow_that_ends(node: Node, shop: Workshop, way: Scenario) -> None:
    """Every poll is answered once it does, with the same bytes; one that comes later reads the same document."""
    flow_ids, end = await way(shop)
    polls = {flow_id: await polls_of(node, shop.api, flow_id) for flow_id in flow_ids}
    with noted_reads(node.engine.engine.store) as reads:
        await end()
        for flow_id, waiting in polls.items():
            answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
            assert {(answer.status, answer.content) for answer in answers} == {(200, answers[0].content)}
            assert answers[0].ok() == (await shop.api.get(f"/api/v1/flows/{flow_id}/result")).ok()
    assert reads.count("results_of_flows") <= 2 * len(flow_ids), "one at most for all polls, and one for the later one"
    assert len(node.engine.engine.results) == 0


@pytest.mark.both_paths
async def test_commits_that_do_not_end_a_flow_wake_no_poll(node: Node, shop: Workshop) -> None:
    api, endpoint = shop.api, shop.endpoint
    flow_id, received = await dispatched(api, endpoint)
    with noted_reads(node.engine.engine.store) as reads:
        polls = await polls_of(node, api, flow_id)
        for progress in (0.1, 0.2, 0.3):
            (await api.post(received.metadata["heartbeat_url"], {"progress": progress})).ok()
        _, other = await dispatched(api, endpoint)
        await api.succeed(other)
        assert not any(poll.done() for poll in polls)
        await api.succeed(received, a=1)
        assert [(await poll).ok()["outputs"] for poll in polls] == [{"a": 1}] * WAITS
    assert "results_of_flows" not in reads


async def test_a_poll_that_is_not_answered_in_time(api: Api, shop: Workshop) -> None:
    """202, with the outputs so far; another one waits on."""
    flow_ids, end = await has_many_steps(shop)
    await shop.endpoint.received("/four")
    answer = await api.get(f"/api/v1/flows/{flow_ids[0]}/result", wait="0.05")
    expected = {"a": 1, "b": 2, "c": 3}
    assert (answer.ok(202)["status"], answer.body["outputs"]) == ("active", expected)
    waiting = asyncio.create_task(api.final(flow_ids[0]))
    await end()
    assert (await waiting)["outputs"] == {**expected, "d": 4}


async def test_a_poll_of_nothing(api: Api) -> None:
    (await api.get("/api/v1/flows/nothing/result", wait="30")).refused(404, "UNKNOWN_FLOW")
