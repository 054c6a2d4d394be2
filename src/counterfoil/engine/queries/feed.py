"""Wakes streams and long polls after a commit; each then reads the store itself.

A wake-up carries no data. Readers always read the journal, so a missed or doubled wake-up can neither lose nor
double an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FeedReader:
    """One reader's bell."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, timeout_seconds: float) -> None:
        """Return when something was committed since the last wait, or when the time is over."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._rung.wait()
        except TimeoutError:
            return
        self._rung.clear()


class Feed:
    """All bells: those of one flow, and those that want everything."""

    def __init__(self) -> None:
        self._of_flow: dict[str, set[FeedReader]] = {}
        self._of_all: set[FeedReader] = set()
        self.closed = False

    @contextmanager
    def subscribe(self, flow_id: str | None) -> Iterator[FeedReader]:
        subscription = FeedReader()
        group = self._of_all if flow_id is None else self._of_flow.setdefault(flow_id, set())
        group.add(subscription)
        try:
            yield subscription
        finally:
            group.discard(subscription)
            if flow_id is not None and not group:
                self._of_flow.pop(flow_id, None)

    @property
    def has_readers(self) -> bool:
        return bool(self._of_all or self._of_flow)

    def ring(self, flow_ids: Iterable[str]) -> None:
        """Something of these flows was committed."""
        for subscription in self._of_all:
            subscription.ring()
        if self._of_flow:
            for flow_id in flow_ids:
                for subscription in self._of_flow.get(flow_id, ()):
                    subscription.ring()

    def ring_all(self) -> None:
        """Something may have been committed elsewhere."""
        self.ring(list(self._of_flow))

    def close(self) -> None:
        """The engine is stopping: end every wait."""
        self.closed = True
        self.ring_all()
