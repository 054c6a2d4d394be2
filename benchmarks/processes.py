"""Servers under measurement, each a separate process: the engine, and the servers that it is compared with."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class Server:
    """A process that listens."""

    process: subprocess.Popen[str]
    url: str
    seconds_to_ready: float

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def stop(self) -> None:
        """Stop gracefully: requests in progress are finished first."""
        self.process.terminate()
        self.process.wait()

    def memory_bytes(self) -> int:
        """The private memory of the process."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
        raise LookupError("the kernel does not tell the memory of a process")


@contextmanager
def running(*command: str, **environment: str) -> Iterator[Server]:
    """Start a Python program and wait until it listens; it is killed at the end."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        yield Server(process, _address(process), time.perf_counter() - started)
    finally:
        process.kill()
        process.wait()


@contextmanager
def engine(data: Path | None = None, **environment: str) -> Iterator[Server]:
    """The engine on a data directory, by default a new one."""
    with tempfile.TemporaryDirectory(prefix="counterfoil-bench-") as fresh:
        command = ("-m", "counterfoil", "serve", "--port", "0", "--data", str(data or fresh))
        with running(*command, COUNTERFOIL_LOG_LEVEL="warning", **environment) as server:
            yield server


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if "listening on " in line:
            return line.split("listening on ")[1].strip()
    raise RuntimeError("the server ended before it listened")
