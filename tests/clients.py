"""Clients of other systems that some tests run: they come with the extra ``compat``."""

from __future__ import annotations

import importlib.util

import pytest

from tests.programs import in_continuous_integration

MISSING = "a client of the extra compat is not installed"


def require_client(*packages: str) -> None:
    """End the collection of a module whose clients are not installed: skipped, or failed in continuous integration."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if not missing:
        return
    reason = f"{MISSING}: {', '.join(missing)} (make .venv/.installed-dev, or pip install -e '.[dev,compat]')"
    if in_continuous_integration():
        pytest.fail(f"not tested, and CI is set: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=True)
