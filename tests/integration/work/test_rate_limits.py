"""Rate limits over HTTP: at most so many dispatches in any window, without delaying other steps."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.eventually import elapsed
from tests.integration.scenario import PATH, STEP
from tests.integration.several_nodes import ONLY_BY_WORD, metric, node_id, senders, start_many, start_nodes
from tests.running import Connect, StartNode
from tests.wire import Api

ROUNDS = 'counterfoil_sweeps_total{sweep="requeue"}'


def rate(count: int, per_ms: int, **work: Any) -> dict[str, Any]:
    return {**work, "rate_limit": {"count": count, "per_ms": per_ms}}


async def sent_at(api: Api, flows: list[str]) -> list[int]:
    """When the engine sent every attempt of some flows, in milliseconds."""
    times = [
        datetime.fromisoformat(event["at"])
        for flow_id in flows
        for event in await api.events(flow_id)
        if event["type"] == "work_dispatched"
    ]
    return sorted(round(time.timestamp() * 1000) for time in times)


def most_in_a_window(times: list[int], per_ms: int) -> int:
    return max(sum(start <= time < start + per_ms for time in times) for start in times)


async def test_a_step_shows_its_limit(api: Api, endpoint: StepEndpoint) -> None:
    document = await api.put_step(STEP, endpoint.url(PATH), work=rate(10, 1_000))
    assert document["work"]["rate_limit"] == {"count": 10, "per_ms": 1_000}
    assert (await api.put_step(STEP, endpoint.url(PATH)))["work"]["rate_limit"] is None


async def test_so_many_in_any_window(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """As quickly as the limit allows, though no sweep runs by itself before the test is over."""
    api = connect(await start_node(sweep_interval_ms=60_000))
    endpoint.answer(PATH, Answer(body={"success": True}))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", work=rate(3, 300))
    flows = await start_many(api, STEP, 10)
    for flow_id in flows:
        assert (await api.final(flow_id, wait="10"))["status"] == "completed"
    times = await sent_at(api, flows)
    assert len(times) == 10
    assert most_in_a_window(times, 300) == 3
    assert times[-1] - times[0] < 3_000, "three windows, and not three intervals"


async def test_a_long_window(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await api.put_step(STEP, endpoint.url(PATH), work=rate(2, 3_600_000, deadline_ms=86_400_000))
    flows = [await api.start(STEP) for _ in range(5)]
    for sent in (2, 4, 5):
        await endpoint.received(PATH, sent)
        await elapsed(0.5)
        assert len(endpoint.requests(PATH)) == sent
        states = [(await api.work(flow_id))["status"] for flow_id in flows]
        assert states.count("pending") == 5 - sent, "what may not go yet stays due"
        clock.advance(minutes=59)
        await elapsed(0.3)
        assert len(endpoint.requests(PATH)) == sent
        clock.advance(minutes=1)


async def test_retries_count(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(503), Answer(503), Answer(503), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work=rate(1, 250, init_backoff_ms=1, max_retries=5))
    flow_id = await api.start(STEP)
    await endpoint.received(PATH, 4)
    times = await sent_at(api, [flow_id])
    assert len(times) == 4
    assert all(later - earlier >= 250 for earlier, later in pairwise(times))


async def test_no_search_is_in_vain_while_a_step_rests(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A round for each thing that happens, and none between: the rest has one end, and the sweep is woken then."""
    node = await start_node(sweep_interval_ms=60_000, lease_ms=300_000)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH), work=rate(1, 700))
    flows = [await api.start(STEP) for _ in range(3)]
    await endpoint.received(PATH)
    await api.until_acknowledged(flows[0])
    before = await metric(api, ROUNDS)
    await elapsed(0.4)
    assert await metric(api, ROUNDS) - before <= 2
    await endpoint.received(PATH, 3)
    await api.until_acknowledged(flows[2])
    assert await metric(api, ROUNDS) - before <= 12
    assert most_in_a_window(await sent_at(api, flows), 700) == 1


async def test_other_steps_of_the_host_are_not_held_up(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("narrow", endpoint.url("/narrow"), work=rate(1, 3_600_000))
    await api.put_step("wide", endpoint.url("/wide"))
    await api.put_step("other", endpoint.url("/other"), work=rate(5, 3_600_000))
    await start_many(api, "narrow", 30)
    await endpoint.received("/narrow")
    for step_id, count in (("wide", 10), ("other", 5)):
        await start_many(api, step_id, count)
        await endpoint.received(f"/{step_id}", count, within=2)
    assert len(endpoint.requests("/narrow")) == 1


async def test_the_limit_holds_over_a_restart(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    clock = MovableClock()
    node = await start_node(clock)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH), work=rate(1, 3_600_000))
    first = await api.start(STEP)
    await endpoint.received(PATH)
    await api.until_acknowledged(first)
    await api.start(STEP)
    await node.stop()
    await start_node(clock)
    await elapsed(0.4)
    assert len(endpoint.requests(PATH)) == 1
    clock.advance(hours=1)
    await endpoint.received(PATH, 2)


# ------------------------------------------------------------------------------------------------ several nodes


@pytest.mark.postgresql_only
async def test_nodes_keep_the_limit_together(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """No sweep runs by itself before the test is over, and all are sent as soon as possible, by either node."""
    nodes = await start_nodes(start_node, 2, **ONLY_BY_WORD)
    apis = [connect(node) for node in nodes]
    endpoint.answer(PATH, Answer(body={"success": True}))
    await apis[0].put_step(STEP, endpoint.url(PATH), kind="sync", work=rate(4, 200))
    flows = [flow_id for api in apis for flow_id in await start_many(api, STEP, 20)]
    for flow_id in flows:
        assert (await apis[0].final(flow_id, wait="20"))["status"] == "completed"
    times = await sent_at(apis[0], flows)
    assert len(times) == len(endpoint.requests(PATH)) == 40
    assert most_in_a_window(times, 200) == 4
    assert times[-1] - times[0] < 6_000, "nine windows, and a little"
    nodes[0].engine.engine.dispatcher.stop()
    left = await start_many(apis[0], STEP, 8)
    for flow_id in left:
        assert (await apis[1].final(flow_id, wait="20"))["status"] == "completed"
        assert await senders(apis[1], flow_id) == [node_id(nodes[1])]
    assert most_in_a_window(await sent_at(apis[0], flows + left), 200) == 4, "both together"


@pytest.mark.postgresql_only
async def test_a_node_does_not_believe_for_ever_that_a_step_rests(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """What another node registered, and started, is found by one that believes the step to rest for a day."""
    here, there = await start_nodes(start_node, 2, lease_ms=600)
    a, b = connect(here), connect(there)
    await a.put_step(STEP, endpoint.url(PATH), work=rate(1, 86_400_000))
    await a.start(STEP)
    await endpoint.received(PATH)
    await a.start(STEP)
    await b.put_step(STEP, endpoint.url(PATH))
    there.engine.engine.dispatcher.stop()
    free = await b.start(STEP)
    await endpoint.received(PATH, 2)
    assert len(await senders(a, free)) == 1
