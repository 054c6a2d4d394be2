"""Nodes over one PostgreSQL, and faults for them: kills, pauses longer than their lease, loss of the database.

Each node has a supervisor, as in production: a node that ends because it cannot reach the database is started again.
Every fault is recorded with its time, to explain failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson

from tests.acceptance.processes import EngineProcess
from tests.eventually import elapsed, eventually
from tests.postgres import Cluster, StopMode

PAUSES = (1.3, 1.7, 2.5, 3.5)
"""Lengths of a pause, in leases. The longest is also longer than a transaction may stand still."""
OUTAGE = frozenset({"store_unavailable", "commit_unknown"})
"""What a node may log as an error: the database was away."""
SHOWN_LINES = 40


class Fleet:
    """Some nodes and their database. ``strike`` hits one of them and returns; it recovers by itself."""

    def __init__(self, nodes: list[EngineProcess], cluster: Cluster, lease_ms: int, dice: random.Random) -> None:
        self.nodes = nodes
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._lease_ms = lease_ms
        self._dice = dice
        self._strikes: list[Callable[[EngineProcess], Coroutine[Any, Any, None]]] = []
        self._up: set[EngineProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._began = time.time()
        self._told: list[str] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All nodes are up at the beginning; at the end no fault is injected any more, and none is left running."""
        try:
            await asyncio.gather(*(self._bring_up(node) for node in self.nodes))
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*(node.kill() for node in self.nodes if node.exit_code is None))

    async def recovered(self, within: float) -> None:
        """Wait until every node is up again."""
        async with asyncio.timeout(within):
            await asyncio.gather(*self._tasks)
        assert self._up == set(self.nodes), "every node is up again"

    async def strike(self) -> None:
        """Hit one of the nodes that are up, so that at least one is left; waits while there are too few."""
        await eventually(lambda: len(self._up) > 1, within=60.0, what="a second node that is up")
        node = self._dice.choice([node for node in self.nodes if node in self._up])
        self._up.discard(node)
        if not self._strikes:  # as many of one kind as of the other, also in a short run
            self._strikes = self._dice.sample([self._kill, self._pause] * 2, 4)
        self._in_background(self._strikes.pop()(node))

    async def restart_database(self, mode: StopMode) -> None:
        """``fast`` cuts all connections, ``immediate`` is a crash of the server."""
        self.note(f"PostgreSQL stops: {mode}")
        self.counts[f"restarts ({mode})"] += 1
        await asyncio.to_thread(self._cluster.stop, mode)
        await elapsed(self._dice.choice((0.0, self._dice.uniform(0.0, 2.0))))
        await asyncio.to_thread(self._cluster.start)
        self.note("PostgreSQL is up")

    async def stop(self) -> None:
        codes = await asyncio.gather(*(node.stop() for node in self.nodes))
        assert set(codes) == {0}, codes

    # ------------------------------------------------------------------------------------------- what befalls a node

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)  # a failure stays, for ``recovered`` to find

    async def _kill(self, node: EngineProcess) -> None:
        self.note(f"{self._name(node)} is killed")
        self.counts["kills"] += 1
        await node.kill()
        if self._dice.random() < 0.2:
            await node.spawn()
            await elapsed(self._dice.uniform(0.2, 1.0))
            self.note(f"{self._name(node)} is killed while it starts")
            await node.kill()
        await self._bring_up(node)

    async def _pause(self, node: EngineProcess) -> None:
        seconds = self._dice.choice(PAUSES) * self._lease_ms / 1000
        self.note(f"{self._name(node)} is paused for {seconds:.2f} s")
        self.counts["pauses"] += 1
        node.signal(signal.SIGSTOP)
        await elapsed(seconds)
        node.signal(signal.SIGCONT)
        self.note(f"{self._name(node)} goes on")
        self._up.add(node)

    async def _bring_up(self, node: EngineProcess) -> None:
        """As a supervisor does: start it, and again if the database was not there."""
        while True:
            try:
                await node.start()
            except AssertionError:
                # the engine says in one line why it cannot start; anything else is a failure
                if node.exit_code != 1 or "error: " not in node.output() or "Traceback" in node.output():
                    raise
                self.note(f"{self._name(node)} cannot start: {node.output().strip()[-200:]}")
                self.counts["starts without a database"] += 1
                await elapsed(0.2)
            else:
                self.note(f"{self._name(node)} is up, process {node.pid}")
                self._up.add(node)
                return

    # ------------------------------------------------------------------------------------------- what there is to tell

    def note(self, line: str) -> None:
        self._told.append(f"{time.time():.3f} {time.time() - self._began:+8.3f} s  {line}")

    def _name(self, node: EngineProcess) -> str:
        return node.data.name

    def summary(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))

    def bugs(self) -> list[str]:
        """Lines that no node may ever log: errors that are no outage, and whatever has a trace of calls."""
        return [
            f"{self._name(node)}: {line}"
            for node in self.nodes
            for line, entry in _entries(node.log)
            if "exception" in entry or (entry.get("level") in ("error", "critical") and entry["event"] not in OUTAGE)
        ]

    def story(self) -> str:
        """The faults, each with its target, and what the nodes and the database logged."""
        parts = ["What was done:", *self._told]
        for node in self.nodes:
            parts += [f"The last lines of {self._name(node)} ({node.log}):", *_shortened(node.log)[-SHOWN_LINES:]]
        with contextlib.suppress(FileNotFoundError):
            log = self._cluster.log.read_text(errors="replace").splitlines()
            parts += ["The last lines of PostgreSQL:", *log[-SHOWN_LINES:]]
        return "\n".join(parts)


def _entries(log: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a log: as they are, and what they say if they are JSON. One that a kill cut short is none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    entries: list[tuple[str, dict[str, Any]]] = []
    for line in lines:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            entry = {"exception": line} if line.startswith("Traceback") else {}
        entries.append((line, entry if isinstance(entry, dict) else {}))
    return entries


def _shortened(log: Path) -> list[str]:
    """The lines of a log; of those that say the same one after the other, the last, and how many they are."""
    lines: list[tuple[object, str, int]] = []
    for line, entry in _entries(log):
        said = (entry.get("event"), entry.get("sweep"), entry.get("reason")) if entry else line
        count = lines.pop()[2] + 1 if lines and lines[-1][0] == said else 1
        lines.append((said, line, count))
    return [line if count == 1 else f"{line} ({count} times)" for _, line, count in lines]
