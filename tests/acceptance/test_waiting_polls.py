"""Two thousand polls that wait for a result: an engine process spends next to nothing on them until their flow ends."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Iterator

import pytest

from counterfoil.testing import Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess
from tests.acceptance.scenario import dispatched
from tests.acceptance.usage import cpu_seconds, resident_bytes
from tests.eventually import elapsed, eventually
from tests.rawhttp import RawConnection, raw_connection
from tests.wire import Api

POLLS = 2_000
IDLE_SECONDS = 3.0
HEARTBEATS = 20
PAUSE_SECONDS = 0.1
MOST_IDLE_SHARE = 0.05
"""Of one processor. Measured: 0.003, with the polls and without; the rest is for a busy machine."""
MOST_SECONDS_A_HEARTBEAT = 0.008
"""Measured: 0.002, with the polls and without. When each commit woke the polls of its flow: 0.08, PostgreSQL 0.03."""
MOST_BYTES_A_POLL = 32 * 1024
"""Measured: 13 KiB, nearly all of it the connection and the request."""


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for the polls' sockets in the process of the test; the engine makes its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = POLLS + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.fail(f"the test needs {needed} open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def polling(api: Api, flow_id: str, count: int) -> AsyncIterator[list[RawConnection]]:
    """So many polls of a flow, each on a connection of its own; the engine has read all of them."""
    request = f"GET /api/v1/flows/{flow_id}/result?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    async with contextlib.AsyncExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(await stack.enter_async_context(raw_connection(api.url)))
            connections[-1].send(request)

        async def counted() -> bool:
            text = (await api.get("/metrics")).content.decode()
            return f"counterfoil_waiting_polls {float(count)}" in text.splitlines()

        await eventually(counted, within=30, what="every poll")
        yield connections


async def idle_share(engine: EngineProcess) -> float:
    """How much of one processor the engine uses while nothing happens."""
    before = cpu_seconds(engine)
    await elapsed(IDLE_SECONDS)
    return (cpu_seconds(engine) - before) / IDLE_SECONDS


async def seconds_a_heartbeat(engine: EngineProcess, api: Api, received: Received) -> float:
    """Processor time of the engine for a commit that changes a flow and does not end it, with what follows from it."""
    before = cpu_seconds(engine)
    for number in range(HEARTBEATS):
        (await api.post(received.metadata["heartbeat_url"], {"progress": number / HEARTBEATS})).ok()
        await elapsed(PAUSE_SECONDS)
    return (cpu_seconds(engine) - before) / HEARTBEATS


@pytest.mark.usefixtures("many_descriptors")
async def test_polls_that_wait_cost_next_to_nothing(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    engine = new_engine(sweep_interval_ms="1000")
    await engine.start()
    api = client_of(engine)
    flow_id, received = await dispatched(api, endpoint)
    for _ in range(20):  # what is made once for all polls is made
        (await api.get(f"/api/v1/flows/{flow_id}/result", wait="0.01")).ok(202)
    idle, heartbeat = await idle_share(engine), await seconds_a_heartbeat(engine, api, received)
    memory = resident_bytes(engine)
    async with polling(api, flow_id, POLLS) as connections:
        bytes_a_poll = (resident_bytes(engine) - memory) / POLLS
        waiting_idle = await idle_share(engine)
        waiting_heartbeat = await seconds_a_heartbeat(engine, api, received)
        await api.succeed(received, a=1)
        answers = await asyncio.gather(*(connection.answer() for connection in connections))
    assert {(answer.status, answer.content) for answer in answers} == {(200, answers[0].content)}
    assert answers[0].body["outputs"] == {"a": 1}
    assert waiting_idle <= idle + MOST_IDLE_SHARE
    assert waiting_heartbeat <= heartbeat + MOST_SECONDS_A_HEARTBEAT
    assert bytes_a_poll <= MOST_BYTES_A_POLL
