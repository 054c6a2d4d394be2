"""Processes that call a tool, seen from the test; ``caller_process`` is what runs in them.

Protocol, in lines of JSON: the test writes a task, the process loads the tool and writes ``{"ready": true}``. Then each
line of the test is a call and how often it is made at once, and the process writes a line for each answer. It ends when
the test closes its input.
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

    def __init__(self, target: CheckTarget, **task: Any) -> None:
        self._task = {
            "name": target.name,
            "given": target.given,
            "store": target.store,
            "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100 (an empty entry is the directory)
            **task,
        }
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

    async def call(self, call: Mapping[str, Any], count: int = 1) -> list[CallerAnswer]:
        """Make a call, ``count`` times at once; fewer answers: the process was killed meanwhile."""
        await self._say(json.dumps({"call": dict(call), "count": count}))
        found: list[CallerAnswer] = []
        while len(found) < count and (document := await self._line()) is not None:
            found.append(CallerAnswer.of_document(document))
        return found

    async def ended(self) -> int:
        """Wait for the end of the process, which has no more calls to make; its exit code, or minus its signal."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
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
