"""One key, many processes: one effect; and when the process that holds it is killed, what its class allows."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.processes import environment
from tests.databases import NewDatabase
from tests.running import StartNode

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class CallerProcess:
    """A running ``caller_process``."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.contracts.caller_process",
            json.dumps(self.options),
            cwd=ROOT,
            env=environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def heard(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 45)
        return json.loads(line)

    async def go(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        await self._process.stdin.drain()

    async def end(self) -> int:
        """Kill it, if it still runs (kill -9)."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        return await self._process.wait()

    async def left(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), 45)


Start = Callable[..., Awaitable[list[CallerProcess]]]


@pytest.fixture(params=["library", "engine"])
async def place(
    request: pytest.FixtureRequest,
    store_name: str,
    tmp_path: Path,
    new_database: NewDatabase,
    start_node: StartNode,
) -> str:
    if request.param == "engine":
        return (await start_node()).url
    return new_database(empty=True) if store_name == "postgresql" else str(tmp_path / "effects.db")


@pytest.fixture
async def start(place: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts processes, and returns when each of them is ready."""
    processes: list[CallerProcess] = []

    async def begin(count: int, **options: Any) -> list[CallerProcess]:
        usual = {
            "place": place,
            "ledger": str(tmp_path / "ledger"),
            "key": "k",
            "callers": 25,
            "effect": "write-non-idempotent",
            "ttl": 60,
            "seconds": 0.3,
            "wait": 30,
        }
        made = [CallerProcess({**usual, **options}) for _ in range(count)]
        processes.extend(made)
        for process in made:
            await process.start()
        assert [await process.heard() for process in made] == ["ready"] * count
        return made

    yield begin
    for process in processes:
        await process.end()


def effects(tmp_path: Path) -> list[list[str]]:
    """Key and fence of each execution."""
    ledger = tmp_path / "ledger"
    return [line.split()[:2] for line in ledger.read_text().splitlines()] if ledger.exists() else []


async def answers(processes: list[CallerProcess]) -> list[Any]:
    found = [answer for process in processes for answer in await process.heard()]
    assert [await process.left() for process in processes] == [0] * len(processes)
    return found


async def test_a_hundred_callers_in_four_processes_have_one_effect_and_equal_answers(
    start: Start, tmp_path: Path
) -> None:
    processes = await start(4)
    await asyncio.gather(*(process.go() for process in processes))
    found = await answers(processes)
    assert len(found) == 100
    assert len({json.dumps(answer, sort_keys=True) for answer in found}) == 1
    assert found[0]["payment_id"] == "p-1"
    assert effects(tmp_path) == [["k", "1"]]


async def test_without_waiting_the_others_are_told_that_it_is_in_flight(start: Start, tmp_path: Path) -> None:
    processes = await start(4, wait=0, seconds=3)
    await asyncio.gather(*(process.go() for process in processes))
    found = await answers(processes)
    codes = [answer.get("code") for answer in found]
    assert (len(found), codes.count(None), codes.count("RETRY_IN_FLIGHT")) == (100, 1, 99)
    assert effects(tmp_path) == [["k", "1"]]


@pytest.mark.parametrize(
    ("stop_at", "executed"),
    [
        (["reserve", "end"], [["k", "2"]]),
        (["execute", "end"], [["k", "1"], ["k", "2"]]),
        (["record", "end"], [["k", "1"]]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value[0], str) else "",
)
async def test_a_killed_holder_is_taken_over_with_the_same_key(
    start: Start, tmp_path: Path, stop_at: list[str], executed: list[list[str]]
) -> None:
    """The downstream system sees one key, whether it is executed once or twice; and never two at a time."""
    [holder] = await start(1, stop_at=stop_at, callers=1, ttl=3)
    others = await start(3, ttl=3)
    await holder.go()
    assert await holder.heard() == "stopped"
    await asyncio.gather(*(process.go() for process in others))
    assert await holder.end() == -9
    found = await answers(others)
    assert len({json.dumps(answer, sort_keys=True) for answer in found}) == 1
    assert found[0]["payment_id"] == "p-1"
    assert effects(tmp_path) == executed


@pytest.mark.parametrize(("stop_at", "executed"), [(["reserve", "end"], 0), (["execute", "end"], 1)])
async def test_an_irreversible_call_of_a_killed_holder_is_never_repeated(
    start: Start, tmp_path: Path, stop_at: list[str], executed: int
) -> None:
    [holder] = await start(1, stop_at=stop_at, callers=1, ttl=2, effect="irreversible")
    others = await start(3, ttl=2, effect="irreversible")
    await holder.go()
    assert await holder.heard() == "stopped"
    await asyncio.gather(*(process.go() for process in others))
    assert await holder.end() == -9
    found = await answers(others)
    assert [answer["code"] for answer in found] == ["UNSAFE_ONCE_INCOMPLETE"] * 75
    assert len(effects(tmp_path)) == executed
