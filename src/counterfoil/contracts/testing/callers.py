"""Processes that call a tool, seen from the test; ``caller_process`` is what runs in them.

Protocol: the test writes a task as a line of JSON, the process loads the tool and writes ``{"ready": true}``; the test
writes a second line, which starts the calls; the process writes a line for each answer and ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self

from counterfoil.contracts.testing.reports import CallerAnswer
from counterfoil.contracts.testing.targets import CheckTarget

MODULE = "counterfoil.contracts.testing.caller_process"
LONGEST_LINE = 64 * 1024 * 1024


class CallerLost(RuntimeError):
    """A process ended, or was silent too long, before it did its part: the tool cannot be loaded, or is too slow."""


class CallerProcess:
    """One process; at the end of the block it is killed, if it has not ended by itself."""

    def __init__(self, target: CheckTarget, calls: int, call: Mapping[str, Any], **task: Any) -> None:
        self._task = {
            "name": target.name,
            "given": target.given,
            "store": target.store,
            "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100 (an empty entry is the directory)
            "calls": calls,
            "call": dict(call),
            **task,
        }
        self._calls = calls
        self._process: Process | None = None
        self._wrote: IO[bytes] | None = None

    async def __aenter__(self) -> Self:
        self._wrote = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the end of the block)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, stdin=PIPE, stdout=PIPE, stderr=self._wrote, limit=LONGEST_LINE
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.communicate()
        if self._wrote is not None:
            self._wrote.close()

    async def ready(self) -> None:
        """Hand the task over, and wait until the tool is loaded."""
        await self._say(json.dumps(self._task))
        if await self._line() != {"ready": True}:
            raise CallerLost(self._complaint("the tool was not loaded"))

    async def start(self) -> None:
        await self._say("start")

    async def answers(self) -> list[CallerAnswer]:
        """One for each call; fewer, if the process was killed meanwhile."""
        found: list[CallerAnswer] = []
        while len(found) < self._calls and (document := await self._line()) is not None:
            found.append(CallerAnswer.of_document(document))
        return found

    async def ended(self) -> int:
        """The exit code; negative: the number of the signal."""
        assert self._process is not None
        return await self._process.wait()

    def _complaint(self, what: str) -> str:
        assert self._wrote is not None
        self._wrote.seek(0)
        written = self._wrote.read().decode(errors="replace").strip()
        return f"{what}: {written[-2000:]}" if written else what

    async def lost(self) -> CallerLost:
        """Why the process ended too early."""
        return CallerLost(self._complaint(f"a caller ended with {await self.ended()}"))

    async def _say(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{text}\n".encode())
            await self._process.stdin.drain()
        except ConnectionError:
            raise await self.lost() from None

    async def _line(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else None
