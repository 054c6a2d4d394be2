"""The demo as people see it: in terminals of 80 and of 120 columns, and the commands that it offers."""

from __future__ import annotations

import re
import signal
import sys
from asyncio import create_subprocess_exec, wait_for
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from counterfoil.cli.demo.scenarios import CHARGE, SCENARIOS
from tests.acceptance.processes import environment
from tests.acceptance.screen import ROWS, in_terminal

PROGRAM = Path(sys.executable).parent / "counterfoil"
WIDTHS = (80, 120)
HEADS = ("flows", "open", "held", "retry", "ok", "failed", "sent", "refused")


@pytest.mark.parametrize("columns", WIDTHS)
async def test_everything_that_matters_is_on_the_screen(columns: int, tmp_path: Path) -> None:
    command = [str(PROGRAM), "demo", "--port", "0", "--once"]
    async with in_terminal(command, columns, environment(), tmp_path) as terminal:
        text = await terminal.until("every invariant holds")
        assert await terminal.ended() == 0
    live = [screen for screen in terminal.seen if "flows ended" in screen]
    assert any(all(re.search(rf"\b{head}\b", screen) for head in HEADS) for screen in live)
    for scenario in SCENARIOS:
        row = rf"{scenario.step_id} +{re.escape(scenario.story)} +[\d·]+( +[\d·]+){{{len(HEADS) - 1}}}"
        assert any(re.search(row, screen) for screen in live), scenario
    held = rf"charge +{CHARGE.story} +\d +[\d·]+ +1 "
    assert any(re.search(held, screen) for screen in live)
    reason = "connection_lost$" if columns == min(WIDTHS) else "UNSAFE_ONCE_INCOMPLETE"
    for line in (r"charge +held ", rf"charge +not_completed +attempt 1 {reason}"):
        assert any(re.search(line, screen, re.MULTILINE) for screen in live), line
    assert max(len(screen.splitlines()) for screen in live) <= ROWS
    assert re.search(r"expected +actual +attempts( +retries)? +refused$", text, re.MULTILINE)
    for scenario in SCENARIOS:
        ended = rf"\d {scenario.expected}"
        counts = r"\d+( +[\d·]+)? +[\d·]+"
        row = rf"^✓ +{scenario.step_id} +{re.escape(scenario.story)} +{ended} +{ended} +{counts}$"
        assert re.search(row, text, re.MULTILINE), f"{scenario}:\n{text}"
    assert re.search(r"^✓ +twice .* 6$", text, re.MULTILINE), text
    assert re.search(r"^✓ 4 cards charged once each; .* 5 attempts, 5 approvals$", text, re.MULTILINE), text
    assert text.count("✓") == len(SCENARIOS) + 5
    assert "…" not in text


@pytest.mark.parametrize("columns", WIDTHS)
async def test_its_commands_work_as_printed_in_another_terminal(columns: int, tmp_path: Path) -> None:
    """That terminal is in another directory, and knows nothing of the virtual environment."""
    activated = environment({"PATH": f"{PROGRAM.parent}:/usr/bin:/bin", "VIRTUAL_ENV": sys.prefix})
    command = [str(PROGRAM), "demo", "--port", "0", "--flows", "9"]
    async with in_terminal(command, columns, activated, tmp_path) as terminal:
        await terminal.until(r"flow show demo-.* --url http://127\.0\.0\.1:\d+\n")
        offered = _commands(terminal.screen.copied.partition("in another terminal, try:")[2])
        assert len(offered) == 5
        for line in offered:
            assert await _works(line), line
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ended() == 0


def _commands(text: str) -> list[str]:
    return [command.strip() for command in re.split(r"(?<!\\)\n", text) if command.strip()]


async def _works(line: str) -> bool:
    """Whether a command ends well; one that follows a stream needs only begin well."""
    limit = ["timeout", "2"] if "/stream" in line else []
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    process = await create_subprocess_exec(
        *limit, "bash", "--noprofile", "-c", line, stdout=PIPE, stderr=PIPE, cwd="/", env=variables
    )
    out, err = await wait_for(process.communicate(), 30)
    assert process.returncode == (124 if limit else 0), f"{line}: {err.decode()}"
    return bool(limit) or b"demo-" in out or b'"status":"active"' in out


@pytest.mark.parametrize("activated", [True, False])
async def test_the_program_is_named_so_that_any_shell_finds_it(activated: bool, tmp_path: Path) -> None:
    """A link on the PATH that is in no virtual environment needs no more than its name."""
    links = tmp_path / "bin"
    links.mkdir()
    (links / "counterfoil").symlink_to(PROGRAM)
    extra = {"PATH": f"{links}:/usr/bin:/bin"} | ({"VIRTUAL_ENV": str(tmp_path)} if activated else {})
    command = [str(links / "counterfoil"), "demo", "--port", "0", "--flows", "9"]
    async with in_terminal(command, 200, environment(extra), tmp_path) as terminal:
        text = await terminal.until(r"flow show demo-.* --url http://127\.0\.0\.1:\d+")
    named = str(links / "counterfoil") if activated else "counterfoil"
    assert f"  {named} flow list --limit 5 --url http" in text
