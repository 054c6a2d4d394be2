"""Examples of Hypothesis are the same in every run, whichever tests ran before, and another seed gives others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "_hypothesis_pytestplugin"
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Loading the other plugins would take most of the time of these runs."""
DRAWN = """
import sys
from hypothesis import given, strategies as st

@given(st.lists(st.integers() | st.text()))
def test_draws(values):
    print("drawn", ascii(values), file=sys.stderr)
"""


def drawn(directory: Path, *flags: str, modules: str = "", **variables: str) -> list[str]:
    """What a process of pytest draws when these modules are loaded beside the test."""
    directory.mkdir()
    (directory / "conftest.py").write_text(
        f"{modules}\nfrom tests.seeds import load_hypothesis_profile as load\nload()\n"
    )
    (directory / "test_drawn.py").write_text(DRAWN)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", PLUGIN, *flags]
    kept = {name: value for name, value in os.environ.items() if name != "TEST_SEED"}
    done = subprocess.run(
        [*command, f"--rootdir={directory}", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**kept, **ALONE, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **variables},
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("drawn ")]
    assert len(lines) > 50, done.stderr
    assert not (directory / ".hypothesis" / "examples").exists(), "nothing is kept for the next run"
    return lines


def test_examples_do_not_depend_on_what_is_loaded_or_on_the_run(tmp_path: Path) -> None:
    alone = drawn(tmp_path / "alone")
    assert (
        drawn(tmp_path / "engine", modules="import counterfoil.domain.steps.definitions, counterfoil.server.app")
        == alone
    )
    assert drawn(tmp_path / "seeded", "--hypothesis-seed=5") == alone, "only TEST_SEED makes a run another one"


def test_another_seed_gives_other_examples_that_can_be_repeated(tmp_path: Path) -> None:
    seven = drawn(tmp_path / "seven", "--hypothesis-seed=7", TEST_SEED="7")
    assert drawn(tmp_path / "again", "--hypothesis-seed=7", TEST_SEED="7") == seven
    assert drawn(tmp_path / "eight", "--hypothesis-seed=8", TEST_SEED="8") != seven


def test_the_tests_of_this_run_have_the_profile() -> None:
    profile = settings()
    assert profile.database is None
    assert profile.deadline is None
    assert profile.derandomize is ("TEST_SEED" not in os.environ)
