"""Nodes as processes of their own: one is killed, or stopped for longer than its lease, and another goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import orjson
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.processes import EngineProcess
from tests.eventually import eventually
from tests.integration.several_nodes import metric, on, senders, succeed
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

LEASE_SECONDS = 1.0
SETTINGS = {
    "lease_ms": "1000",
    "sweep_interval_ms": "200",
    "shutdown_grace_ms": "2000",
    "log_format": "json",
    "log_level": "warning",
    "work__init_backoff_ms": "20",
    "work__jitter": "false",
    "work__ack_timeout_ms": "60000",
}
SLACK_SECONDS = 5.0
"""What a busy machine may add to any time."""

StartProcess = Callable[[str], Awaitable[tuple[EngineProcess, Api]]]


@pytest.fixture
async def start_process(
    tmp_path: Path, store_settings: dict[str, str], session: aiohttp.ClientSession
) -> AsyncIterator[StartProcess]:
    """Starts nodes on the database of the test, and kills what is left of them in the end."""
    engines: list[EngineProcess] = []

    async def start(name: str) -> tuple[EngineProcess, Api]:
        engines.append(EngineProcess(tmp_path / name, {**SETTINGS, **store_settings}))
        await engines[-1].start()
        return engines[-1], Api(session, engines[-1].url)

    yield start
    for engine in engines:
        if engine.exit_code is None:
            await engine.kill()
    findings = run_doctor(Settings(store=store_settings["store"]))
    assert not findings, findings


async def sent_and_held(api: Api, endpoint: StepEndpoint) -> tuple[str, str, asyncio.Event]:
    """Two flows: the node has sent one and waits for its callback, and is sending the other until the event is set."""
    answered = asyncio.Event()

    async def answer(received: Received) -> Answer:
        attempt = received.metadata["attempt"]
        body = {"success": True, "outputs": {"attempt": attempt}}
        return Answer(body=body, until=answered if attempt == 1 else None)

    endpoint.answer("/sending", answer)
    await api.put_step("sending", endpoint.url("/sending"), kind="sync")
    await api.put_step("waiting", endpoint.url("/waiting"))
    waiting, sending = await api.start("waiting"), await api.start("sending")
    await api.until_acknowledged(waiting)
    await endpoint.received("/sending")
    return waiting, sending, answered


async def check_taken_over(api: Api, endpoint: StepEndpoint, sending: str, since: float) -> None:
    """The attempt was made again by another node, once, within the lease and a sweep, and not before the lease ended.

    ``since``: when the sender fell silent. Its last renewal may have been a third of a lease before.
    """
    second = await endpoint.received("/sending", 2, within=LEASE_SECONDS + 2 * SLACK_SECONDS)
    assert LEASE_SECONDS * 0.6 <= second.at - since <= LEASE_SECONDS + 0.2 + SLACK_SECONDS
    assert (await api.final(sending))["outputs"] == {"attempt": 2}
    first, other = await senders(api, sending)
    assert first != other


async def check_only_the_webhook_counts(api: Api, endpoint: StepEndpoint, waiting: str) -> None:
    """What was acknowledged was not sent again: its report is taken by any node that is there."""
    assert (await api.work(waiting))["status"] == "active"
    assert len(endpoint.requests("/waiting")) == 1
    await succeed(api, endpoint.requests("/waiting")[0], n=1)
    assert (await api.final(waiting))["outputs"] == {"n": 1}
    assert (await api.event_types(waiting)).count("work_dispatched") == 1


async def test_a_killed_node(start_process: StartProcess, endpoint: StepEndpoint) -> None:
    (victim, a), (_, b) = await start_process("a"), await start_process("b")
    waiting, sending, _ = await sent_and_held(a, endpoint)
    await victim.kill()
    await check_taken_over(b, endpoint, sending, since=time.monotonic())
    await check_only_the_webhook_counts(b, endpoint, waiting)


async def test_a_node_that_comes_back_late(start_process: StartProcess, endpoint: StepEndpoint) -> None:
    """It finds its lease lapsed, takes another name, and what its endpoint answered meanwhile changes nothing."""
    (sleeper, a), (_, b) = await start_process("a"), await start_process("b")
    waiting, sending, answered = await sent_and_held(a, endpoint)
    [old_name] = await senders(b, sending)
    sleeper.signal(signal.SIGSTOP)
    await check_taken_over(b, endpoint, sending, since=time.monotonic())
    journal = await b.events(sending)
    answered.set()
    sleeper.signal(signal.SIGCONT)

    await eventually(lambda: _late(a), within=20, what="the late answer")
    renamed = await eventually(lambda: lapses(sleeper), within=20, what="another name")
    assert old_name in {line["was"] for line in renamed}
    assert await a.events(sending) == journal
    assert (await a.get(on(a, endpoint.requests("/waiting")[0]))).ok()["status"] == "active"
    await check_only_the_webhook_counts(b, endpoint, waiting)

    async def sends_again() -> bool:
        flow_id = await a.start("sending")
        assert (await b.final(flow_id))["status"] == "completed"
        return renamed[-1]["now"] in await senders(b, flow_id)

    await eventually(sends_again, within=20, what="something sent under the new name")


async def _late(api: Api) -> bool:
    return await metric(api, 'counterfoil_dispatches_total{outcome="late"}') == 1


def lapses(engine: EngineProcess) -> list[dict[str, str]]:
    """What a node has written of leases that it lost."""
    lines = [orjson.loads(line) for line in engine.output().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "lease_lapsed"]
