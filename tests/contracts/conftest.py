"""Dedup stores for the tests of contracts: the library's own on each database, and the engine on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from counterfoil.contracts import DedupStore, EngineDedupStore, PostgresDedupStore, SqliteDedupStore
from counterfoil.testing import MovableClock
from tests.databases import NewDatabase
from tests.running import StartNode


@dataclass
class Dedup:
    """A store under test, a clock that it reads, and a way to open it once more, as another process would."""

    clock: MovableClock
    open: Callable[[], DedupStore]
    opened: list[DedupStore] = field(default_factory=list)

    def another(self) -> DedupStore:
        self.opened.append(self.open())
        return self.opened[-1]

    @property
    def store(self) -> DedupStore:
        return self.opened[0] if self.opened else self.another()


@pytest.fixture(params=["library", "engine"])
async def dedup(
    request: pytest.FixtureRequest,
    store_name: str,
    tmp_path: Path,
    new_database: NewDatabase,
    start_node: StartNode,
) -> AsyncIterator[Dedup]:
    clock = MovableClock()
    if request.param == "engine":
        node = await start_node(clock)
        made = Dedup(clock, lambda: EngineDedupStore(node.url))
    elif store_name == "postgresql":
        dsn = new_database(empty=True)
        made = Dedup(clock, lambda: PostgresDedupStore(dsn, clock=clock))
    else:
        made = Dedup(clock, lambda: SqliteDedupStore(tmp_path / "effects.db", clock=clock))
    yield made
    for store in made.opened:
        await store.aclose()


@pytest.fixture
def store(dedup: Dedup) -> DedupStore:
    return dedup.store


@pytest.fixture
def clock(dedup: Dedup) -> MovableClock:
    return dedup.clock
