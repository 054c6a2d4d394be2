"""PostgreSQL restarted, unreachable, silent: 503 and soon while it lasts, nothing lost, and recovery by itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import asyncpg
import orjson
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.chaos import load
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.ledger import compare
from tests.acceptance.processes import EngineProcess
from tests.acceptance.scenario import dispatched
from tests.databases import NewCluster, NewDatabase
from tests.eventually import elapsed, eventually
from tests.proxy import Proxy
from tests.running import Connect, StartNode
from tests.sse import event_stream
from tests.wire import Api, Reply

T = TypeVar("T")

pytestmark = pytest.mark.postgresql_only

SUCCESS = {"success": True, "outputs": {"a": 1}}
NOTICED = 6.0
"""A request that was waiting when the server fell silent is answered within so many seconds."""
REFUSED = 3.0
"""A request that comes later is answered within so many seconds."""
SECONDS_TO_THE_END = 30.0
OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "4"))
"""How long the server is out of reach; a minute by ``make chaos``, which is longer than a lease."""


@pytest.fixture
async def api(proxy: Proxy, start_node: StartNode, connect: Connect) -> Api:
    """An engine of the test's own process that reaches its database by way of the proxy."""
    return connect(await start_node(store=proxy.dsn))


def unavailable(reply: Reply) -> None:
    reply.refused(503, "UNAVAILABLE")
    assert int(reply.headers["Retry-After"]) >= 1


async def within(seconds: float, work: Awaitable[T]) -> T:
    """What comes of it, if it comes in time; how long it took is in the failure."""
    began = time.monotonic()
    result = await work
    took = time.monotonic() - began
    assert took < seconds, f"took {took:.2f} s: {result}"
    return result


async def accepted(api: Api, received: Received) -> bool:
    """Post as a worker does: again, as long as the engine says not now."""
    reply = await api.complete(received, SUCCESS)
    if reply.status == 503:
        unavailable(reply)
        return False
    assert reply.status == 200 or reply.code == "ALREADY_SUCCEEDED", reply.content
    return True


async def is_ready(api: Api) -> bool:
    return (await api.get("/readyz")).status == 200


def entries(engine: EngineProcess) -> list[dict[str, str]]:
    """What the engine logged; fails on anything that is no line of JSON, and on every trace of calls."""
    lines = [line for line in engine.output().splitlines() if not line.startswith("listening on")]
    found = [orjson.loads(line) for line in lines]
    assert not [entry for entry in found if "exception" in entry], found
    return found


# ------------------------------------------------------------------------------------------------ restarts


async def test_restarted_under_load(new_cluster: NewCluster, new_engine: NewEngine, endpoint: StepEndpoint) -> None:
    """Nothing that a client was told is lost, no outcome changes, everything ends, and no trace of calls is logged."""
    cluster = new_cluster()
    engine = new_engine(store=cluster.dsn("postgres"))
    await engine.start()
    async with load(endpoint, seed=1) as chaos:
        chaos.urls = [engine.url]
        await chaos.register()
        chaos.open(customers=8)
        for mode in ("fast", "immediate"):
            await elapsed(0.7)
            noticed = chaos.ledger.tried_again["503"]
            await asyncio.to_thread(cluster.stop, mode)
            await eventually(partial(_is_more, chaos.ledger.tried_again, noticed), what="a client that notices")
            await asyncio.to_thread(cluster.start)
        await elapsed(0.7)
        await chaos.close(SECONDS_TO_THE_END)
        await chaos.idle(SECONDS_TO_THE_END)
        await compare(chaos.ledger, chaos.call, SECONDS_TO_THE_END)
    assert len(chaos.ledger.accepted) > 20
    assert await engine.stop() == 0
    entries(engine)
    assert run_doctor(Settings(data=engine.data, store=cluster.dsn("postgres"))) == []


def _is_more(tried_again: Counter[str], before: int) -> bool:
    return tried_again["503"] > before


# ------------------------------------------------------------------------------------------------ unreachable


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.chaos
async def test_unreachable_for_a_while(
    proxy: Proxy, new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """The process says that it lives and is not ready, refuses at once, keeps calm, and goes on by itself."""
    engine = new_engine(store=proxy.dsn, lease_ms="15000", sweep_interval_ms="1000")
    await engine.start()
    api = client_of(engine)
    flow_id, received = await dispatched(api, endpoint)
    endpoint.answer("/late", Answer(503), Answer())
    await api.put_step("late", endpoint.url("/late"), work={"init_backoff_ms": 1500, "max_backoff_ms": 1500})
    late = await api.start("late")
    await api.until_work(late, "not_completed")
    path = f"{api.url}/api/v1/flows/{flow_id}/stream"
    async with event_stream(session, path) as stream:
        await stream.until("work_acknowledged")
        proxy.hang_up()
        for number in range(2):
            connections, spent, lines = proxy.accepted, cpu_seconds(engine.pid), len(entries(engine))
            await refused_for(OUTAGE_SECONDS / 2, api, received)
            assert cpu_seconds(engine.pid) - spent < 0.75 * OUTAGE_SECONDS / 2
            assert proxy.accepted - connections < (26, 8)[number] + OUTAGE_SECONDS, "at last twice a second at most"
            assert len(entries(engine)) - lines < 56 + OUTAGE_SECONDS
        proxy.admit()
        await within(4, eventually(lambda: accepted(api, received)))
        # It goes on, unless it looked while there was nothing to be seen; then the client comes again.
        try:
            await stream.until("flow_completed")
        except (EOFError, aiohttp.ClientPayloadError):
            async with event_stream(session, path, stream.last_id) as again:
                await again.until("flow_completed")
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    await within(4, eventually(lambda: is_ready(api)))
    assert (await endpoint.received("/late", 2)).metadata["attempt"] == 2, "sweeps go on"
    proxy.cut()
    await within(2, eventually(lambda: is_ready(api), what="the pause being short again"))
    assert await engine.stop() == 0
    assert {"store_unavailable", "store_available"} <= {entry["event"] for entry in entries(engine)}


async def refused_for(seconds: float, api: Api, received: Received) -> None:
    """Ask everything, over and over, for so long: it is refused, and at once."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        unavailable(await within(REFUSED, api.complete(received, SUCCESS)))
        unavailable(await within(REFUSED, api.post(received.metadata["heartbeat_url"], {})))
        unavailable(await within(REFUSED, api.post("/api/v1/flows", {"goals": ["job"]})))
        unavailable(await within(REFUSED, api.get("/api/v1/flows")))
        ready = await within(REFUSED, api.get("/readyz"))
        unavailable(ready)
        assert "store" in ready.body["error"]["message"]
        assert (await within(REFUSED, api.get("/healthz"))).status == 200
        assert (await within(REFUSED, api.get("/metrics"))).status == 200
        await elapsed(0.05)


async def test_a_stream_that_cannot_go_on_ends(
    proxy: Proxy,
    start_node: StartNode,
    connect: Connect,
    endpoint: StepEndpoint,
    session: aiohttp.ClientSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Told by another node that there is more to read, it cannot: the client is cut off, and comes again."""
    here, there = await start_node(store=proxy.dsn, store_listen=proxy.direct), await start_node(store=proxy.direct)
    await eventually(lambda: here.engine.engine.lease.others and there.engine.engine.lease.others)
    api = connect(there)
    flow_id, received = await dispatched(api, endpoint)
    path = f"/api/v1/flows/{flow_id}/stream"
    async with event_stream(session, here.url + path) as stream:
        await stream.until("work_acknowledged")
        proxy.hang_up()
        await api.succeed(received)
        with pytest.raises((EOFError, aiohttp.ClientPayloadError)):
            await stream.next()
    unavailable(await connect(here).get(path))
    proxy.admit()
    await eventually(lambda: is_ready(connect(here)))
    async with event_stream(session, here.url + path, stream.last_id) as again:
        assert (await again.next()).event == "work_succeeded"
        await again.until("flow_completed")
    assert "Traceback" not in capsys.readouterr().out


async def test_a_server_that_only_reads(proxy: Proxy, api: Api, endpoint: StepEndpoint) -> None:
    """As a standby does: what needs no writing goes on, the rest is refused, and connections are not made in vain."""
    flow_id, received = await dispatched(api, endpoint)
    await alter_database(proxy, "SET default_transaction_read_only = on")
    proxy.cut()
    began, connections = time.monotonic(), proxy.accepted
    while time.monotonic() < began + 1.5:
        unavailable(await within(REFUSED, api.complete(received, SUCCESS)))
        assert (await api.get(f"/api/v1/flows/{flow_id}")).status == 200
    assert proxy.accepted - connections < 15
    await alter_database(proxy, "RESET default_transaction_read_only")
    await within(4, eventually(lambda: accepted(api, received)))
    assert (await api.final(flow_id))["outputs"] == {"a": 1}


async def alter_database(proxy: Proxy, change: str) -> None:
    """From another database: this one may be only to be read."""
    connection = await asyncpg.connect(proxy.direct, database="postgres")
    try:
        await connection.execute(f"ALTER DATABASE {proxy.database} {change}")
    finally:
        await connection.close()


async def test_word_from_other_nodes_is_heard_again(
    proxy: Proxy, start_node: StartNode, connect: Connect, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """A listener that was cut off comes back by itself."""
    there = await start_node(store=proxy.direct, lease_ms=60_000)
    here = await start_node(store=proxy.direct, store_listen=proxy.dsn, lease_ms=60_000)
    await there.engine.engine.membership.renew()  # so that it knows of the other without waiting for its next renewal
    await eventually(lambda: proxy.links == 1)
    proxy.cut()
    await eventually(lambda: proxy.accepted == 2)
    flow_id, received = await dispatched(connect(there), endpoint)
    async with event_stream(session, f"{here.url}/api/v1/flows/{flow_id}/stream") as stream:
        await stream.until("work_acknowledged")
        await connect(there).succeed(received)
        await stream.until("flow_completed", within=5)


# ------------------------------------------------------------------------------------------------ silence


async def test_a_server_that_falls_silent(proxy: Proxy, api: Api, endpoint: StepEndpoint) -> None:
    """A black hole: connections are neither answered nor closed. No request waits long, and it ends when it ends."""
    flow_id, received = await dispatched(api, endpoint)
    proxy.silence()
    replies = await asyncio.gather(
        within(NOTICED, api.complete(received, SUCCESS)),
        within(NOTICED, api.post(received.metadata["heartbeat_url"], {})),
        within(NOTICED, api.post("/api/v1/flows", {"goals": ["job"], "flow_id": "lost"})),
        *(within(NOTICED, api.get("/api/v1/flows")) for _ in range(10)),
    )
    for reply in replies:
        unavailable(reply)
    await refused_for(1.5, api, received)
    proxy.admit()
    await within(8, eventually(lambda: accepted(api, received)))
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    assert await api.start("job", flow_id="lost") == "lost", "what was refused has left no trace"
    assert await eventually(lambda: is_ready(api))


async def test_connections_that_are_forgotten(proxy: Proxy, api: Api, endpoint: StepEndpoint) -> None:
    """A failover may leave connections behind on which nothing ever comes, while new ones are served."""
    flow_id, received = await dispatched(api, endpoint)
    proxy.forget()
    replies = await asyncio.gather(
        within(NOTICED, api.post(received.metadata["heartbeat_url"], {})),
        *(within(NOTICED, api.get("/api/v1/flows")) for _ in range(4)),
    )
    assert [reply.status for reply in replies] == [200] * 5, "nothing was committed yet, so it was simply done again"
    await api.succeed(received, a=1)
    assert (await api.final(flow_id))["outputs"] == {"a": 1}


async def test_slow_is_not_lost(new_database: NewDatabase, start_node: StartNode, connect: Connect) -> None:
    """What takes long while the server is there is waited for."""
    dsn = new_database()
    api = connect(await start_node(store=dsn))
    blocker = await asyncpg.connect(dsn)
    try:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE flows, steps IN ACCESS EXCLUSIVE MODE")
            asked = [asyncio.ensure_future(api.get(path)) for path in ("/api/v1/flows", "/api/v1/steps")]
            written = asyncio.ensure_future(api.put_step("job", "http://127.0.0.1:9/job"))
            done, _ = await asyncio.wait([*asked, written], timeout=3.0)
            assert not done
        for reply in asked:
            assert (await reply).status == 200
        await written
    finally:
        await blocker.close()


async def test_a_stop_while_the_server_is_silent(proxy: Proxy, start_node: StartNode, connect: Connect) -> None:
    """The node does not wait for a goodbye that never comes, and leaves nothing behind."""
    node = await start_node(store=proxy.dsn, shutdown_grace_ms=500)
    assert (await connect(node).get("/readyz")).status == 200
    proxy.silence()
    await within(8, node.stop())
    proxy.admit()
    assert not {task.get_name() for task in asyncio.all_tasks()} & {"connect", "watchdog", "listener", "group-commit"}
    await eventually(lambda: proxy.links == 0)
