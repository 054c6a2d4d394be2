"""The example workers in other languages as processes: how each is made ready, started, watched and stopped."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.processes import environment
from tests.eventually import eventually
from tests.pages import ROOT, blocks_of
from tests.programs import left_out, program

EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "how-to" / "write-a-worker-in-other-languages.md"
HEARTBEAT_SECONDS = "0.2"
BUILD_SECONDS = 50
ESBUILD = "esbuild@0.25"
STRIPS_TYPES = (22, 18)
"""The first Node that runs TypeScript without a flag."""
UNREACHABLE = re.compile(r"\b(ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|ENOTCACHED|E404|E403)\b")
"""What npm says where there is no network, or no such package in its registry."""


@dataclass(frozen=True)
class Language:
    """A language of the examples: ``client`` names it in the table of clients, ``prepare`` makes it ready to run."""

    name: str
    client: str
    prepare: Callable[[Path], list[str]]


def built(*command: str) -> None:
    """Run a command that makes a worker ready."""
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BUILD_SECONDS)
    if made.returncode != 0 and UNREACHABLE.search(made.stderr):
        left_out(f"{command[0]} cannot reach its registry: {made.stderr[-500:]}")
    assert made.returncode == 0, made.stderr


def typescript(directory: Path) -> list[str]:
    """Node runs the file as it is, or, if it is too old for that, what esbuild makes of it (as the docs say)."""
    node = program("node")
    version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= STRIPS_TYPES:
        return [node, str(EXAMPLES / "worker.ts")]
    npx = program("npx")
    made = directory / "worker.mjs"
    built(npx, "--yes", ESBUILD, str(EXAMPLES / "worker.ts"), f"--outfile={made}")
    return [node, str(made)]


def go(directory: Path) -> list[str]:
    compiler = program("go")
    made = directory / "worker"
    built(compiler, "build", "-o", str(made), str(EXAMPLES / "worker.go"))
    return [str(made)]


def bash(directory: Path) -> list[str]:
    for name in ("bash", "curl", "jq", "socat", "sha256sum"):
        program(name)
    return [str(EXAMPLES / "worker.sh")]


LANGUAGES = (
    Language("typescript", "Node worker (TypeScript)", typescript),
    Language("go", "Go worker", go),
    Language("bash", "bash worker", bash),
)


def documented_command(command: list[str]) -> str:
    """The block of the page that starts the worker which is started by this command here."""
    name = Path(command[-1]).name
    shown = {"worker.ts": "node examples/worker.ts", "worker.mjs": "node worker.mjs", "worker": "go run"}.get(
        name, name
    )
    [block] = [block for block in blocks_of(PAGE) if shown in block.text]
    return block.text


class LanguageWorker:
    """One worker process; its log is kept in a file."""

    def __init__(self, language: Language, command: list[str], directory: Path, port: int) -> None:
        self.language = language
        self.url = f"http://127.0.0.1:{port}"
        self.endpoint = f"{self.url}/thumbnail"
        self.log = directory / f"worker-{port}.log"
        self._command = command
        self._port = port
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, secret: str) -> None:
        """Start the process and wait until it accepts connections."""
        await self.spawn(secret)
        await eventually(self.accepts, within=20, what=f"the {self.language.name} worker listening")

    async def spawn(self, secret: str, heartbeat_seconds: str = HEARTBEAT_SECONDS) -> None:
        extra = {
            "PORT": str(self._port),
            "HEARTBEAT_SECONDS": heartbeat_seconds,
            "COUNTERFOIL_SIGNING_SECRET": secret,
        }
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=environment(extra)
            )

    async def accepts(self) -> bool:
        """Whether the worker, which still runs, accepts a new connection."""
        assert self._process is not None
        assert self._process.returncode is None, self.logged()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        return True

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    async def wait(self, within: float = 20.0) -> int:
        """Wait for the end of the process, and return its exit code."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), within)

    async def stop(self) -> int:
        """SIGTERM, and the exit code; a worker that does not end is killed."""
        try:
            self.terminate()
            return await self.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process if it still runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def logged(self, flow_id: str = "") -> list[str]:
        """What the worker logged, or what it logged of one flow."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [line.partition(": ")[2] for line in lines if f"flow {flow_id}," in line] if flow_id else lines

    async def until_logged(self, flow_id: str, text: str) -> None:
        def look() -> bool:
            return any(line.startswith(text) for line in self.logged(flow_id))

        try:
            await eventually(look, within=20, what=f"{text!r} in the log")
        except AssertionError:
            raise AssertionError(f"no {text!r} in {self.logged()}") from None
