"""One real engine per test: in process, on a free port, with its own SQLite file, seen by the doctor afterwards.

The engine is imported by the fixtures that need it, so that tests of one layer load no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from counterfoil.domain.time import Clock
from counterfoil.testing import StepEndpoint
from tests.wire import Api

if TYPE_CHECKING:
    from tests.running import Connect, Node, StartNode

QUICK = {"port": 0, "sweep_interval_ms": 200, "shutdown_grace_ms": 2000, "log_level": "warning", "log_format": "json"}
QUICK_WORK = {"init_backoff_ms": 20, "max_backoff_ms": 1000, "ack_timeout_ms": 5000, "jitter": False}


@pytest.fixture
async def start_node(tmp_path: Path) -> AsyncIterator[StartNode]:
    """Starts engines with quick defaults; all are stopped at the end and every database is checked by the doctor."""
    from counterfoil.app import Counterfoil, run_doctor
    from counterfoil.engine import system_clock
    from counterfoil.settings import Settings
    from tests.running import Node

    nodes: list[Node] = []

    async def start(clock: Clock | None = None, **overrides: Any) -> Node:
        work = {**QUICK_WORK, **overrides.pop("work", {})}
        settings = Settings(**{"data": str(tmp_path / "data"), **QUICK, "work": work, **overrides})
        stack = contextlib.AsyncExitStack()
        engine = await stack.enter_async_context(Counterfoil(settings, clock or system_clock))
        node = Node(settings, engine, stack)
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        await node.stop()
    for settings in {str(node.settings.data): node.settings for node in nodes}.values():
        findings = run_doctor(settings)
        assert not findings, findings


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def api(node: Node, session: aiohttp.ClientSession) -> Api:
    return Api(session, node.url)


@pytest.fixture
async def connect(session: aiohttp.ClientSession) -> Connect:
    """Makes a client of an engine that the test started itself."""
    return lambda node: Api(session, node.url)


@pytest.fixture
async def endpoint() -> AsyncIterator[StepEndpoint]:
    async with StepEndpoint() as served:
        yield served
