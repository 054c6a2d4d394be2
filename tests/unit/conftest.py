"""A simulated engine on the store of the test, seen by the doctor in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.by_hand import Place
from tests.databases import NewDatabase

if TYPE_CHECKING:
    from counterfoil.testing.simulator import Simulator


@pytest.fixture
def place(store_name: str, tmp_path: Path, new_database: NewDatabase) -> Place:
    """Where the database of the test is, or will be."""
    return new_database() if store_name == "postgresql" else tmp_path / "counterfoil.db"


@pytest.fixture
async def simulator(place: Place) -> AsyncIterator[Simulator]:
    from counterfoil.testing.simulator import Simulator
    from tests.store.records import DEFAULTS

    async with Simulator(place, defaults=DEFAULTS) as simulator:
        yield simulator
        assert simulator.examine() == []
