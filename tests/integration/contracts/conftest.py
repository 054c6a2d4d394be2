"""Fixtures of tests of tool contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from counterfoil.contracts.testing.fixtures import contract_checks, dedup_store
from tests.integration.contracts.payments import Payments
from tests.integration.contracts.seed_bench import Bench

__all__ = ["contract_checks", "dedup_store"]


@pytest.fixture
async def payments() -> AsyncIterator[Payments]:
    async with Payments() as serving:
        yield serving


@pytest.fixture
def bench(payments: Payments, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(payments, tmp_path)
    yield made
    made.store.close()
