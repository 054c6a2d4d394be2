"""kill -9 under load, repeatedly: every answer that a client got stays true, and every flow ends.

``CHAOS_CYCLES`` says how often (4 by default), ``TEST_SEED`` repeats a run as far as timing allows.
"""

from __future__ import annotations

import os
import random
import sys

import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import StepEndpoint
from tests.acceptance.chaos import Chaos, load
from tests.acceptance.conftest import NewEngine
from tests.acceptance.ledger import compare
from tests.acceptance.processes import EngineProcess, run_command
from tests.eventually import elapsed
from tests.seeds import announce

CYCLES = int(os.environ.get("CHAOS_CYCLES", "4"))
CUSTOMERS = 24
SECONDS_TO_THE_END = 60.0


@pytest.mark.chaos
@pytest.mark.timeout(120 + 6 * CYCLES)
async def test_nothing_told_is_lost(
    new_engine: NewEngine, endpoint: StepEndpoint, store_settings: dict[str, str]
) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    engine = new_engine(shutdown_grace_ms="3000", log_level="warning", lease_ms="1000")
    settings = Settings(data=engine.data, store=store_settings.get("store", ""))
    await engine.start()
    async with load(endpoint, seed) as chaos:
        chaos.urls = [engine.url]
        await chaos.register()
        chaos.open(CUSTOMERS)
        await storm(engine, chaos, random.Random(seed + 1), settings)
        await chaos.close(SECONDS_TO_THE_END)
        await chaos.wake_the_patient()
        await chaos.idle(SECONDS_TO_THE_END)
        await compare(chaos.ledger, chaos.call, SECONDS_TO_THE_END)
    assert chaos.ledger.overtaken == []
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--store", settings.store_url)
    assert code == 0, output + errors
    tell(f"{chaos.ledger.summary()}: nothing lost")


def tell(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make chaos at once)


async def storm(engine: EngineProcess, chaos: Chaos, dice: random.Random, settings: Settings) -> None:
    """Kill and start, at moments that the seed chooses; some kills come while the engine is still starting."""
    for cycle in range(CYCLES):
        await chaos.start(f"patient-{cycle}", ["patient"])
        await elapsed(dice.uniform(0.2, 1.2))
        await engine.kill()
        if cycle % 4 == 3:
            await engine.spawn()
            await elapsed(dice.uniform(0.0, 0.8))
            await engine.kill()
        check_the_dead(settings)
        await engine.start()


def check_the_dead(settings: Settings) -> None:
    """A database that a kill left behind keeps every promise: the doctor finds nothing."""
    findings = run_doctor(settings)
    assert not findings, findings
