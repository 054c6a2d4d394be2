from __future__ import annotations

import sys
from pathlib import Path

import pytest

from counterfoil.cli.program import program


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that was started by its path; a shell does not find it by its name."""
    path = tmp_path / "my tools" / "bin" / "counterfoil"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(path), "demo"])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/elsewhere")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return path


def test_a_program_that_no_shell_finds_is_named_with_its_path(installed: Path) -> None:
    assert program() == f"'{installed}'"


def test_a_program_on_the_path_is_named_alone(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/usr/bin:{installed.parent}")
    assert program() == "counterfoil"


def test_another_program_of_that_name_does_not_count(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counterfoil").write_text("#!/bin/sh\n")
    (tmp_path / "counterfoil").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{installed.parent}")
    assert program() == f"'{installed}'"


def test_a_virtual_environment_of_this_shell_does_not_count(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    monkeypatch.setenv("VIRTUAL_ENV", str(installed.parents[1]))
    assert program() == f"'{installed}'"


def test_the_home_directory_is_left_to_the_shell(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert program() == "~/'my tools/bin/counterfoil'"


def test_a_relative_path_works_in_any_directory(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(installed.parents[1])
    monkeypatch.setattr(sys, "argv", ["bin/counterfoil", "demo"])
    assert program() == f"'{installed}'"


def test_a_module_is_called_by_its_interpreter(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/counterfoil/__main__.py", "demo"])
    monkeypatch.setattr(sys, "executable", str(installed.with_name("python3.11")))
    assert program() == f"'{installed.with_name('python3.11')}' -m counterfoil"
