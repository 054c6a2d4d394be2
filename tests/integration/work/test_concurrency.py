"""Concurrency: parallelism of a step, slots of a host, and no starvation of other work."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
from tests.wire import Api


async def statuses(api: Api, flows: list[str]) -> list[str]:
    return sorted([(await api.work(flow_id))["status"] for flow_id in flows])


async def test_parallelism_counts_what_waits_for_a_callback(api: Api, endpoint: StepEndpoint) -> None:
    """Two at once, over all flows: the third is sent when one of the two has its outcome."""
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 2})
    flows = [await api.start(STEP) for _ in range(5)]
    await endpoint.received(PATH, 2)
    await elapsed(0.3)
    assert len(endpoint.requests(PATH)) == 2
    assert await statuses(api, flows) == ["active"] * 2 + ["pending"] * 3
    for sent in range(2, 6):
        await api.succeed(endpoint.requests(PATH)[sent - 2])
        if sent < 5:
            await endpoint.received(PATH, sent + 1)
            await elapsed(0.05)
            assert len(endpoint.requests(PATH)) == sent + 1
    await api.succeed(endpoint.requests(PATH)[4])
    for flow_id in flows:
        assert (await api.final(flow_id))["status"] == "completed"


@pytest.mark.parametrize("end", ["failed", "not_completed", "cancelled"])
async def test_every_end_of_an_attempt_frees_its_place(api: Api, endpoint: StepEndpoint, end: str) -> None:
    await api.put_step(
        STEP, endpoint.url(PATH), work={"parallelism": 1, "init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
    )
    first = await api.start(STEP)
    received = await endpoint.received(PATH)
    second = await api.start(STEP)
    assert (await api.work(second))["status"] == "pending"
    if end == "cancelled":
        (await api.post(f"/api/v1/flows/{first}/cancel")).ok()
    else:
        (await api.complete(received, {"success": False, "retriable": end == "not_completed"})).ok()
    assert (await endpoint.received(PATH, 2)).metadata["flow_id"] == second


async def test_sync_steps_keep_to_parallelism_too(api: Api, endpoint: StepEndpoint) -> None:
    running, most = 0, 0

    async def count(received: Received) -> Answer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await elapsed(0.02)
        running -= 1
        return Answer(body={"success": True})

    endpoint.answer(PATH, count)
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", work={"parallelism": 3})
    flows = [await api.start(STEP) for _ in range(20)]
    for flow_id in flows:
        assert (await api.final(flow_id))["status"] == "completed"
    assert most <= 3
    assert len(endpoint.requests(PATH)) == 20


async def test_parallelism_of_one_step_does_not_hold_another(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step("narrow", endpoint.url("/narrow"), work={"parallelism": 1})
    await api.put_step("wide", endpoint.url("/wide"))
    for _ in range(30):
        await api.start("narrow")
    await endpoint.received("/narrow")
    await api.start("wide")
    await endpoint.received("/wide", within=2)
    assert len(endpoint.requests("/narrow")) == 1


async def test_parallelism_holds_over_a_restart(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """What waits for a callback still counts after the engine was stopped and started."""
    node = await start_node()
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH), work={"parallelism": 1})
    first = await api.start(STEP)
    await endpoint.received(PATH)
    await api.until_acknowledged(first)
    second = await api.start(STEP)
    await node.stop()
    api = connect(await start_node())
    await elapsed(0.4)
    assert len(endpoint.requests(PATH)) == 1
    received = endpoint.requests(PATH)[0]
    path = "/" + received.webhook_url.split("/", 3)[3]
    (await api.post(path, {"success": True})).ok()
    assert (await endpoint.received(PATH, 2)).metadata["flow_id"] == second


async def test_one_slow_host_does_not_starve_another(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Far more work for a host that never answers than there are slots: another host's work goes out at once."""
    api = connect(await start_node(dispatch_concurrency=8, dispatch_concurrency_per_host=4))
    async with StepEndpoint() as slow:
        slow.answer("/slow", Answer(fault="silent"))
        await api.put_step("slow", slow.url("/slow"), work={"ack_timeout_ms": 60_000})
        await api.put_step("quick", endpoint.url("/quick"), kind="sync")
        for _ in range(40):
            await api.start("slow")
        await slow.received("/slow", 4)
        quick = [await api.start("quick") for _ in range(20)]
        for flow_id in quick:
            assert (await api.final(flow_id, wait="5"))["status"] == "completed"
        assert len(slow.requests("/slow")) == 4
        for flow in (await api.get("/api/v1/flows", status="active")).ok()["flows"]:
            (await api.post(f"/api/v1/flows/{flow['flow_id']}/cancel")).ok()


async def test_no_more_than_the_slots_of_a_host_at_once(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(dispatch_concurrency_per_host=5))
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": True}, until=release))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    flows = [await api.start(STEP) for _ in range(30)]
    await endpoint.received(PATH, 5)
    await elapsed(0.3)
    assert len(endpoint.requests(PATH)) == 5
    release.set()
    for flow_id in flows:
        assert (await api.final(flow_id))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 30


async def test_work_that_waits_for_a_slot_is_still_pending(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """No intent without a slot: an item that waits its turn uses up neither an attempt nor its deadlines."""
    api = connect(await start_node(dispatch_concurrency=1, dispatch_concurrency_per_host=1))
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(until=release))
    await api.put_step(STEP, endpoint.url(PATH))
    first = await api.start(STEP)
    await endpoint.received(PATH)
    second = await api.start(STEP)
    await elapsed(0.3)
    work = await api.work(second)
    assert (work["status"], work["attempt"]) == ("pending", 0)
    release.set()
    await endpoint.received(PATH, 2)
    await eventually(lambda: _acknowledged(api, [first, second]))


async def _acknowledged(api: Api, flows: list[str]) -> bool:
    return all(["work_acknowledged" in await api.event_types(flow_id) for flow_id in flows])


async def test_connections_are_reused(api: Api, endpoint: StepEndpoint) -> None:
    """Dispatches one after the other come over few connections."""
    peers: set[tuple[str, int]] = set()

    async def note(received: Received) -> Answer:
        peers.add(received.peer)
        return Answer(body={"success": True})

    endpoint.answer(PATH, note)
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    for _ in range(10):
        await api.final(await api.start(STEP))
    assert len(endpoint.requests(PATH)) == 10
    assert len(peers) <= 2
