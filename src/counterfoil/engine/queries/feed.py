"""Wakes streams after a commit that brings them an event; each then reads the store itself.

A wake-up carries no data. Readers always read the journal, so a missed or doubled wake-up can neither lose nor
double an event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator
from itertools import chain


class FeedReader:
    """One reader's bell."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Return when something was committed since the last wait; False: the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._rung.wait()
        return self.take()

    def take(self) -> bool:
        """Whether something was committed since the last wait."""
        rung = self._rung.is_set()
        self._rung.clear()
        return rung


class Feed:
    """All bells: those of one flow, and those that want everything."""

    def __init__(self) -> None:
        self._of_flow: dict[str, set[FeedReader]] = {}
        self._of_all: set[FeedReader] = set()
        self.closed = False

    @contextlib.contextmanager
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

    def ring(self, flow_ids: Collection[str]) -> None:
        """Events of these flows were committed; of none: no stream is woken."""
        if not flow_ids:
            return
        for subscription in self._of_all:
            subscription.ring()
        if self._of_flow:
            for flow_id in flow_ids:
                for subscription in self._of_flow.get(flow_id, ()):
                    subscription.ring()

    def ring_all(self) -> None:
        """Something may have been committed elsewhere."""
        for subscription in chain(self._of_all, *self._of_flow.values()):
            subscription.ring()

    def close(self) -> None:
        """The engine is stopping: end every wait."""
        self.closed = True
        self.ring_all()
