"""Random flows under whatever may happen to them: they end, in the order of data flow, and nothing is done twice.

``PROPERTY_EXAMPLES`` asks for more of them, ``TEST_SEED`` with ``--hypothesis-seed`` for others (``make fuzz``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.by_hand import Place, by_hand
from tests.databases import NewDatabase
from tests.property.runs import ACTIONS, Run, steps
from tests.property.test_engine_machine import EMPTY

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.timeout(900),  # all examples together are one test, and a failure takes minutes to shrink
]

EXAMPLES = {"sqlite": "60", "postgresql": "8"}


def test_every_flow_ends_and_every_call_carries_what_its_providers_gave(
    store_name: str, tmp_path: Path, new_database: NewDatabase
) -> None:
    numbers = itertools.count(1)
    shared = new_database() if store_name == "postgresql" else ""

    @settings(
        max_examples=int(os.environ.get("PROPERTY_EXAMPLES", EXAMPLES[store_name])),
        suppress_health_check=list(HealthCheck),
    )
    @given(steps(), st.data())
    def one_flow(definitions: dict[str, dict[str, Any]], data: st.DataObject) -> None:
        goals = ["outer"] if "outer" in definitions else draw_goals(definitions, data)
        actions = data.draw(st.lists(st.tuples(ACTIONS, st.integers(0, 5)), max_size=30), label="actions")
        if shared:
            by_hand(shared, EMPTY)
        asyncio.run(live(shared or tmp_path / f"{next(numbers)}.db", definitions, goals, actions))

    one_flow()


def draw_goals(definitions: dict[str, Any], data: st.DataObject) -> list[str]:
    return data.draw(st.lists(st.sampled_from(sorted(definitions)), unique=True, min_size=1, max_size=3), label="goals")


async def live(place: Place, definitions: dict[str, Any], goals: list[str], actions: list[tuple[str, int]]) -> None:
    run = Run(place, definitions, goals)
    try:
        if not await run.start():
            return
        await run.check()
        for action, which in actions:
            await run.act(action, which)
        await run.come_to_the_end()
        assert run.simulator.examine() == []
        if (await run.flow())["status"] == "failed":
            await run.act("redrive", 0)
            await run.come_to_the_end()
            assert run.simulator.examine() == []
    finally:
        await run.simulator.crash()
