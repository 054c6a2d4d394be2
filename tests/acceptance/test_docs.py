"""Every command in the documentation, run as it stands, page by page; what is shown is what is printed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.acceptance.terminal import Terminals, follow
from tests.pages import DOCS, ROOT, blocks_of

PAGE_SECONDS = 120
RUNNING = [page for page in DOCS if any(block.runs for block in blocks_of(page))]


@pytest.fixture
async def terminals(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[Terminals]:
    opened = Terminals(tmp_path, unused_tcp_port_factory)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.timeout(PAGE_SECONDS)
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
async def test_a_page_works_as_pasted(page: Path, terminals: Terminals) -> None:
    await follow(page, terminals)


async def test_a_failing_command_is_noticed(terminals: Terminals) -> None:
    """The proof is worth nothing if a broken command in the middle of a block passes."""
    assert (await terminals.run("true\nfalse | cat\ntrue\n")).failed == ""
    assert "false" in (await terminals.run("true\nfalse\ntrue\n")).failed
    assert "grep" in (await terminals.run("echo a | grep b\necho c\n")).failed


async def test_a_session_keeps_its_variables_and_shows_the_ports_of_the_page(terminals: Terminals) -> None:
    await terminals.run("url=http://127.0.0.1:8080/x")
    printed = await terminals.run('echo "$url"; echo oops >&2')
    assert (printed.output, printed.errors, printed.failed) == ("http://127.0.0.1:8080/x\n", "oops\n", "")
    assert ":8080" not in terminals.as_run("http://127.0.0.1:8080/x")
