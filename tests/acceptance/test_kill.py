"""kill -9 under load, again and again: what anybody was told stays true, and everything comes to its end.

``CHAOS_CYCLES`` says how often (6 by default), ``CHAOS_SEED`` repeats a run as far as timing allows.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import StepEndpoint
from tests.acceptance.chaos import FINAL, LIMITED_RETRIES, Chaos
from tests.acceptance.conftest import NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.eventually import elapsed

CYCLES = int(os.environ.get("CHAOS_CYCLES", "6"))
CUSTOMERS = 24
SECONDS_TO_THE_END = 60.0


@pytest.mark.chaos
@pytest.mark.timeout(120 + 6 * CYCLES)
async def test_nothing_told_is_lost(new_engine: NewEngine, endpoint: StepEndpoint) -> None:
    seed = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().getrandbits(32))))
    tell(f"CHAOS_SEED={seed} CHAOS_CYCLES={CYCLES}")
    engine = new_engine(shutdown_grace_ms="3000", log_level="warning")
    await engine.start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=20)) as session:
        chaos = Chaos(session, endpoint, seed)
        chaos.url = engine.url
        await chaos.register()
        customers = chaos.spawn_customers(CUSTOMERS)
        await storm(engine, chaos, random.Random(seed + 1))
        chaos.stop()
        await asyncio.wait_for(asyncio.gather(*customers), SECONDS_TO_THE_END)
        await wake_the_patient(chaos)
        await asyncio.wait_for(chaos.idle(), SECONDS_TO_THE_END)
        await compare(chaos)
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--data", str(engine.data))
    assert code == 0, output + errors
    ledger = chaos.ledger
    dispatches = sum(map(len, ledger.attempts.values()))
    tell(f"{len(ledger.started)} flows, {ledger.reports} reports, {dispatches} dispatches: nothing lost")


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make chaos at once)


async def storm(engine: EngineProcess, chaos: Chaos, dice: random.Random) -> None:
    """Kill and start, at moments that the seed chooses; some kills come while the engine is still starting."""
    for cycle in range(CYCLES):
        await chaos.start(f"patient-{cycle}", ["patient"])
        await elapsed(dice.uniform(0.2, 1.2))
        await engine.kill()
        if cycle % 4 == 3:
            await engine.spawn()
            await elapsed(dice.uniform(0.0, 0.8))
            await engine.kill()
        check_the_dead(engine.data)
        await engine.start()


def check_the_dead(data: Path) -> None:
    """A database that a kill left behind keeps every promise: the doctor finds nothing."""
    findings = run_doctor(Settings(data=data))
    assert not findings, findings


async def wake_the_patient(chaos: Chaos) -> None:
    """What was acknowledged and only waited for its callback was not sent again by any restart."""
    for cycle in range(CYCLES):
        flow_id = f"patient-{cycle}"
        received = [each for each in chaos.patient if each.metadata["flow_id"] == flow_id]
        assert received, f"{flow_id} was never sent"
        status, page = await chaos.call("GET", f"/api/v1/flows/{flow_id}/events")
        assert status == 200
        kinds = [event["type"] for event in page["events"]]
        assert kinds.count("work_acknowledged") == 1, kinds
        after = kinds[kinds.index("work_acknowledged") :]
        assert "work_dispatched" not in after, f"{flow_id} was acknowledged and sent again: {kinds}"
        await chaos.report(received[-1], {"success": True, "outputs": {"patience": cycle}})


async def compare(chaos: Chaos) -> None:
    """The ledger against what the engine shows now."""
    ledger = chaos.ledger
    assert ledger.faults == []
    flows = await all_flows(chaos)
    assert set(flows) == ledger.started, "flows that were started are exactly those that exist"
    await settle_last(chaos, flows)
    for flow_id in ledger.started:
        status, flow = await chaos.call("GET", f"/api/v1/flows/{flow_id}")
        assert status == 200
        assert flow["status"] in FINAL, f"{flow_id} is stuck: {flow}"
        if flow_id in ledger.ended:
            told = ledger.ended[flow_id]
            assert (flow["status"], flow["outputs"]) == (told["status"], told["outputs"])
        if flow_id in ledger.cancelled:
            assert flow["status"] == "cancelled"
        for step_id, step in flow["steps"].items():
            for work in step["work"]:
                check_work(chaos, flow_id, step_id, work)


def check_work(chaos: Chaos, flow_id: str, step_id: str, work: dict[str, Any]) -> None:
    ledger, key = chaos.ledger, (flow_id, step_id)
    assert work["status"] in ("succeeded", "failed", "cancelled"), (key, work)
    told = ledger.accepted.get(key)
    if told is not None:
        assert work["status"] == ("succeeded" if told["success"] else "failed"), (key, told, work)
        if told["success"]:
            assert work["outputs"] == told["outputs"], (key, told, work)
        else:
            assert work["error"]["message"] == told["error"], (key, told, work)
    elif work["status"] == "succeeded":
        assert step_id == "sync", f"{key} succeeded, but no worker was told so: {work}"
        assert work["outputs"] in ledger.sync_answers[key]
    attempts = ledger.attempts[key]
    assert len(attempts) <= work["attempt"]
    if attempts:
        assert attempts[-1] <= work["attempt"]
    if step_id == "limited":
        assert work["attempt"] <= LIMITED_RETRIES + 1, (key, work)


async def all_flows(chaos: Chaos) -> dict[str, str]:
    """Every flow by its id, over all pages."""
    flows: dict[str, str] = {}
    path = "/api/v1/flows?limit=100"
    while True:
        status, page = await chaos.call("GET", path)
        assert status == 200
        flows |= {flow["flow_id"]: flow["status"] for flow in page["flows"]}
        if page["next_cursor"] is None:
            return flows
        path = f"/api/v1/flows?limit=100&cursor={page['next_cursor']}"


async def settle_last(chaos: Chaos, flows: dict[str, str]) -> None:
    """Give what is still on its way its bounded time to end."""
    end = time.monotonic() + SECONDS_TO_THE_END
    for flow_id, status in flows.items():
        now = status
        while now not in FINAL and time.monotonic() < end:
            _, answer = await chaos.call("GET", f"/api/v1/flows/{flow_id}/result?wait=5")
            now = answer["status"]
