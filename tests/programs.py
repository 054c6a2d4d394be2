"""Programs that some tests need and Python cannot install: pgbouncer, nginx."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"))


def in_continuous_integration() -> bool:
    """Whether a test that cannot run is a failure (``CI=true``) and not merely skipped."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def left_out(reason: str) -> NoReturn:
    """End the test that is running: skipped, or failed in continuous integration, where nothing is left out."""
    if in_continuous_integration():
        pytest.fail(f"not tested, and CI is set: {reason}", pytrace=False)
    pytest.skip(reason)


def program(name: str) -> str:
    """The path of an installed program; ends the test where there is none."""
    found = shutil.which(name, path=PLACES)
    if found is None:
        left_out(f"{name} is not installed (on Debian and Ubuntu: apt-get install {name})")
    return found
