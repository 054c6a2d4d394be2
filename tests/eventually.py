"""Waiting for what can be observed, with a bound: the one place where a test looks again."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

LOOK_AGAIN_SECONDS = 0.01


@overload
async def eventually(look: Callable[[], Awaitable[T | None]], within: float = ..., what: str = ...) -> T: ...
@overload
async def eventually(look: Callable[[], T | None], within: float = ..., what: str = ...) -> T: ...
async def eventually(look: Callable[[], Any], within: float = 8.0, what: str = "the condition") -> Any:
    """Look until the answer is truthy and return it; fails, saying what it saw last, when the time is over."""
    end = time.monotonic() + within
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if seen:
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {within} s, last seen: {seen!r}")
        await elapsed(LOOK_AGAIN_SECONDS)


async def elapsed(seconds: float) -> None:
    """Let real time pass where its passing is what is tested (a silence, a delay), never to wait for an event."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)
