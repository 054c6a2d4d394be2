"""Makes slow checks one after the other, in a thread that waits for the checking process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from counterfoil.checking.process import CheckFailed, CheckingProcess
from counterfoil.domain.steps.checks import TOO_MUCH_WORK, Findings, ValueCheck

MOST_REMEMBERED = 1_000
"""The most findings that are cached: a value that is sent again is not checked again."""

Done = Callable[[Findings | None], None]

log = structlog.get_logger(__name__)


@dataclass(order=True)
class _Entry:
    rank: int
    number: int
    checks: Sequence[ValueCheck] = field(compare=False)
    done: Done | None = field(compare=False)
    """None marks the end of the queue."""


class ValueChecker:
    """Queues checks. The first one starts the thread and the process; an engine without slow checks has neither."""

    def __init__(self, limit_ms: int, most_waiting: int) -> None:
        self._process = CheckingProcess(limit_ms)
        self._most_waiting = most_waiting
        self._queue: queue.PriorityQueue[_Entry] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._waiting = 0
        self._remembered: dict[bytes, str | None] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def check(self, checks: Sequence[ValueCheck], done: Done, *, urgent: bool) -> bool:
        """Queue these checks; the event loop calls ``done`` with their findings. False: too many are waiting.

        Checks that are not urgent come last, and fewer of them may wait.
        """
        if self._closed or self._waiting >= (self._most_waiting if urgent else self._most_waiting / 4):
            return False
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="value-checker", daemon=True)
            self._thread.start()
        self._waiting += 1
        self._queue.put(_Entry(0 if urgent else 1, next(self._numbers), checks, done))
        return True

    def close(self) -> None:
        """Make no more checks: ``done`` of those that wait is called without findings."""
        self._closed = True
        self._process.stop()
        if self._thread is not None:
            self._queue.put(_Entry(2, 0, (), None))
            self._thread.join()

    def _run(self) -> None:
        while (entry := self._queue.get()).done is not None:
            findings: Findings | None = None
            try:
                findings = self._findings(entry.checks)
            except CheckFailed as failure:
                log.warning("value_check_unavailable", reason=str(failure))
            except Exception:
                log.exception("value_check_failed")
            with contextlib.suppress(RuntimeError):  # the loop was closed, so no caller is left
                self._loop.call_soon_threadsafe(self._tell, entry.done, findings)
        self._process.close()

    def _findings(self, checks: Sequence[ValueCheck]) -> Findings:
        """After a check that took too much work, the others of the same command are not tried."""
        findings: dict[bytes, str | None] = {}
        for check in checks:
            if TOO_MUCH_WORK in findings.values():
                findings[check.key] = TOO_MUCH_WORK
                continue
            if check.key not in self._remembered:
                self._remembered[check.key] = self._process.problem(check)
            findings[check.key] = self._remembered[check.key]
        while len(self._remembered) > MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return findings

    def _tell(self, done: Done, findings: Findings | None) -> None:
        self._waiting -= 1
        done(findings)
