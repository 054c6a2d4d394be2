"""Terminals in which the commands of a page are pasted, one block after the other, as a reader would.

The only thing that differs from the page are the ports: free ones stand for 8080 and the like, so that tests can run
beside each other. Pages that are followed in the same terminals meet each other's processes, as those of a reader do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.processes import environment
from tests.eventually import eventually
from tests.pages import ROOT, beside, blocks_of, same_output

BLOCK_SECONDS = 50.0
START_SECONDS = 30.0
PORTS = ("8080", "8081", "8082", "8083", "9000", "9001", "9002", "9003", "9004", "9005", "9006", "9007")
BESIDE = {
    "engine": ("counterfoil serve", "listening on"),
    "by_hand": ("python docs/by_hand.py", "Running on"),
    "worker": ("python examples/worker.py", "Running on"),
}


@dataclass(frozen=True)
class Printed:
    """What a block printed, and which of its commands failed."""

    output: str
    errors: str
    failed: str


class Terminals:
    """One shell for the page's commands, and others for what runs in the background. All end with ``close``."""

    def __init__(self, directory: Path, free_port: Callable[[], int]) -> None:
        self.directory = directory
        self._place = directory
        self._ports = {shown: str(free_port()) for shown in PORTS}
        self._shell: Process | None = None
        self._background: list[tuple[Process, Path]] = []
        self._blocks = 0
        self._environment = environment(
            {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "COUNTERFOIL_PORT": self._ports["8080"],
                "COUNTERFOIL_URL": f"http://127.0.0.1:{self._ports['8080']}",
                "COUNTERFOIL_LOG_LEVEL": "warning",
                "PORT": self._ports["9000"],
            }
        )

    async def open(self) -> None:
        """Begin where a reader begins: at the root of the repository, with its virtual environment."""
        for name in ("docs", "examples", "config"):
            (self.directory / name).symlink_to(ROOT / name)
        (self.directory / ".venv").symlink_to(sys.prefix)
        self._shell = await self._bash(stdin=PIPE)
        await self._type("unset PYTHONUNBUFFERED")  # a reader does not have it, and what goes to a file is buffered
        await self._type(f'trap \'printf "%s: %s\\n" "$?" "$BASH_COMMAND" >> {self.directory}/.failed\' ERR')

    async def run(self, text: str) -> Printed:
        """Paste some commands and wait for them."""
        self._blocks += 1
        script, output, errors = (self.directory / f".{kind}-{self._blocks}" for kind in ("script", "out", "err"))
        failed, place = self.directory / ".failed", self.directory / ".place"
        failed.write_text("")
        script.write_text(self.as_run(text))
        assert self._shell is not None
        assert self._shell.stdout is not None
        await self._type(f". {script} </dev/null >{output} 2>{errors}; pwd > {place}; echo 'the end'")
        await asyncio.wait_for(self._shell.stdout.readuntil(b"the end\n"), BLOCK_SECONDS)
        self._place = Path(place.read_text().strip())
        return Printed(*(self.as_shown(path.read_text()) for path in (output, errors, failed)))

    async def run_in_background(self, text: str, ready: str) -> None:
        """Paste commands into a terminal of their own and wait until they have printed that they are ready."""
        self._blocks += 1
        log = self.directory / f".log-{self._blocks}"
        with log.open("wb") as output:
            process = await self._bash("-c", self.as_run(text), stdout=output)
        self._background.append((process, log))

        def is_ready() -> bool:
            assert process.returncode is None, log.read_text()
            return ready in log.read_text()

        await eventually(is_ready, within=START_SECONDS, what=f"{ready!r} of {text!r}")

    def write(self, name: str, text: str) -> None:
        """Save a file where the page's commands are."""
        (self._place / name).write_text(self.as_run(text))

    async def interrupt(self) -> None:
        """Ctrl-C in every terminal with a process in the foreground; waits until all of them have ended."""
        for process, _ in self._background:
            os.killpg(process.pid, signal.SIGINT)
        for process, log in self._background:
            await asyncio.wait_for(process.wait(), START_SECONDS)
            assert "Traceback" not in log.read_text(), log.read_text()
        self._background.clear()

    async def close(self) -> None:
        """End everything that was started here, children included."""
        for process in (*(process for process, _ in self._background), self._shell):
            if process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def as_run(self, text: str) -> str:
        for shown, real in self._ports.items():
            text = re.sub(rf"\b{shown}\b", real, text)
        return text

    def as_shown(self, text: str) -> str:
        for shown, real in self._ports.items():
            text = re.sub(rf"\b{real}\b", shown, text)
        return text

    async def _type(self, line: str) -> None:
        assert self._shell is not None
        assert self._shell.stdin is not None
        self._shell.stdin.write(line.encode() + b"\n")
        await self._shell.stdin.drain()

    async def _bash(self, *arguments: str, stdin: int | None = None, stdout: object = PIPE) -> Process:
        return await asyncio.create_subprocess_exec(
            "bash",
            "--noprofile",
            "--norc",
            *arguments,
            stdin=stdin,
            stdout=stdout,  # type: ignore[arg-type]
            stderr=STDOUT,
            cwd=self.directory,
            env=self._environment,
            start_new_session=True,  # a group of its own, so that its children can be ended with it
        )


async def follow(page: Path, terminals: Terminals, *, after_the_tour: bool = False) -> None:
    """Do what a page tells, in its order, and compare what is printed with what it shows.

    ``after_the_tour``: engine and step endpoint of the tour are running already.
    """
    for name in () if after_the_tour else beside(page):
        await terminals.run_in_background(*BESIDE[name])
    last = ""
    for block in blocks_of(page):
        if block.mark == "file":
            terminals.write(block.argument, block.text)
        elif block.mark == "background":
            await terminals.run_in_background(block.text, block.argument)
        elif block.runs:
            printed = await terminals.run(block.text)
            told = f"{block.place}: failed: {printed.failed or 'nothing'}\n{printed.output}{printed.errors}"
            assert bool(printed.failed) == (block.mark == "fails"), told
            last = printed.output if block.mark == "" else printed.output + printed.errors
        elif block.mark == "output":
            told = f"{block.place}: the page shows\n{block.text}\nbut this was printed:\n{last}"
            assert same_output(block.text, last), told
