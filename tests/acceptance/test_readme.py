"""The README's tour as a newcomer pastes it: real processes, and what it shows is what is printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.terminal import Terminals, follow
from tests.pages import README, blocks_of

TOUR_SECONDS = 120


@pytest.fixture
def terminals(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> Terminals:
    return Terminals(tmp_path, unused_tcp_port_factory)


@pytest.mark.timeout(TOUR_SECONDS)
async def test_the_tour_works_as_pasted(terminals: Terminals) -> None:
    await terminals.open()
    try:
        await follow(README, terminals)
    finally:
        await terminals.close()


def test_every_answer_is_shown() -> None:
    """A tour that shows nothing proves nothing: each pasted command is followed by what it prints."""
    blocks = list(blocks_of(README))
    shown = sum(block.mark == "output" for block in blocks)
    assert shown == sum(block.runs and block.mark == "" for block in blocks)
    assert shown >= 8
