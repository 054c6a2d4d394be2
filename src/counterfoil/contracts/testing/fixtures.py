"""The checks as a pytest plugin, for tests without an event loop.

A conftest.py loads it: ``pytest_plugins = ["counterfoil.contracts.testing.fixtures"]``.

Each check runs on an event loop of its own, in a thread of its own, so a test may have one running. A check whose
downstream system is served by the loop of the test needs the async functions instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from counterfoil.contracts.stores.sqlite import SqliteDedupStore
from counterfoil.contracts.testing.crashes import CrashReport, crash_between_phases
from counterfoil.contracts.testing.failures import ErrorsReport, undeclared_errors
from counterfoil.contracts.testing.hammering import HammerReport, hammer
from counterfoil.contracts.testing.windows import WindowReport, window

R = TypeVar("R")


class ContractChecks:
    """The four checks; each takes what the function of its name takes, and waits for its end."""

    def hammer(self, *arguments: Any, **options: Any) -> HammerReport:
        return _waited(hammer(*arguments, **options))

    def crash_between_phases(self, *arguments: Any, **options: Any) -> CrashReport:
        return _waited(crash_between_phases(*arguments, **options))

    def window(self, *arguments: Any, **options: Any) -> WindowReport:
        return _waited(window(*arguments, **options))

    def undeclared_errors(self, *arguments: Any, **options: Any) -> ErrorsReport:
        return _waited(undeclared_errors(*arguments, **options))


def _waited(check: Coroutine[Any, Any, R]) -> R:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, check).result()


@pytest.fixture
def contract_checks() -> ContractChecks:
    return ContractChecks()


@pytest.fixture
def dedup_store(tmp_path: Path) -> Iterator[SqliteDedupStore]:
    """An empty dedup store of this test."""
    store = SqliteDedupStore(tmp_path / "effects.db")
    yield store
    store.close()
