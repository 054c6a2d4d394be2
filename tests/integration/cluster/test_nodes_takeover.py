"""Leases: a node owns its in-flight attempts while its lease holds; then any other node reclaims them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Self

import orjson
import pytest

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.testing import Answer, Received, StepEndpoint
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.integration.several_nodes import (
    ONLY_BY_WORD,
    PROMPT_SECONDS,
    hand,
    introduce,
    lease_of,
    metric,
    node_id,
    on,
    senders,
    succeed,
)
from tests.proxy import Proxy
from tests.running import Connect, Node, StartNode
from tests.wire import Api, moment

pytestmark = pytest.mark.postgresql_only

LEASE = {"lease_ms": 1_000, "sweep_interval_ms": 100}
LATE = 'counterfoil_dispatches_total{outcome="late"}'
PATIENT = {"ack_timeout_ms": 60_000}


@pytest.fixture
def line(store_settings: dict[str, str]) -> Iterator[Proxy]:
    """A way to the database that can fail; it is there longer than the nodes that use it."""
    with Proxy(store_settings["store"]) as proxy:
        yield proxy


def answer_by_attempt(endpoint: StepEndpoint, first: asyncio.Event) -> None:
    """The first attempt is answered when the event is set, every other at once; each with its number."""

    async def answer(received: Received) -> Answer:
        attempt = received.metadata["attempt"]
        until = first if attempt == 1 else None
        return Answer(body={"success": True, "outputs": {"attempt": attempt}}, until=until)

    endpoint.answer(PATH, answer)


async def lease_end(name: str, asked: Node) -> datetime:
    """When the lease of a node ends, as the database has it, to which another node leads."""
    async with hand(asked) as connection:
        end = await connection.fetchval("SELECT lease_until FROM nodes WHERE node_id = $1", name)
    assert isinstance(end, datetime)
    return end


async def outcomes(api: Api, flow_id: str) -> list[str]:
    """What the journal tells of the attempts of a flow with one work item."""
    kept = ("work_dispatched", "work_not_completed", "work_succeeded", "work_failed")
    return [kind.removeprefix("work_") for kind in await api.event_types(flow_id) if kind in kept]


@contextlib.contextmanager
def without_renewals(node: Node) -> Iterator[None]:
    """The store does all that this node asks for, but for this one thing."""

    async def fail(node_id: str, lease_ms: int) -> int | None:
        raise StoreFailure("no renewals today")

    store = node.engine.engine.store
    store.renew = fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        del store.renew


# ------------------------------------------------------------------------------------------------ taken over


async def test_a_node_that_is_cut_off_loses_what_it_was_sending(
    line: Proxy, start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Not before its lease has ended, and soon after. When it is back it has another name, and its answer is late."""
    lost, other = await start_node(store=line.dsn, **LEASE), await start_node(**LEASE)
    a, b = connect(lost), connect(other)
    old_name, answered = node_id(lost), asyncio.Event()
    answer_by_attempt(endpoint, answered)
    await b.put_step(STEP, endpoint.url(PATH), kind="sync", work=PATIENT)
    flow_id = await a.start(STEP)
    await endpoint.received(PATH)

    line.silence()
    end = await lease_end(old_name, other)
    await endpoint.received(PATH, 2)
    taken = await b.until_event(flow_id, "work_not_completed")
    assert (taken["data"]["error"]["code"], taken["data"]["delivery"]) == ("INTERRUPTED", "unknown")
    assert 0 <= (moment(taken["at"]) - end).total_seconds() < PROMPT_SECONDS
    assert (await b.final(flow_id))["outputs"] == {"attempt": 2}
    assert await senders(b, flow_id) == [old_name, node_id(other)]

    answered.set()
    line.admit()
    await eventually(lambda: is_late(a, 1), within=20, what="the late answer")
    await eventually(lambda: lease_of(lost).held, what="a new lease")
    assert node_id(lost) != old_name
    assert await outcomes(b, flow_id) == ["dispatched", "not_completed", "dispatched", "succeeded"]
    assert (await a.final(flow_id))["outputs"] == {"attempt": 2}

    again = await a.start(STEP)
    assert (await a.final(again))["status"] == "completed"
    assert await senders(a, again) == [node_id(lost)]


async def is_late(api: Api, count: int) -> bool:
    return await metric(api, LATE) == count


async def test_a_claim_is_not_sent_under_another_lease(line: Proxy, start_node: StartNode, connect: Connect) -> None:
    """It took the node longer to get a connection to the endpoint than to lose its lease and get a new one."""
    lost, other = await start_node(store=line.dsn, **LEASE), await start_node(**LEASE)
    a, b = connect(lost), connect(other)
    async with Turnstile() as turnstile:
        await b.put_step(STEP, turnstile.url, kind="sync", work=PATIENT)
        flow_id = await a.start(STEP)
        old_name = node_id(lost)
        line.silence()
        await b.until_work(flow_id, "active", attempt=2)
        line.admit()
        await eventually(lambda: node_id(lost) != old_name and lease_of(lost).held, within=20, what="a new lease")
        turnstile.open()
        await eventually(lambda: is_late(a, 1), within=20, what="the end of the first attempt")
        assert (await b.final(flow_id, wait="20"))["status"] == "completed"
        assert turnstile.attempts == [2]
    assert await senders(b, flow_id) == [old_name, node_id(other)]


class Turnstile:
    """A sync endpoint that accepts no connection before it is opened: the network itself keeps clients waiting."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        """Which attempts it was sent, in their order."""
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(0)
        self._first_in_line = socket.create_connection(self._socket.getsockname())
        self._server: asyncio.Task[asyncio.Server] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            (await self._server).close()
        self._socket.close()

    def open(self) -> None:
        self._first_in_line.close()
        self._server = asyncio.create_task(asyncio.start_server(self._serve, sock=self._socket))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length:")[2].split()[0])
            self.attempts.append(orjson.loads(await reader.readexactly(length))["metadata"]["attempt"])
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()


async def test_a_node_alone_takes_over_from_itself(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Its lease lapsed while it was sending: under its new name it does not know what became of that."""
    node = await start_node(**LEASE)
    api, old_name, answered = connect(node), node_id(node), asyncio.Event()
    answer_by_attempt(endpoint, answered)
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", work=PATIENT)
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    with without_renewals(node):
        await eventually(lambda: not lease_of(node).held, what="the end of the lease")
        await elapsed(0.3)
        assert await outcomes(api, flow_id) == ["dispatched"], "its own is not taken from it while it has its name"
    assert (await api.final(flow_id))["outputs"] == {"attempt": 2}
    assert await senders(api, flow_id) == [old_name, node_id(node)]
    answered.set()
    await eventually(lambda: is_late(api, 1), what="the late answer")
    assert await outcomes(api, flow_id) == ["dispatched", "not_completed", "dispatched", "succeeded"]


async def test_an_answer_counts_after_the_lease_while_no_node_has_taken_over(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    node = await start_node(**LEASE)
    api, answered = connect(node), asyncio.Event()
    answer_by_attempt(endpoint, answered)
    await api.put_step(STEP, endpoint.url(PATH), kind="sync", work=PATIENT)
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    with without_renewals(node):
        await eventually(lambda: not lease_of(node).held, what="the end of the lease")
        answered.set()
        assert (await api.final(flow_id))["outputs"] == {"attempt": 1}
    assert len(endpoint.requests(PATH)) == 1


# ------------------------------------------------------------------------------------------------ without a lease


async def test_a_node_without_a_lease_takes_everything_and_sends_nothing(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """What is to be sent another node sends, and at once: it is told. With a new lease the first sends again."""
    without, other = await start_node(**LEASE), await start_node(**ONLY_BY_WORD)
    await introduce(without, other)
    a, b = connect(without), connect(other)
    flow_id, received = await dispatched(a, endpoint)
    assert await senders(a, flow_id) == [node_id(without)]
    with without_renewals(without):
        await eventually(lambda: not lease_of(without).held, what="the end of the lease")
        (await a.post(on(a, received, "/heartbeat"), {})).ok()
        await succeed(a, received)
        second = await a.start(STEP)
        await endpoint.received(PATH, 2, within=PROMPT_SECONDS)
        assert await senders(b, second) == [node_id(other)]

    async def sends_again() -> bool:
        flow_id = await a.start(STEP)
        await a.until_acknowledged(flow_id)
        return await senders(a, flow_id) == [node_id(without)]

    await eventually(sends_again, what="something that the first node sends")


async def test_what_waited_for_a_lease_is_sent_with_it(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """At once, not at the next tick of a sweep."""
    node = await start_node(lease_ms=1_000, sweep_interval_ms=60_000)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH))
    with without_renewals(node):
        await eventually(lambda: not lease_of(node).held, what="the end of the lease")
        flow_id = await api.start(STEP)
        await elapsed(0.2)
        assert (await api.work(flow_id))["status"] == "pending"
    await endpoint.received(PATH, within=PROMPT_SECONDS)


async def test_a_claim_under_a_lease_that_has_lapsed_is_refused_by_the_database(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Though the node believes in it still: nothing is written, and nothing sent."""
    node = await start_node(**ONLY_BY_WORD)
    api = connect(node)
    await api.put_step(STEP, endpoint.url(PATH))
    old_name = node_id(node)
    async with hand(node) as connection:
        await connection.execute("UPDATE nodes SET lease_until = clock_timestamp()")
    assert lease_of(node).held
    (await api.post("/api/v1/flows", {"goals": [STEP], "flow_id": "refused"})).refused(503, "UNAVAILABLE")
    (await api.get("/api/v1/flows/refused")).refused(404, "UNKNOWN_FLOW")
    await lease_of(node).keep()
    flow_id = await api.start(STEP)
    assert (await endpoint.received(PATH)).metadata["flow_id"] == flow_id
    [sender] = await senders(api, flow_id)
    assert sender == node_id(node) != old_name


# ------------------------------------------------------------------------------------------------ leaving


async def test_a_node_that_leaves_hands_over_at_once(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """What it could not finish in its time is sent by another, however long its lease was."""
    settings = {"lease_ms": 300_000, "sweep_interval_ms": 100}
    leaves, stays = await start_node(**settings, shutdown_grace_ms=0), await start_node(**settings)
    a, b = connect(leaves), connect(stays)
    answer_by_attempt(endpoint, asyncio.Event())
    await a.put_step(STEP, endpoint.url(PATH), kind="sync", work=PATIENT)
    flow_id = await a.start(STEP)
    await endpoint.received(PATH)
    await leaves.stop()
    assert (await asyncio.wait_for(b.final(flow_id), PROMPT_SECONDS))["outputs"] == {"attempt": 2}
    assert await senders(b, flow_id) == [node_id(leaves), node_id(stays)]


async def test_a_node_that_takes_its_time_to_leave_keeps_what_it_is_sending(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Its grace is longer than its lease: no node takes over what it still waits for."""
    leaves, stays = await start_node(**LEASE, shutdown_grace_ms=20_000), await start_node(**LEASE)
    a, b = connect(leaves), connect(stays)
    answered = asyncio.Event()
    answer_by_attempt(endpoint, answered)
    await a.put_step(STEP, endpoint.url(PATH), kind="sync", work=PATIENT)
    flow_id = await a.start(STEP)
    await endpoint.received(PATH)
    async with leaving(leaves):
        await elapsed(2.5 * LEASE["lease_ms"] / 1000)
        answered.set()
    assert (await b.final(flow_id))["outputs"] == {"attempt": 1}
    assert await outcomes(b, flow_id) == ["dispatched", "succeeded"]
    assert len(endpoint.requests(PATH)) == 1


@contextlib.asynccontextmanager
async def leaving(node: Node) -> AsyncIterator[None]:
    stopping = asyncio.create_task(node.stop())
    await eventually(lambda: node.engine.engine.accepting is False, what="a node that is leaving")
    yield
    await stopping


async def test_slow_reads_do_not_cost_the_lease(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Leases have a connection of their own: three reads that hang occupy every reader, and nothing else."""
    node = await start_node(lease_ms=1_000, sweep_interval_ms=100)
    api, name = connect(node), node_id(node)
    await dispatched(api, endpoint)
    async with hand(node) as connection, connection.transaction():
        await connection.execute("LOCK TABLE flow_labels IN ACCESS EXCLUSIVE MODE")
        slow = [asyncio.create_task(api.get("/api/v1/flows", label="a:b")) for _ in range(3)]
        await elapsed(2.5)
        assert lease_of(node).held
    assert [(await each).status for each in slow] == [200] * 3
    assert node_id(node) == name
