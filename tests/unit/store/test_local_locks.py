"""Batches of one node wait for the work that another has in hand, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest

from counterfoil.store.postgres.local_locks import LocalLocks


class Batches:
    """Batches that have their work until the test lets them end."""

    def __init__(self) -> None:
        self.in_hand = LocalLocks()
        self.running: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, *work_ids: str) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._run(name, work_ids))
        await asyncio.sleep(0)

    async def _run(self, name: str, work_ids: tuple[str, ...]) -> None:
        wanted = frozenset(work_ids)
        await self.in_hand.take(wanted)
        self.running.append(name)
        try:
            await self._ends[name].wait()
        finally:
            self.running.remove(name)
            self.in_hand.give_back(wanted)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        for _ in range(3):  # every waiter has its turn
            await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        for _ in range(3):
            await asyncio.sleep(0)


async def test_different_work_is_had_at_the_same_time() -> None:
    batches = Batches()
    await batches.begin("a", "1", "2")
    await batches.begin("b", "3")
    await batches.begin("none")
    assert batches.running == ["a", "b", "none"]
    for name in ("a", "b", "none"):
        await batches.end(name)


async def test_the_same_work_is_waited_for() -> None:
    batches = Batches()
    await batches.begin("a", "1", "2")
    await batches.begin("b", "2", "3")
    assert batches.running == ["a"]
    await batches.begin("c", "3")
    assert batches.running == ["a", "c"], "a waiter has nothing yet"
    await batches.end("a")
    assert batches.running == ["c"]
    await batches.end("c")
    assert batches.running == ["b"]
    await batches.end("b")


async def test_one_that_is_given_up_is_not_waited_for() -> None:
    batches = Batches()
    await batches.begin("a", "1")
    await batches.begin("b", "1")
    await batches.begin("c", "1")
    await batches.cancel("b")
    await batches.cancel("a")
    assert batches.running == ["c"]
    await batches.end("c")
