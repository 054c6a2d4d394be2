"""Starts and uses the checking process from the engine: started when it is needed, and again if it has ended."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time

import structlog

from counterfoil.checking.frames import frame, read_frame
from counterfoil.domain.steps.checks import CANNOT_BE_CHECKED, TOO_MUCH_WORK, ValueCheck

PATIENCE_SECONDS = 60.0
"""How long a check may take in real time, even if it gets little processor time; after that, the process is killed."""
ENDING_SECONDS = 5.0
TRIES = 2
"""How often the process may end unexpectedly on one value before that value is refused."""
INHERITED = ("PATH", "PYTHON", "LANG", "LC_", "LD_", "DYLD_", "VIRTUAL_ENV", "HOME")
"""Prefixes of the environment variables that the process inherits: none of them is secret."""

log = structlog.get_logger(__name__)


class CheckFailed(Exception):
    """The check could not be made now, through no fault of the value."""


class CheckingProcess:
    """The checking process. Used by one thread, except ``stop``."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def problem(self, check: ValueCheck) -> str | None:
        """What is wrong with the value of a check, or None. Raises CheckFailed if that cannot be determined now."""
        for _ in range(TRIES):
            answer = self._ask(self._running(), check)
            if answer is not None:
                problem: str | None = json.loads(answer)
                return problem
            status = self.close()
            if self._stopped:
                raise CheckFailed("the engine is stopping")
            if status is None:
                raise CheckFailed("the check did not finish in time")
            if status == -signal.SIGPROF:
                log.warning("value_check_given_up", cpu_limit_ms=self._limit_ms, bytes=len(check.value))
                return TOO_MUCH_WORK
            log.error("value_check_failed", status=status, bytes=len(check.value))
        return CANNOT_BE_CHECKED

    def stop(self) -> None:
        """Kill the process, whatever it is doing. It is not started again."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> int | None:
        """End the process by closing its pipes; returns its exit code, or None if it had to be killed."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return None

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise CheckFailed("the engine is stopping")
            if self._process is None:
                self._process = self._started()
            return self._process

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "counterfoil.checking.child", str(self._limit_ms)]
        environment = {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, bufsize=0)  # noqa: S603
        except OSError as error:
            raise CheckFailed(f"the checking process cannot be started: {error.strerror or error}") from error
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def _ask(self, process: subprocess.Popen[bytes], check: ValueCheck) -> bytes | None:
        """The answer; None: the process has ended, or has not answered in time."""
        assert process.stdin is not None
        assert process.stdout is not None
        until = time.monotonic() + PATIENCE_SECONDS
        given, taken = process.stdin.fileno(), process.stdout.fileno()

        def read(size: int) -> bytes:
            return os.read(taken, min(size, 65_536)) if _is_ready(taken, select.POLLIN, until) else b""

        asked = memoryview(frame((b"e" if check.each else b"w") + check.schema) + frame(check.value))
        try:
            while asked and _is_ready(given, select.POLLOUT, until):
                asked = asked[os.write(given, asked) :]
        except BrokenPipeError:
            return None
        return read_frame(read)


def _is_ready(descriptor: int, event: int, until: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))
