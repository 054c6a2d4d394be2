"""Limits over several nodes: what a step may have out holds for all of them together, and no room is left unused."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP
from tests.integration.several_nodes import (
    ONLY_BY_WORD,
    PROMPT_SECONDS,
    deafen,
    hand,
    introduce,
    node_id,
    senders,
    start_many,
    start_nodes,
    succeed,
)
from tests.running import Connect, Node, StartNode
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

LIMIT = 4
OTHER = "other"


class Meter:
    """How many are out at this moment, and how many ever were at once."""

    def __init__(self) -> None:
        self.out = 0
        self.most = 0

    def goes(self) -> None:
        self.out += 1
        self.most = max(self.most, self.out)

    def comes_back(self) -> None:
        self.out -= 1


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_never_more_out_than_the_step_allows(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, kind: Literal["sync", "async"]
) -> None:
    """Counted where the work arrives, from its arrival until the report of its end is on its way."""
    nodes = await start_nodes(start_node, 3)
    apis = [connect(node) for node in nodes]
    meter = Meter()
    reports = set[asyncio.Task[None]]()

    async def answer_in_a_moment(received: Received) -> Answer:
        meter.goes()
        await elapsed(0.005)
        if kind == "sync":
            meter.comes_back()
            return Answer(body={"success": True})
        reports.add(asyncio.create_task(report(received, len(reports))))
        return Answer()

    async def report(received: Received, number: int) -> None:
        await elapsed(0.005)
        meter.comes_back()
        await succeed(apis[number % 3], received)

    endpoint.answer(PATH, answer_in_a_moment)
    await apis[0].put_step(STEP, endpoint.url(PATH), kind=kind, work={"parallelism": LIMIT})
    flows = [flow_id for api in apis for flow_id in await start_many(api, STEP, 40)]
    for flow_id in flows:
        assert (await apis[0].final(flow_id, wait="40"))["status"] == "completed"
    assert meter.most == LIMIT, "less would be a waste"
    assert len(endpoint.requests(PATH)) == len(flows)
    sent_by = {sender for flow_id in flows for sender in await senders(apis[0], flow_id)}
    assert len(sent_by) > 1, "all nodes had a part in it"


# ------------------------------------------------------------------------------------------------ room elsewhere


async def busy_node(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, **settings: int
) -> tuple[Node, asyncio.Event]:
    """A node that sends one thing at a time, and is sending one until the event is set."""
    node = await start_node(dispatch_concurrency=1, **settings)
    release = asyncio.Event()
    endpoint.answer(f"/{OTHER}", Answer(body={"success": True}, until=release))
    api = connect(node)
    await api.put_step(OTHER, endpoint.url(f"/{OTHER}"), kind="sync", work={"ack_timeout_ms": 60_000})
    await api.start(OTHER)
    await endpoint.received(f"/{OTHER}")
    return node, release


async def until_full(node: Node) -> None:
    """Wait until a node believes that the step has out what it may."""
    await eventually(lambda: STEP in node.engine.engine.slots.full, what="a node that believes the step to be full")


async def test_due_work_without_a_place_is_taken_by_another_node(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    busy, release = await busy_node(start_node, connect, endpoint, **ONLY_BY_WORD)
    free = await start_node(**ONLY_BY_WORD)
    await introduce(busy, free)
    a = connect(busy)
    await a.put_step(STEP, endpoint.url(PATH))
    flow_id = await a.start(STEP)
    await endpoint.received(PATH, within=PROMPT_SECONDS)
    assert await senders(a, flow_id) == [node_id(free)]
    release.set()


async def full_here_freed_there(connect: Connect, endpoint: StepEndpoint, here: Node, there: Node) -> tuple[Api, str]:
    """One item is out, sent from here; another waits here, where the step is known to be full. The busy one is there.

    Then the first is reported there. Returns the client of that node and the flow that waits.
    """
    a, b = connect(here), connect(there)
    await a.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    await a.start(STEP)
    received = await endpoint.received(PATH)
    waiting = await a.start(STEP)
    await until_full(here)
    await elapsed(0.2)
    assert len(endpoint.requests(PATH)) == 1
    await succeed(b, received)
    return b, waiting


async def test_room_that_became_free_elsewhere_is_used_at_once(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    there, release = await busy_node(start_node, connect, endpoint, **ONLY_BY_WORD)
    here = await start_node(**ONLY_BY_WORD)
    await introduce(here, there)
    api, waiting = await full_here_freed_there(connect, endpoint, here, there)
    await endpoint.received(PATH, 2, within=PROMPT_SECONDS)
    assert await senders(api, waiting) == [node_id(here)]
    release.set()


async def test_room_that_became_free_elsewhere_is_found_without_a_word(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    there, release = await busy_node(start_node, connect, endpoint)
    here = await start_node()
    deafen(here)
    api, waiting = await full_here_freed_there(connect, endpoint, here, there)
    await endpoint.received(PATH, 2, within=PROMPT_SECONDS)
    assert await senders(api, waiting) == [node_id(here)]
    release.set()


@pytest.mark.parametrize("hears", [True, False], ids=["by word", "by looking"])
async def test_room_that_a_node_left_behind_is_used(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, hears: bool
) -> None:
    """The last item comes back to a node that is leaving, and sends no other any more; then the other one is alone."""
    settings = ONLY_BY_WORD if hears else {}
    stays, free_again = await busy_node(start_node, connect, endpoint, **settings)
    leaves = await start_node(**settings)
    await introduce(stays, leaves)
    if not hears:
        deafen(stays)
    a, b = connect(leaves), connect(stays)
    answered = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": True}, until=answered))
    await a.put_step(STEP, endpoint.url(PATH), kind="sync", work={"parallelism": 1})
    first = await a.start(STEP)
    await endpoint.received(PATH)
    free_again.set()
    await eventually(lambda: not stays.engine.engine.slots.under_way, what="a node that has room again")
    second = await b.start(STEP)
    await until_full(stays)
    stopping = asyncio.create_task(leaves.stop())
    await eventually(lambda: leaves.engine.engine.accepting is False, what="a node that is leaving")
    answered.set()
    await stopping
    await endpoint.received(PATH, 2, within=PROMPT_SECONDS)
    assert (await b.final(first))["status"] == (await b.final(second))["status"] == "completed"
    assert await senders(b, second) == [node_id(stays)]


async def test_what_was_passed_over_is_not_forgotten(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """The flow was locked when the node looked for what is due: it looks again soon, not at its next tick."""
    [node] = await start_nodes(start_node, 1, **ONLY_BY_WORD)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 300})
    endpoint.answer(PATH, Answer(503), Answer())
    flow_id = await api.start(STEP)
    await api.until_work(flow_id, "not_completed")
    async with hand(node) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM flows WHERE flow_id = $1 FOR UPDATE", flow_id)
        await elapsed(0.6)
        assert len(endpoint.requests(PATH)) == 1
    await endpoint.received(PATH, 2, within=PROMPT_SECONDS)


async def test_word_of_room_is_heeded_by_every_node_with_work_for_it(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Also by a node that never came to believe the step to be full: it knows that something is due."""
    there, release = await busy_node(start_node, connect, endpoint, **ONLY_BY_WORD)
    here = await start_node(**ONLY_BY_WORD)
    await introduce(here, there)
    slots = here.engine.engine.slots
    a, b = connect(here), connect(there)
    await a.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    await a.start(STEP)
    received = await endpoint.received(PATH)
    await a.start(STEP)
    await until_full(here)
    slots.full.clear()
    await succeed(b, received)
    await endpoint.received(PATH, 2, within=PROMPT_SECONDS)
    release.set()


async def test_a_new_limit_counts_everywhere_at_once(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """What one node registered holds for a flow that starts on another: two may be out, and not three."""
    a, b = map(connect, await start_nodes(start_node, 2, **ONLY_BY_WORD))
    await a.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    await b.start(STEP)
    await endpoint.received(PATH)
    await a.put_step(STEP, endpoint.url(PATH), work={"parallelism": 2})
    await b.start(STEP)
    await endpoint.received(PATH, 2, within=PROMPT_SECONDS)
    third = await b.start(STEP)
    await elapsed(0.3)
    assert (await a.work(third))["status"] == "pending"
    assert len(endpoint.requests(PATH)) == 2
