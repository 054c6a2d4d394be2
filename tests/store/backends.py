"""The stores that the suite is run on: one entry each, so that another backend joins by being named here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterfoil.domain.time import Clock
from counterfoil.store.batch import Batch, Command
from counterfoil.store.changes import Changes
from counterfoil.store.protocol import Store
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.world import Needs, World
from tests.store.records import DEFAULTS, NOW

MakeStore = Callable[[Path, Clock], Store]


def sqlite_store(directory: Path, clock: Clock) -> Store:
    return SqliteStore(directory / "counterfoil.db", clock, DEFAULTS)


BACKENDS: dict[str, MakeStore] = {"sqlite": sqlite_store}
"""How a test makes the store of a backend, not yet opened; the same directory means the same database."""

QUERY_PACKAGES: dict[str, str] = {"sqlite": "counterfoil.store.sqlite"}
"""Where a backend keeps its named queries."""


class Raw:
    """A command that asks for what a test wants to see, and changes what it wants changed, without any decision."""

    def __init__(self, needs: Needs, changes: Changes | None = None) -> None:
        self._needs = needs
        self._changes = changes

    def needs(self, needs: Needs) -> None:
        for kind, keys in vars(self._needs).items():
            getattr(needs, kind).update(keys)

    def decide(self, world: World, now: int) -> None:
        if self._changes is not None:
            world.changes = self._changes


async def write(store: Store, changes: Changes) -> None:
    """Commit changes as they are."""
    await store.execute(batch_of(Raw(Needs(), changes)))


async def load(store: Store, needs: Needs) -> World:
    """What a batch with these needs sees."""
    batch = batch_of(Raw(needs))
    await store.execute(batch)
    return batch.world


def batch_of(*commands: Command[Any], answers: list[Any] | None = None) -> Batch:
    """Commands that share a transaction; their answers go where the test wants them."""
    told = [] if answers is None else answers
    return Batch([(command, told.append) for command in commands], World({}), lambda: NOW)
