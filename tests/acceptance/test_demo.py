"""The demo as people start it: a process of its own, everything over HTTP."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import aiohttp
import pytest

from counterfoil.cli.demo.scenarios import SCENARIOS
from tests.eventually import eventually

CHARGE_EVENTS = {
    "work_held",
    "approval_approved",
    "work_dispatched",
    "work_not_completed",
    "work_reconciled",
    "work_succeeded",
    "work_failed",
}

StartDemo = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start_demo() -> AsyncIterator[StartDemo]:
    processes: list[Process] = []

    async def start(*arguments: str) -> Process:
        command = [sys.executable, "-m", "counterfoil", "demo", "--port", "0", *arguments]
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_until(process: Process, pattern: str) -> str:
    """Everything that was printed, up to and with the line that has the pattern."""
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(50):
        while not re.search(pattern, text):
            line = await process.stdout.readline()
            assert line, f"ended before {pattern!r}: {text}"
            text += line.decode()
    return text


async def test_once_ends_after_the_summary(start_demo: StartDemo) -> None:
    process = await start_demo("--once")
    out, err = await asyncio.wait_for(process.communicate(), 55)
    text = out.decode()
    assert (process.returncode, err.decode()) == (0, "")
    assert "✓ 40 of 40 flows ended as expected" in text
    assert "✓ 6 duplicate or conflicting results refused, none changed an outcome" in text
    assert "✓ doctor: the live database is clean" in text
    assert "✓ 4 cards charged once each; the worker died 2 times: 5 attempts, 5 approvals" in text
    assert "✗" not in text
    for scenario in SCENARIOS:
        assert re.search(rf"✓ +{scenario.step_id} +{re.escape(scenario.story)} +\d {scenario.expected}", text)


async def test_without_once_it_serves_until_it_is_interrupted(
    start_demo: StartDemo, session: aiohttp.ClientSession
) -> None:
    process = await start_demo("--flows", "9")
    text = await read_until(process, r"counterfoil flow list")
    found = re.search(r"still serving at (http://\S+) ", text)
    assert found is not None
    url = found[1]
    async with session.get(f"{url}/api/v1/flows", params={"limit": "100"}) as response:
        assert len((await response.json())["flows"]) == 9
    again = {"goals": ["early"], "init": {"number": 7}, "flow_id": "again"}
    async with session.post(f"{url}/api/v1/flows", json=again) as response:
        assert response.status == 201
    async with session.get(f"{url}/api/v1/flows/again/result", params={"wait": "20"}) as response:
        assert (await response.json())["outputs"] == {"answer": 49}
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err.decode()) == (0, "")


async def test_a_charge_whose_worker_died_was_held_approved_and_sent_once_per_approval(
    start_demo: StartDemo, session: aiohttp.ClientSession
) -> None:
    process = await start_demo("--flows", "20")
    text = await read_until(process, r"counterfoil flow list")
    url, run = re.findall(r"(http://\S+)/api/v1/flows/(demo-\w+)-01", text)[0]
    journals = []
    for number in (10, 20):
        async with session.get(f"{url}/api/v1/flows/{run}-{number}/events", params={"limit": "100"}) as response:
            events = (await response.json())["events"]
        journals.append([event for event in events if event["type"] in CHARGE_EVENTS])
    before, after = ([event["type"] for event in events] for events in journals)
    sent = ["work_held", "approval_approved", "work_dispatched"]
    assert before == [*sent, "work_not_completed", "work_reconciled", *sent, "work_succeeded"]
    assert after == [*sent, "work_not_completed", "work_reconciled", "work_succeeded"]
    for events, outcome in zip(journals, ("not_applied", "applied"), strict=True):
        data = {event["type"]: event["data"] for event in events}
        unknown = next(event["data"] for event in events if event["type"] == "work_not_completed")
        assert (unknown["hold"], unknown["error"]["code"]) == ("unsafe_once", "UNSAFE_ONCE_INCOMPLETE")
        assert data["work_reconciled"]["outcome"] == outcome
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err.decode()) == (0, "")


async def test_a_killed_demo_leaves_no_process_behind(start_demo: StartDemo, session: aiohttp.ClientSession) -> None:
    """The process that charges cards has a listening socket; it is closed when the process has ended."""
    process = await start_demo("--flows", "400")
    url = re.findall(r"engine at (http://[^,]+),", await read_until(process, r"flows started"))[0]
    async with session.get(f"{url}/api/v1/steps/charge") as response:
        endpoint = urlsplit((await response.json())["endpoint"])

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection(endpoint.hostname, endpoint.port)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    assert await listens()
    process.kill()

    async def is_gone() -> bool:
        return not await listens()

    await eventually(is_gone, within=20, what="no process listens")


async def test_an_interrupt_in_the_middle_leaves_nothing_behind(start_demo: StartDemo) -> None:
    process = await start_demo("--flows", "400")
    await read_until(process, r"flows started")
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err.decode()) == (130, "")
    assert "stopped before all flows had ended" in out.decode()
