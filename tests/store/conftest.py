"""An open store of each backend, on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from counterfoil.store.postgres.connection import Connection
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.testing.simulator import StillClock
from tests.databases import NewDatabase
from tests.store.backends import BACKENDS, MakeStore, NewConnection
from tests.store.nodes import Node, Pair, register
from tests.store.records import NOW


@pytest.fixture
def clock() -> StillClock:
    return StillClock(NOW)


@pytest.fixture
def backend(store_name: str) -> str:
    return store_name


@pytest.fixture
def make_store(backend: str, new_database: NewDatabase) -> MakeStore:
    return BACKENDS[backend](new_database)


@pytest.fixture
async def store(make_store: MakeStore, tmp_path: Path, clock: StillClock) -> AsyncIterator[Store]:
    store = make_store(tmp_path, clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def new_connection(store: Store) -> AsyncIterator[NewConnection]:
    """Opens connections to the same database, for statements and transactions that the test has in its own hand."""
    assert isinstance(store, PostgresStore)
    dsn = store.access.dsn
    opened: list[Connection] = []

    async def connect() -> Connection:
        opened.append(await asyncpg.connect(dsn))
        return opened[-1]

    yield connect
    for connection in opened:
        await connection.close()


@pytest.fixture
async def nodes(store: Store, make_store: MakeStore, tmp_path: Path, clock: StillClock) -> AsyncIterator[Pair]:
    """Two nodes on the same database, each with a store of its own, to which the same step is known."""
    await register(store)
    other = make_store(tmp_path, clock)
    await other.open()
    pair = Node("node-a", store, clock, batch_limit=16), Node("node-b", other, clock, batch_limit=16)
    for node in pair:
        await node.start()
    yield pair
    for node in pair:
        await node.stop()
    await other.close()
