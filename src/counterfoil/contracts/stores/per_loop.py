"""Connections belong to the event loop that opened them: one set for each loop that uses a store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary


class LoopResource(Protocol):
    async def aclose(self) -> None: ...

    def abandon(self) -> None:
        """Free what can be freed when the loop is closed already."""
        ...


T = TypeVar("T", bound=LoopResource)


class PerLoop(Generic[T]):
    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def get(self) -> T:
        """The resource of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        if found is None:
            with self._lock:
                for closed in [each for each in self._made if each.is_closed()]:
                    self._made.pop(closed).abandon()
                found = self._made[loop] = self._make()
        return found

    async def aclose(self) -> None:
        """Close the resources of all loops."""
        with self._lock:
            made = list(self._made.items())
            self._made.clear()
        running = asyncio.get_running_loop()
        for loop, resource in made:
            if loop is running:
                await resource.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(resource.aclose(), loop))
            else:
                resource.abandon()
