"""Cases that may run on either store are dealt out: none is left out, and none runs twice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKED = "tests/integration/webhook/test_webhook_heads.py"
CASE = re.compile(r"::test_an_odd_head\w+\[(sqlite, plain|sqlite|postgresql)-(.+)\]")


def cases(*options: str) -> dict[str, list[str]]:
    """The cases of a marked test that runs on both paths, by where they run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, MARKED]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {"sqlite": [], "postgresql": [], "sqlite, plain": []}
    for where, case in CASE.findall(told):
        found[where].append(case)
    return found


def test_each_case_runs_on_one_store_and_on_the_plain_path() -> None:
    found = cases()
    everything = found["sqlite, plain"]
    assert len(everything) > 20
    assert found["sqlite"] == everything[::2]
    assert found["postgresql"] == everything[1::2]


def test_a_store_that_was_chosen_runs_them_all() -> None:
    found = cases("--store=postgresql")
    assert len(found["postgresql"]) > 20
    assert found["sqlite"] == []
