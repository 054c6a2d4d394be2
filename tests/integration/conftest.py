"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from counterfoil.testing import StepEndpoint
from tests.wire import Api

if TYPE_CHECKING:
    from tests.acceptance.processes import EngineProcess
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
