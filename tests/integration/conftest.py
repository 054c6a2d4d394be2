"""Fixtures of the integration tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import pytest_asyncio

from counterfoil.testing import MovableClock, StepEndpoint
from tests.conftest import QUICK, stores_of
from tests.databases import databases_of, skipped_without_postgres
from tests.wire import Api

if TYPE_CHECKING:
    from tests.acceptance.processes import EngineProcess
    from tests.integration.agents import Gatehouse
    from tests.integration.planned import Workshop

StartProcesses = Callable[[], "Awaitable[list[tuple[EngineProcess, Api]]]"]
PROCESS_SETTINGS = {
    "lease_ms": "1000",
    "sweep_interval_ms": "200",
    "shutdown_grace_ms": "2000",
    "log_level": "warning",
    "work__init_backoff_ms": "20",
    "work__jitter": "false",
}


@pytest.fixture
def shop(api: Api, endpoint: StepEndpoint) -> Workshop:
    """Steps with attributes, at the endpoint of the test."""
    from tests.integration.planned import Workshop

    return Workshop(api, endpoint)


@pytest.fixture
async def start_processes(
    tmp_path: Path, store_name: str, store_settings: dict[str, str], session: aiohttp.ClientSession
) -> AsyncIterator[StartProcesses]:
    """Starts all engine processes that the store allows: two on PostgreSQL, one on SQLite; the doctor comes after."""
    from counterfoil.app import run_doctor
    from counterfoil.settings import Settings
    from tests.acceptance.processes import EngineProcess

    engines: list[EngineProcess] = []

    async def start() -> list[tuple[EngineProcess, Api]]:
        for number in range(2 if store_name == "postgresql" else 1):
            engines.append(EngineProcess(tmp_path / f"node-{number}", {**PROCESS_SETTINGS, **store_settings}))
            await engines[-1].start()
        return [(engine, Api(session, engine.url)) for engine in engines]

    yield start
    for engine in engines:
        if engine.exit_code is None:
            await engine.kill()
    findings = run_doctor(Settings(data=tmp_path / "node-0", store=store_settings.get("store", "")))
    assert not findings, findings


# ------------------------------------------------------------------------------------------------ one engine a module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shared_store" in metafunc.fixturenames:
        stores = stores_of(metafunc.definition, metafunc.config)
        metafunc.parametrize("shared_store", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def shared_store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The settings that put the engine of a module on the store of its tests."""
    if request.param == "sqlite":
        yield {}
        return
    databases = databases_of(request.config)
    with skipped_without_postgres():
        name = databases.create()
    yield {"store": databases.dsn(name)}
    databases.drop(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(shared_store: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gatehouse]:
    """One engine for a module whose tests all have workflows of their own; the doctor sees it at the end.

    Such a module has ``pytestmark = pytest.mark.asyncio(loop_scope="module")``.
    """
    from counterfoil.app import Counterfoil, run_doctor
    from counterfoil.settings import Settings
    from tests.integration.agents import Gatehouse
    from tests.running import Node

    clock = MovableClock()
    data = str(tmp_path_factory.mktemp("house"))
    chosen: dict[str, Any] = {**QUICK, "data": data, "sweep_interval_ms": 50, **shared_store}
    settings = Settings(**chosen)
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        contextlib.AsyncExitStack() as stack,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
    ):
        engine = await stack.enter_async_context(Counterfoil(settings, clock))
        node = Node(settings, engine, stack)
        yield Gatehouse(node, Api(session, node.url), clock)
    findings = run_doctor(settings)
    assert not findings, findings
