"""Nodes killed under load while workers lose outcomes: nothing that may have been done is done again by itself.

The effects are counted at the endpoints. Reviewers and operators decide through the API meanwhile; when the storm is
over, everything that is left waits in a queue that they see, and ends when they have decided. ``CHAOS_CYCLES`` says how
many strikes there are (3 by default), ``TEST_SEED`` repeats a run as far as timing allows.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import NewEngine
from tests.acceptance.effects_load import EffectsLoad, effects_load
from tests.acceptance.processes import EngineProcess
from tests.eventually import elapsed, eventually
from tests.seeds import announce

CYCLES = int(os.environ.get("CHAOS_CYCLES", "3"))
CUSTOMERS = 8
LEASE_MS = 1_000
SECONDS_TO_THE_END = 90.0


@pytest.mark.chaos
@pytest.mark.timeout(200 + 10 * CYCLES)
async def test_no_effect_is_repeated_by_itself(
    new_engine: NewEngine, endpoint: StepEndpoint, store_name: str, store_settings: dict[str, str], tmp_path: Path
) -> None:
    seed = announce(CHAOS_CYCLES=CYCLES)
    dice = random.Random(seed)
    count = 1 if store_name == "sqlite" else 3
    settings = {"lease_ms": str(LEASE_MS), "webhook_base_url": "http://any-node.test", "log_level": "warning"}
    nodes = [new_engine(tmp_path / f"node-{number}", **settings) for number in range(count)]
    for node in nodes:
        await node.start()
    async with effects_load(endpoint, seed) as load:
        load.urls = [node.url for node in nodes]
        await load.register()
        load.open(CUSTOMERS)
        for _ in range(CYCLES):
            await elapsed(dice.uniform(0.3, 1.2))
            await strike(nodes, dice)
            load.check_effects()
        await load.close(SECONDS_TO_THE_END)
        await eventually(load.waits_for_people, within=SECONDS_TO_THE_END, what="that only people are waited for")
        load.check_effects()
        await eventually(load.settle_everything, within=SECONDS_TO_THE_END, what="the end of every flow")
        await load.close(SECONDS_TO_THE_END)
        load.check_effects()
        await load.check_shared_results()
        print(load.summary(), file=sys.stderr)  # noqa: T201 (pytest shows it with a failure, and make chaos at once)
        assert_it_was_a_storm(load)
    for node in nodes:
        assert await node.stop() == 0
        assert "Traceback" not in node.output()
    assert run_doctor(Settings(data=nodes[0].data, store=store_settings.get("store", ""))) == []


async def strike(nodes: list[EngineProcess], dice: random.Random) -> None:
    """Kill a node, and start it again; or pause one for longer than its lease, if there are others."""
    node = dice.choice(nodes)
    if len(nodes) > 1 and dice.random() < 0.4:
        node.signal(signal.SIGSTOP)
        await elapsed(LEASE_MS / 1000 * dice.choice((1.3, 2.5)))
        node.signal(signal.SIGCONT)
        return
    await node.kill()
    await elapsed(dice.choice((0.0, 0.3)))
    await node.start()


def assert_it_was_a_storm(load: EffectsLoad) -> None:
    """A run in which nothing became unknown, or nothing was settled, would prove nothing."""
    steps = {load.step_of[work_id] for work_id in load.effects}
    assert steps == {"reconcile", "once", "probed", "shared", "shared_once"}
    assert load.settled > 0
