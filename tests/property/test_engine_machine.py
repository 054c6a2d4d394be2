"""One flow under everything that can happen to it, in any order, compared with a plain model after every step."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.property.machine import EngineMachine
from tests.property.unknown_machine import UnknownOutcomesMachine

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.timeout(900),  # all examples together are one test, and a failure takes minutes to shrink
]

EXAMPLES = {"sqlite": "12", "postgresql": "5"}
DOCTOR_EVERY = {"sqlite": 1, "postgresql": 8}
"""The doctor examines after so many rules, since it costs a connection on a server, and at the end of an example."""
EMPTY = """
DO $$ BEGIN EXECUTE (
    SELECT 'TRUNCATE ' || string_agg(quote_ident(tablename), ', ') || ' RESTART IDENTITY' FROM pg_tables
    WHERE schemaname = current_schema() AND tablename NOT IN ('schema_version', 'register', 'controls')
); END $$
"""
"""Everything goes but the schema and the two rows that count revisions: quicker than a database for each example."""


@pytest.mark.parametrize("machine", [EngineMachine, UnknownOutcomesMachine])
def test_engine_and_model_agree_whatever_happens(
    machine: type[EngineMachine], store_name: str, tmp_path: Path, new_database: NewDatabase
) -> None:
    numbers = itertools.count(1)
    shared = new_database() if store_name == "postgresql" else ""

    class MachineOnAnEmptyDatabase(machine):  # type: ignore[valid-type,misc]  # which class it is, is for the test to say
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
