"""Real engines: ``python -m counterfoil serve`` as a process of its own, to be stopped, killed and started again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import counterfoil
from tests.by_hand import Place
from tests.eventually import eventually

SOURCES = Path(counterfoil.__file__).parent.parent
LISTENING = re.compile(r"listening on (http://\S+:(\d+))")
START_SECONDS = 30.0


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without settings of ours, so that a test says all that it needs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("COUNTERFOIL_") and name != "WEBHOOK_BASE_URL"
    }
    return {**kept, "PYTHONPATH": str(SOURCES), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **(extra or {})}


def store_url(place: Place) -> str:
    """How commands are told of a database (``--store``)."""
    return f"sqlite:///{place}" if isinstance(place, Path) else place


class EngineProcess:
    """One engine process with its data directory. ``log`` holds all that it wrote, over all its starts."""

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.log = data.parent / f"{data.name}.log"
        self.port = 0
        self.url = ""
        self._settings = {f"COUNTERFOIL_{name.upper()}": value for name, value in (settings or {}).items()}
        self._process: asyncio.subprocess.Process | None = None
        self._read_from = 0

    async def spawn(self, *flags: str, prepare: Callable[[], None] | None = None) -> None:
        """Start the process on the port that it had before, without waiting for it."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        arguments = ["serve", "--port", str(self.port), "--data", str(self.data), *flags]
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "counterfoil",
                *arguments,
                stdout=output,
                stderr=output,
                cwd=self.data.parent,
                env=environment(self._settings),
                preexec_fn=prepare,
            )

    async def start(self, *flags: str, prepare: Callable[[], None] | None = None) -> None:
        """Start the process and wait until it says where it listens."""
        await self.spawn(*flags, prepare=prepare)
        await self.ready()

    async def ready(self) -> None:
        try:
            found = await eventually(self._announced, within=START_SECONDS, what="the line that says where it listens")
        except AssertionError as slow:
            if self.exit_code is None:
                self.signal(signal.SIGABRT)  # makes the process write where each of its threads hangs
                await self.wait()
            raise AssertionError(f"{slow}; it wrote: {self.output()[-4000:]}") from None
        self.url, self.port = found[1], int(found[2])

    def _announced(self) -> re.Match[str] | None:
        found = LISTENING.search(self.output())
        if not found and self.exit_code is not None:
            raise AssertionError(f"the engine ended with {self.exit_code}: {self.output()[-2000:]}")
        return found

    def output(self) -> str:
        """What the process wrote since it was last started."""
        with self.log.open("rb") as log:
            log.seek(self._read_from)
            return log.read().decode(errors="replace")

    @property
    def place(self) -> Place:
        """Where its database is, for a hand beside it."""
        return self._settings.get("COUNTERFOIL_STORE") or self.data / "counterfoil.db"

    @property
    def store_url(self) -> str:
        return store_url(self.place)

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def wait(self, within: float = START_SECONDS) -> int:
        """Wait until the process has ended, and return its exit code."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), within)

    async def kill(self) -> None:
        """kill -9: nothing is finished, nothing is said."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return await self.wait()


async def run_command(
    *arguments: str, extra: Mapping[str, str] | None = None, within: float = 60.0
) -> tuple[int, str, str]:
    """``python -m counterfoil ...``: exit code, standard output and standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "counterfoil",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(extra),
    )
    reading = asyncio.ensure_future(process.communicate())
    done, _ = await asyncio.wait([reading], timeout=within)
    if not done:
        process.send_signal(signal.SIGABRT)  # makes the process write where each of its threads hangs
    output, errors = await reading
    assert done, f"no end within {within} s; it wrote: {(output + errors).decode(errors='replace')[-4000:]}"
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()
