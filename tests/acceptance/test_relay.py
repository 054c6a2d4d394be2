"""``counterfoil dev relay`` as a process: a worker that the engine cannot reach gets its work, also after crashes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.processes import EngineProcess, environment
from tests.eventually import eventually
from tests.wire import Api

SETTINGS = {
    "sweep_interval_ms": "200",
    "shutdown_grace_ms": "1000",
    "log_level": "warning",
    "work__init_backoff_ms": "50",
    "work__max_backoff_ms": "200",
    "work__max_retries": "1000",
}


class RelayProcess:
    """A relay, and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process, output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def printed(self) -> str:
        return self._output.read_text()

    async def says(self, text: str, count: int = 1) -> None:
        async def look() -> bool:
            return self.printed.count(text) >= count

        await eventually(look, within=30, what=f"{count} times {text!r}")

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 20)


StartRelay = Callable[..., Awaitable[RelayProcess]]


def as_in_a_terminal() -> None:
    """A shell's background jobs ignore SIGINT, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
async def start_relay(tmp_path: Path) -> AsyncIterator[StartRelay]:
    relays: list[RelayProcess] = []

    async def start(engine: EngineProcess, target: str, *options: str) -> RelayProcess:
        output = tmp_path / f"relay-{len(relays)}.txt"
        command = [sys.executable, "-m", "counterfoil", "dev", "relay", "--to", target, "--url", engine.url, *options]
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=file, stderr=file, env=environment(), preexec_fn=as_in_a_terminal
            )
        relays.append(RelayProcess(process, output))
        return relays[-1]

    yield start
    for relay in relays:
        if relay.process.returncode is None:
            relay.process.kill()
            await relay.process.wait()


@pytest.fixture
async def engine(tmp_path: Path, store_settings: dict[str, str]) -> AsyncIterator[EngineProcess]:
    process = EngineProcess(tmp_path / "engine", {**SETTINGS, **store_settings})
    await process.start()
    yield process
    if process.exit_code is None:
        await process.kill()


async def test_a_worker_behind_a_relay_does_its_work(
    engine: EngineProcess, start_relay: StartRelay, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    api = Api(session, engine.url)
    await api.put_step("job", "relay://dev/job")
    await api.put_step("now", "relay://dev/now", kind="sync")
    endpoint.answer("/now", Answer(body={"success": True, "outputs": {"n": 2}}))
    endpoint.answer("/job", Answer(503, headers={"Retry-After": "0"}), Answer(202))
    waiting = await api.start("job")  # before any relay is there: not delivered, and tried again
    await api.until_event(waiting, "work_not_completed")
    relay = await start_relay(engine, endpoint.url("").rstrip("/"))
    await relay.says("connected: relay://dev/PATH")
    await relay.says(engine.url)
    received = await endpoint.received("/job", 2)
    assert received.headers["Idempotency-Key"] == received.metadata["idempotency_key"]
    await api.until_acknowledged(waiting)
    await api.succeed(received, text="hello")
    assert (await api.final(waiting))["outputs"] == {"text": "hello"}
    assert (await api.final(await api.start("now")))["outputs"] == {"n": 2}
    await relay.says("-> POST /job", 2)
    await relay.says("<- 503 POST /job")
    await relay.says("<- 202 POST /job")
    await relay.says("<- 200 POST /now")
    assert received.token not in relay.printed
    assert await relay.end(signal.SIGINT) == 0


async def test_a_relay_survives_restarts_of_the_engine(
    engine: EngineProcess, start_relay: StartRelay, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    api = Api(session, engine.url)
    await api.put_step("now", "relay://dev/now", kind="sync")
    endpoint.answer("/now", Answer(body={"success": True}))
    relay = await start_relay(engine, endpoint.url("").rstrip("/"))
    await relay.says("connected")
    await engine.kill()
    await relay.says("trying again")
    await engine.start()
    await relay.says("connected", 2)
    assert (await api.final(await api.start("now")))["status"] == "completed"


async def test_a_relay_that_is_killed_leaves_the_outcome_unknown(
    engine: EngineProcess, start_relay: StartRelay, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    api = Api(session, engine.url)
    never = asyncio.Event()
    endpoint.answer("/charge", Answer(until=never))
    await api.put_step("charge", "relay://mine/charge", effect={"policy": "reconcile"})
    relay = await start_relay(engine, endpoint.url("").rstrip("/"), "--name", "mine")
    await relay.says("connected")
    flow_id = await api.start("charge")
    await endpoint.received("/charge")
    await relay.end(signal.SIGKILL)
    item = await api.until_work(flow_id, "not_completed", hold="reconcile")
    assert item["error"]["code"] == "OUTCOME_UNKNOWN"
    never.set()


@pytest.mark.sqlite_only
async def test_what_a_relay_cannot_do_is_said(
    engine: EngineProcess, start_relay: StartRelay, session: aiohttp.ClientSession
) -> None:
    api = Api(session, engine.url)
    await api.put_step("job", "relay://dev/job")
    first = await start_relay(engine, "http://127.0.0.1:9")
    await first.says("connected")
    flow_id = await api.start("job")
    event = await api.until_event(flow_id, "work_not_completed")
    assert event["data"]["delivery"] == "not_delivered"
    await first.says("<- not_delivered")
    second = await start_relay(engine, "http://127.0.0.1:9")
    await second.says("connected")
    assert await asyncio.wait_for(first.process.wait(), 20) == 1
    assert "another relay has connected with the name dev" in first.printed
