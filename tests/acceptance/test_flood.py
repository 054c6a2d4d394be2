"""A flood of forged receipts against an engine process: bounded in the database, and real completions go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import StepEndpoint
from tests.acceptance.processes import EngineProcess
from tests.by_hand import by_hand
from tests.integration.callbacks.inbox import callbacks
from tests.wire import Api

FORGED = 5_000
MOST_ROWS = 60
SETTINGS = {
    "log_level": "warning",
    "callbacks__max_rows": str(MOST_ROWS),
    "callbacks__unknown_per_second": "1000",
    "callbacks__unknown_burst": "1000",
}


@pytest.fixture
async def engine(tmp_path: Path, store_settings: dict[str, str]) -> AsyncIterator[EngineProcess]:
    process = EngineProcess(tmp_path / "engine", {**SETTINGS, **store_settings})
    await process.start()
    yield process
    if process.exit_code is None:
        await process.kill()
    findings = run_doctor(Settings(data=process.data, store=store_settings.get("store", "")))
    assert not findings, findings


async def flood(engine: EngineProcess, count: int) -> None:
    """Forged receipts, each of the right form, sent one behind the other without waiting for answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = b'{"success": true}'
    fields = "Host: x\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
    head = f"POST /webhook/flow/step/{{}}.{{}} HTTP/1.1\r\n{fields}"
    answered = 0
    for number in range(count):
        writer.write(head.format(f"{number:032x}", "A" * 43).encode() + body)
        if number % 50 == 49:
            await writer.drain()
            while answered <= number:
                answered += (await reader.readuntil(b"UNKNOWN_RECEIPT")).count(b"UNKNOWN_RECEIPT")
    writer.close()


@pytest.mark.timeout(300)
async def test_a_flood_is_bounded_and_real_completions_go_on(
    engine: EngineProcess, endpoint: StepEndpoint, session: aiohttp.ClientSession, store_settings: dict[str, str]
) -> None:
    api = Api(session, engine.url)
    await api.put_step("job", endpoint.url("/job"))
    flows = [await api.start("job") for _ in range(200)]
    await endpoint.received("/job", len(flows))
    flooding = asyncio.create_task(flood(engine, FORGED))
    began = time.monotonic()
    for received in endpoint.requests("/job"):
        await api.succeed(received)
    assert time.monotonic() - began < 60
    await flooding
    for flow_id in flows:
        assert (await api.final(flow_id))["status"] == "completed"
    found = await callbacks(api, limit="1000")
    assert len([each for each in found if each["verdict"] == "accepted"]) == len(flows)
    assert len([each for each in found if each["verdict"] == "UNKNOWN_RECEIPT"]) == MOST_ROWS
    place = store_settings.get("store") or engine.data / "counterfoil.db"
    assert by_hand(place, "SELECT count(*) FROM callbacks") == [(MOST_ROWS,)]
    metrics = (await api.get("/metrics")).content.decode()
    dropped, recorded = (
        float(line.split()[-1])
        for name in ('callbacks_dropped_total{reason="unknown_receipt"}', "callbacks_recorded_total ")
        for line in metrics.splitlines()
        if line.startswith(f"counterfoil_{name}")
    )
    assert dropped + recorded == FORGED


async def test_a_crash_loses_no_accepted_callback(
    engine: EngineProcess, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """Refusals of the last moment may be lost; what was answered with 200 is in the inbox."""
    api = Api(session, engine.url)
    await api.put_step("job", endpoint.url("/job"))
    flows = [await api.start("job") for _ in range(20)]
    await endpoint.received("/job", len(flows))
    for received in endpoint.requests("/job"):
        await api.succeed(received)
        (await api.complete(received, {"success": True})).refused(400, "ALREADY_SUCCEEDED")
    await engine.kill()
    await engine.start()
    found = await callbacks(Api(session, engine.url), limit="1000")
    accepted = [each["flow_id"] for each in found if each["verdict"] == "accepted"]
    assert sorted(accepted) == sorted(flows)
    assert {each["verdict"] for each in found} <= {"accepted", "ALREADY_SUCCEEDED"}
