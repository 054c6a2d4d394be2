"""The demo as people start it: a process of its own, everything over HTTP."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from counterfoil.cli.demo.scenarios import SCENARIOS

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


async def test_an_interrupt_in_the_middle_leaves_nothing_behind(start_demo: StartDemo) -> None:
    process = await start_demo("--flows", "400")
    await read_until(process, r"flows started")
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, err.decode()) == (130, "")
    assert "stopped before all flows had ended" in out.decode()
