"""The generated parts of the reference are what the code says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT

SCRIPT = ROOT / "docs" / "generate.py"


def run(*arguments: str, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_no_generated_part_is_stale() -> None:
    checked = run("--check")
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The script with one page of its own."""
    script = tmp_path / "docs" / "generate.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text("utf-8"), "utf-8")
    (script.parent / "page.md").write_text(
        "before\n\n<!-- generated: errors -->\nold\n<!-- end -->\n\nafter\n", "utf-8"
    )
    return script


def test_a_stale_part_is_found_and_renewed(copy: Path) -> None:
    page = copy.parent / "page.md"
    old = page.read_text("utf-8")
    found = run("--check", script=copy)
    assert (found.returncode, "docs/page.md is stale" in found.stderr) == (1, True)
    assert page.read_text("utf-8") == old
    assert run(script=copy).returncode == 0
    text = page.read_text("utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "`UNKNOWN_RECEIPT`" in text
    assert run("--check", script=copy).returncode == 0
