"""The README's tour as a newcomer pastes it, and the pages that follow while its terminals are still open.

Real processes, and what a page shows is what is printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.acceptance.terminal import Terminals, follow
from tests.pages import README, ROOT, blocks_of

TOUR_SECONDS = 120
TUTORIALS = [ROOT / "docs" / "tutorials" / name for name in ("first-flow.md", "goal-driven-flows.md")]
STARTING_SERVERS = [
    ROOT / "docs" / "how-to" / f"{name}.md"
    for name in ("approvals", "compensate-and-redrive", "fan-out", "notifications", "sub-flows")
]
BY_THE_TOUR = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("limits-and-retention", "write-a-worker")]


@pytest.fixture
async def terminals(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Terminals]:
    opened = Terminals(tmp_path, unused_tcp_port_factory)
    await opened.open()
    yield opened
    await opened.close()


def files_of(directory: Path) -> set[str]:
    """What lies in the clone; hidden files are those of the terminals themselves."""
    return {path.name for path in directory.iterdir() if not path.name.startswith(".")}


@pytest.mark.timeout(TOUR_SECONDS)
async def test_the_tour_gives_the_same_answers_twice_and_leaves_nothing_behind(terminals: Terminals) -> None:
    before = files_of(terminals.directory)
    await follow(README, terminals)
    await terminals.interrupt()
    await follow(README, terminals)
    assert files_of(terminals.directory) == before


@pytest.mark.timeout(TOUR_SECONDS)
async def test_the_tutorials_work_while_the_terminals_of_the_tour_are_open(terminals: Terminals) -> None:
    before = files_of(terminals.directory)
    await follow(README, terminals)
    for page in TUTORIALS:
        await follow(page, terminals)
    assert files_of(terminals.directory) - before == {page.stem for page in TUTORIALS}


@pytest.mark.timeout(TOUR_SECONDS)
@pytest.mark.parametrize("page", [*STARTING_SERVERS, *BY_THE_TOUR], ids=lambda page: page.stem)
async def test_a_how_to_works_while_the_terminals_of_the_tour_are_open(page: Path, terminals: Terminals) -> None:
    await follow(README, terminals)
    await follow(page, terminals, after_the_tour=True)


@pytest.mark.timeout(TOUR_SECONDS)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
async def test_a_tutorial_works_twice(page: Path, terminals: Terminals) -> None:
    for _ in range(2):
        await follow(page, terminals)


@pytest.mark.parametrize(
    ("page", "port", "reason"),
    [
        (TUTORIALS[0], "8081", "another process uses this port"),
        (TUTORIALS[0], "9001", "address already in use"),
        (TUTORIALS[1], "8082", "another process uses this port"),
        (TUTORIALS[1], "9002", "address already in use"),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
async def test_a_tutorial_notices_that_another_process_has_its_port(
    page: Path, port: str, reason: str, terminals: Terminals
) -> None:
    """The other process answers 200 to everything, as that of another page might."""
    other = await asyncio.start_server(_answer, "127.0.0.1", int(terminals.as_run(port)))
    async with other:
        for block in blocks_of(page):
            if block.mark == "file":
                terminals.write(block.argument, block.text)
            elif block.runs:
                printed = await terminals.run(block.text)
                if "ready()" in block.text:
                    break
    assert printed.failed
    assert reason in printed.output


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    writer.close()


def test_every_answer_is_shown() -> None:
    """A tour that shows nothing proves nothing: each pasted command is followed by what it prints."""
    blocks = list(blocks_of(README))
    shown = sum(block.mark == "output" for block in blocks)
    assert shown == sum(block.runs and block.mark == "" for block in blocks)
    assert shown >= 8
