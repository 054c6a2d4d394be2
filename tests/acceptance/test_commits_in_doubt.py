"""Connections cut in the middle of a commit: what became of it is read back, and clients are told the truth."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.chaos import load
from tests.acceptance.conftest import NewEngine
from tests.acceptance.ledger import Ledger, compare
from tests.databases import NewCluster
from tests.eventually import eventually
from tests.postgres import Cluster
from tests.proxy import CommitFault, Proxy
from tests.running import Connect, StartNode
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

HOUR = {"deadline_ms": 3_600_000}
SECONDS_TO_THE_END = 30.0


@pytest.fixture
async def api(proxy: Proxy, start_node: StartNode, connect: Connect) -> Api:
    return connect(await start_node(store=proxy.dsn))


FailingOver = tuple[Cluster, Proxy]


@pytest.fixture
def failing_over(new_cluster: NewCluster) -> Iterator[FailingOver]:
    """A server of the test's own behind a proxy."""
    cluster = new_cluster()
    with Proxy(cluster.dsn("postgres")) as proxy:
        yield cluster, proxy


def once(fault: CommitFault, then: Callable[[], object] = lambda: None) -> Callable[[], CommitFault | None]:
    """The next commit goes wrong, and none after it."""
    left = [fault]

    def on_commit() -> CommitFault | None:
        if not left:
            return None
        then()
        return left.pop()

    return on_commit


@pytest.mark.parametrize("fault", ["lost", "forwarded", "answered", "forgotten"])
async def test_one_commit_in_doubt(proxy: Proxy, api: Api, endpoint: StepEndpoint, fault: CommitFault) -> None:
    """The client notices nothing but the time that it takes: done once, whether it held or was done again."""
    await api.put_step("job", endpoint.url("/job"), work=HOUR)
    proxy.on_commit = once(fault)
    flow_id = await api.start("job", flow_id="one")
    received = await endpoint.received("/job")
    await api.until_acknowledged(flow_id)
    proxy.on_commit = once(fault)
    await api.succeed(received, a=1)
    (await api.complete(received, {"success": True, "outputs": {"a": 1}})).refused(400, "ALREADY_SUCCEEDED")
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    assert len(endpoint.requests("/job")) == 1
    types = await api.event_types(flow_id)
    assert len(types) == len(set(types)), types


@pytest.mark.parametrize("fault", ["lost", "answered"])
async def test_a_doubt_that_lasts(proxy: Proxy, api: Api, endpoint: StepEndpoint, fault: CommitFault) -> None:
    """A commit in doubt is answered 503. When the database is back, what it holds is acted upon by itself."""

    def stay_away() -> None:
        proxy.hanging_up = True

    await api.put_step("job", endpoint.url("/job"), work=HOUR)
    proxy.on_commit = once(fault, stay_away)
    reply = await api.post("/api/v1/flows", {"goals": ["job"], "flow_id": "doubtful"})
    reply.refused(503, "UNAVAILABLE")
    (await api.post("/api/v1/flows", {"goals": ["job"], "flow_id": "next"})).refused(503, "UNAVAILABLE")
    assert endpoint.requests("/job") == []
    proxy.admit()
    if fault == "lost":
        assert await eventually(lambda: started(api, "next"))
        (await api.get("/api/v1/flows/doubtful")).refused(404, "UNKNOWN_FLOW")
        assert await api.start("job", flow_id="doubtful") == "doubtful"
    else:
        assert (await endpoint.received("/job")).metadata["flow_id"] == "doubtful", "long before its deadline"
        (await api.post("/api/v1/flows", {"goals": ["job"], "flow_id": "doubtful"})).refused(409, "FLOW_EXISTS")
        assert await started(api, "next")
    await endpoint.received("/job", 2)
    for received in endpoint.requests("/job"):
        assert received.metadata["attempt"] == 1
        await api.succeed(received)


async def started(api: Api, flow_id: str) -> bool:
    reply = await api.post("/api/v1/flows", {"goals": ["job"], "flow_id": flow_id})
    assert reply.status in (201, 503), reply.content
    return reply.status == 201


def assert_in_order(ledger: Ledger) -> None:
    """No attempt came behind its successor, not even where a doubt lasted longer than the deadline."""
    assert [text for _, text in ledger.overtaken] == []


async def test_commits_cut_at_random_under_load(
    proxy: Proxy, start_node: StartNode, new_engine: NewEngine, endpoint: StepEndpoint
) -> None:
    """Two nodes, dozens of commits that go wrong in each of the ways: what a client was told stays true.

    One node is a process of its own, which runs on another event loop; one is in ours, which shows what it leaks.
    """
    dice = random.Random(3)
    faults: list[CommitFault] = []

    def on_commit() -> CommitFault | None:
        if dice.random() > 0.15:
            return None
        kinds: list[CommitFault] = ["lost", "forwarded", "answered", "forgotten"]
        faults.append(dice.choices(kinds, weights=(10, 10, 10, 1))[0])
        return faults[-1]

    node, engine = await start_node(store=proxy.dsn, lease_ms=5000), new_engine(store=proxy.dsn, lease_ms="5000")
    await engine.start()
    async with load(endpoint, seed=3) as chaos:
        chaos.urls = [node.url, engine.url]
        await chaos.register()
        proxy.on_commit = on_commit
        chaos.open(customers=12)
        await eventually(lambda: len(faults) >= 30, within=30)
        proxy.on_commit = lambda: None
        await chaos.close(SECONDS_TO_THE_END)
        await chaos.idle(SECONDS_TO_THE_END)
        await compare(chaos.ledger, chaos.call, SECONDS_TO_THE_END)
    assert_in_order(chaos.ledger)
    assert {"lost", "forwarded", "answered"} <= set(faults)
    assert await engine.stop() == 0
    assert "commit_resolved" in engine.output()
    assert "Traceback" not in engine.output()


async def test_a_failover(failing_over: FailingOver, start_node: StartNode, endpoint: StepEndpoint) -> None:
    """The server dies with commits under way and comes back elsewhere; old connections are never closed."""
    cluster, proxy = failing_over
    node = await start_node(store=proxy.dsn, lease_ms=5000)
    async with load(endpoint, seed=4) as chaos:
        chaos.urls = [node.url]
        await chaos.register()
        chaos.open(customers=12)
        await eventually(lambda: proxy.commits > 30)
        forgotten = asyncio.Event()
        loop = asyncio.get_running_loop()
        proxy.on_commit = once("forgotten", partial(loop.call_soon_threadsafe, forgotten.set))
        await forgotten.wait()
        proxy.forget()
        await asyncio.to_thread(cluster.stop, "immediate")
        (cluster.home / "port").unlink()  # so that it starts on another one
        await asyncio.to_thread(cluster.start)
        assert cluster.port != proxy.target
        proxy.target = cluster.port
        before = proxy.commits
        await eventually(lambda: proxy.commits > before + 30, within=15, what="commits on the other server")
        await chaos.close(SECONDS_TO_THE_END)
        await chaos.idle(SECONDS_TO_THE_END)
        await compare(chaos.ledger, chaos.call, SECONDS_TO_THE_END)
    assert_in_order(chaos.ledger)
