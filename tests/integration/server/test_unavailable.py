"""Section 1 and issue of the store: 503 with Retry-After, nothing half done, and recovery when the cause is gone."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import aiohttp
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.by_hand import locked
from tests.eventually import eventually
from tests.integration.scenario import NO_SWEEPS, PATH, STEP, dispatched, place_of
from tests.running import Connect, StartNode
from tests.wire import Api, Reply

SUCCESS = {"success": True, "outputs": {"a": 1}}


def unavailable(reply: Reply) -> None:
    reply.refused(503, "UNAVAILABLE")
    assert int(reply.headers["Retry-After"]) >= 0


async def accepted(api: Api, received: Received) -> bool:
    """Post as a worker does: again, as long as the engine says not now."""
    reply = await api.complete(received, SUCCESS)
    if reply.status == 503:
        unavailable(reply)
        return False
    assert reply.status == 200, reply.content
    return True


async def test_a_locked_database(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """503 while it lasts, for every change; reads go on; afterwards the same request is accepted."""
    node = await start_node(**NO_SWEEPS)
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    async with locked(place_of(node)):
        changes = [
            api.complete(received, SUCCESS),
            api.post("/api/v1/flows", {"goals": [STEP], "flow_id": "second"}),
        ]
        for reply in await asyncio.gather(*changes):
            unavailable(reply)
        assert (await api.work(flow_id))["status"] == "active"
        assert (await api.get("/healthz")).status == 200
    await eventually(lambda: accepted(api, received))
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    assert await api.start(STEP, flow_id="second") == "second"


@pytest.mark.timeout(90)
async def test_a_full_backlog(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """Past the bound the answer is 503 at once; nothing is lost or recorded twice."""
    node = await start_node(backlog_limit=15, batch_limit=1)  # the sweeps want some of it, all at the same moment
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH))
    flows = [await api.start(STEP) for _ in range(45)]
    await endpoint.received(PATH, 45)
    for flow_id in flows:
        await api.until_acknowledged(flow_id)
    received = endpoint.requests(PATH)
    async with locked(place_of(node)):
        posts = [asyncio.ensure_future(api.complete(each, SUCCESS)) for each in received]
        answers = asyncio.as_completed(posts, timeout=10)
        for _ in range(20):  # those past the bound are told, though nothing can be committed
            unavailable(await next(answers))
        waiting = [post for post in posts if not post.done()]
    statuses = [(await post).status for post in posts]
    assert set(statuses) <= {200, 503}
    for each, status in zip(received, statuses, strict=True):
        if status == 503:
            await eventually(partial(accepted, api, each))
        else:
            (await api.complete(each, SUCCESS)).refused(400, "ALREADY_SUCCEEDED")
    for flow_id in flows:
        assert (await api.final(flow_id))["status"] == "completed"
        assert (await api.event_types(flow_id)).count("work_succeeded") == 1
    assert len(waiting) <= 25


async def test_while_it_stops(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """Changes are refused with 503, requests in flight finish, and what they bring is recorded."""
    node = await start_node(shutdown_grace_ms=5000)
    api = connect(node)
    release = asyncio.Event()
    endpoint.answer("/slow", Answer(body={"success": True, "outputs": {"slow": 1}}, until=release))
    await api.put_step("slow", endpoint.url("/slow"), kind="sync")
    waiting_flow, received = await dispatched(api, endpoint)
    slow_flow = await api.start("slow")
    await endpoint.received("/slow")
    stopping = asyncio.ensure_future(node.stop())

    async def refused() -> bool:
        reply = await api.complete(received, SUCCESS)
        if reply.status == 200:
            pytest.fail("a completion was accepted while the engine stops, before it was refused once")
        unavailable(reply)
        return True

    async def stops() -> bool:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            return (await api.post("/api/v1/flows", {"goals": [STEP]})).status == 503
        return False

    await eventually(stops)
    await refused()
    assert (await api.get("/readyz")).refused(503, "UNAVAILABLE") == {"failed": "stopping"}
    assert not stopping.done()
    release.set()
    await stopping
    api = connect(await start_node())
    assert (await api.final(slow_flow))["outputs"] == {"slow": 1}
    assert len(endpoint.requests("/slow")) == 1
    path = "/" + received.webhook_url.split("/", 3)[3]
    assert (await api.post(path, SUCCESS)).ok()["verdict"] == "accepted"
    assert (await api.final(waiting_flow))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 1


async def test_a_stop_does_not_wait_longer_than_its_grace(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """What never ends is left for the next start, which sends it again with the next attempt."""
    node = await start_node(shutdown_grace_ms=300)
    api = connect(node)
    endpoint.answer(PATH, Answer(fault="silent"), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"ack_timeout_ms": 60_000, "init_backoff_ms": 10})
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    begun = asyncio.get_running_loop().time()
    await node.stop()
    assert asyncio.get_running_loop().time() - begun < 5
    api = connect(await start_node())
    second = await endpoint.received(PATH, 2)
    assert second.metadata["attempt"] == 2
    path = "/" + second.webhook_url.split("/", 3)[3]
    (await api.post(path, SUCCESS)).ok()
    assert (await api.final(flow_id))["status"] == "completed"


async def test_a_restart_sends_nothing_again_that_merely_waits(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    node = await start_node()
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH))
    flows = [await api.start(STEP) for _ in range(10)]
    for flow_id in flows:
        await api.until_acknowledged(flow_id)
    for _ in range(3):
        await node.stop()
        node = await start_node()
    api = connect(node)
    for received in endpoint.requests(PATH):
        path = "/" + received.webhook_url.split("/", 3)[3]
        (await api.post(path, SUCCESS)).ok()
    for flow_id in flows:
        assert (await api.final(flow_id))["status"] == "completed"
    assert len(endpoint.requests(PATH)) == 10


async def test_what_was_waiting_for_its_time_goes_on_after_a_restart(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Pending and not completed items are taken up by the next start, at their time."""
    node = await start_node()
    api = connect(node)
    endpoint.answer(PATH, Answer(503), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 500, "parallelism": 1})
    flow_id = await api.start(STEP)
    await api.until_work(flow_id, "not_completed")
    await node.stop()
    api = connect(await start_node())
    second = await endpoint.received(PATH, 2)
    assert second.metadata["attempt"] == 2
    assert second.at - endpoint.requests(PATH)[0].at >= 0.5


async def test_a_writer_that_failed(start_node: StartNode, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that ends the writer: the engine says that it is not ready, and refuses at once what it cannot write."""
    node = await start_node(**NO_SWEEPS)
    api = connect(node)
    assert (await api.get("/readyz")).status == 200

    def broken(waiting: int, under_way: int) -> int:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(node.engine.engine.commit.sizer, "take", broken)
    for _ in range(2):
        unavailable(await api.post("/api/v1/flows", {"goals": [STEP]}))
    ready = await api.get("/readyz")
    unavailable(ready)
    assert ready.body["error"]["details"]["failed"] == "writer"
    assert (await api.get("/healthz")).status == 200
