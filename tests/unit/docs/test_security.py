"""The limits that the page on security names are those of the settings."""

from __future__ import annotations

import re

import pytest

from counterfoil.settings import ROLES, describe_settings
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text("utf-8")
ROWS = re.findall(r"^\| [^|]+ \| ([^|]+) \| `(\w+)` \|$", PAGE, re.MULTILINE)
LIMITS = {setting: limit for limit, setting in ROWS if setting != "api_keys"}
DEFAULTS = {item.name: item.default for item in describe_settings()}
UNITS = {"": 1, "ms": 1, "s": 1000, "hour": 3_600_000, "MiB": 1_048_576}


def test_there_are_limits() -> None:
    assert len(LIMITS) > 10
    assert set(LIMITS) <= DEFAULTS.keys()


@pytest.mark.parametrize("setting", sorted(LIMITS))
def test_a_limit_is_the_default_of_its_setting(setting: str) -> None:
    found = re.match(r"([0-9,]+)(?: (MiB|s|ms|hour)\b)?", LIMITS[setting])
    assert found is not None
    assert int(found[1].replace(",", "")) * UNITS[found[2] or ""] == DEFAULTS[setting]


def test_every_role_is_in_the_table() -> None:
    assert all(f"`{role}` key" in PAGE for role in ROLES)
