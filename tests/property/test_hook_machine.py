"""Hooks of several flows under everything that can happen to them, compared with a plain model after every step."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.property.hook_machine import HookMachine
from tests.property.test_engine_machine import DOCTOR_EVERY, EMPTY

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.timeout(900),  # all examples together are one test, and a failure takes minutes to shrink
]

EXAMPLES = {"sqlite": "12", "postgresql": "5"}


def test_hooks_and_model_agree_whatever_happens(store_name: str, tmp_path: Path, new_database: NewDatabase) -> None:
    numbers = itertools.count(1)
    shared = new_database() if store_name == "postgresql" else ""

    class MachineOnAnEmptyDatabase(HookMachine):
        def __init__(self) -> None:
            if shared:
                by_hand(shared, EMPTY)
            super().__init__(shared or tmp_path / f"{next(numbers)}.db", DOCTOR_EVERY[store_name])

    run_state_machine_as_test(
        MachineOnAnEmptyDatabase,
        settings=settings(
            max_examples=int(os.environ.get("PROPERTY_EXAMPLES", EXAMPLES[store_name])),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )
