"""Fixtures of the acceptance tests: engine processes that never outlive their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.acceptance.processes import EngineProcess
from tests.databases import NewDatabase
from tests.proxy import Proxy
from tests.wire import Api

QUICK = {
    "sweep_interval_ms": "200",
    "shutdown_grace_ms": "3000",
    "lease_ms": "2000",
    "log_format": "json",
    "work__init_backoff_ms": "20",
    "work__jitter": "false",
}

NewEngine = Callable[..., EngineProcess]
ClientOf = Callable[[EngineProcess], Api]


@pytest.fixture
async def new_engine(tmp_path: Path, store_settings: dict[str, str]) -> AsyncIterator[NewEngine]:
    """Makes an engine process (not started yet) with quick settings; what still runs at the end is killed.

    All of them are on the database of the test, whatever their data directories, unless the store is SQLite.
    """
    engines: list[EngineProcess] = []

    def make(data: Path | None = None, **settings: str) -> EngineProcess:
        engine = EngineProcess(data or tmp_path / "data", {**QUICK, **store_settings, **settings})
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        if engine.exit_code is None:
            await engine.kill()


@pytest.fixture
async def engine(new_engine: NewEngine) -> EngineProcess:
    """A running engine process."""
    process = new_engine()
    await process.start()
    return process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineProcess]:
    """One engine process on SQLite for all tests of a module that leave it as it was, but for flows of their own."""
    process = EngineProcess(tmp_path_factory.mktemp("shared") / "data", QUICK)
    await process.start()
    yield process
    assert await process.stop() == 0
    assert "Traceback" not in process.output()


@pytest.fixture
async def client_of(session: aiohttp.ClientSession) -> ClientOf:
    return lambda engine: Api(session, engine.url)


@pytest.fixture
def proxy(new_database: NewDatabase) -> Iterator[Proxy]:
    """A line to a database of the test's own that can be cut."""
    with Proxy(new_database()) as proxy:
        yield proxy
