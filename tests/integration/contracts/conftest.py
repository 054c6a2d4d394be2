"""Fixtures of tests of tool contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from counterfoil.contracts.testing.fixtures import contract_checks, dedup_store
from tests.integration.contracts.payments import Payments

__all__ = ["contract_checks", "dedup_store"]


@pytest.fixture
async def payments() -> AsyncIterator[Payments]:
    async with Payments() as serving:
        yield serving
