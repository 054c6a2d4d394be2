"""Programs that some tests need and pip cannot install; ``.ci/run`` installs their packages."""

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


PACKAGES = {"go": "golang-go", "node": "nodejs", "npx": "npm"}
"""The Debian packages of programs that are named otherwise."""


def program(*names: str) -> str:
    """The path of the first of these programs that is installed; ends the test where there is none."""
    for name in names:
        if (found := shutil.which(name, path=PLACES)) is not None:
            return found
    package = PACKAGES.get(names[0], names[0])
    left_out(f"{names[0]} is not installed (on Debian and Ubuntu: apt-get install {package})")
