"""A running engine in the test's own process, as the fixtures hand it out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from counterfoil.app import Counterfoil
from counterfoil.settings import Settings
from tests.wire import Api


@dataclass
class Node:
    """A running engine with its settings, so that a test can stop it and start another on the same data."""

    settings: Settings
    engine: Counterfoil
    stack: contextlib.AsyncExitStack
    stopping: asyncio.Future[None] | None = None

    @property
    def url(self) -> str:
        return self.engine.url

    async def stop(self) -> None:
        """Stop gracefully; a second call waits for the same stop."""
        if self.stopping is None:
            self.stopping = asyncio.ensure_future(self.stack.aclose())
        await asyncio.shield(self.stopping)


StartNode = Callable[..., Awaitable[Node]]
Connect = Callable[[Node], Api]
