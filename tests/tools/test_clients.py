"""Clients that are not installed: a module of tests is skipped, and in continuous integration it fails."""

from __future__ import annotations

import pytest

from tests.clients import MISSING, require_client


def test_what_is_installed_is_not_left_out() -> None:
    require_client("pytest", "aiohttp")


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("false", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match=rf"{MISSING}: no_such_client .*\.\[dev,compat\]"):
        require_client("pytest", "no_such_client")
