"""Calls from code without an event loop: the sequence runs on one loop, the tool in its thread of its caller."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")

_lock = threading.Lock()
_portal: _Portal | None = None


class CallersThread:
    """Runs functions in the thread that waits for a call, on behalf of the sequence on the loop."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()

    async def run(self, function: Callable[[], R]) -> R:
        done: Future[R] = Future()
        self._asked.put((function, done))
        return await asyncio.wrap_future(done)

    def wait(self, call: Coroutine[Any, Any, R]) -> R:
        """Run a call to its end, from the thread that this is about."""
        outcome = _running_portal().submit(call)
        outcome.add_done_callback(lambda _: self._asked.put(None))
        try:
            while (asked := self._asked.get()) is not None:
                _settle(*asked)
        except BaseException:  # an interrupt of this thread
            outcome.cancel()
            raise
        return outcome.result()


def run_in_thread(function: Callable[[], R]) -> Awaitable[R]:
    """The same for a caller on an event loop: a thread of its pool."""
    return asyncio.to_thread(function)


def _settle(function: Callable[[], Any], done: Future[Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function())
    except Exception as error:  # noqa: BLE001 (it is raised where the sequence waits)
        done.set_exception(error)


class _Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="contract-calls", daemon=True)
        self._thread.start()

    def submit(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)


def _running_portal() -> _Portal:
    global _portal  # noqa: PLW0603 (one for the process, as its default executor is)
    with _lock:
        if _portal is None or _portal.pid != os.getpid():
            _portal = _Portal()
        return _portal
