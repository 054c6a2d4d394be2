"""The benchmarks run, in sizes that measure nothing: the figures are for a quiet machine, the code must not rot."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "measures",
    [
        ("completions", "cycle", "latency", "bulk", "gate"),
        ("clients",),
        ("restart", "flat", "dedup", "effects"),
        ("postgres", "postgres-cycle", "nodes", "takeover"),
        ("large-flows", "postgres-large-flows"),
        ("--before", ".", "cycle", "flat", "nodes", "gate"),
    ],
)
def test_the_benchmarks_run(measures: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", *measures]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "reached" in ended.stdout
