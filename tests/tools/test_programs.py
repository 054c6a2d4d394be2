"""A test whose program is missing: skipped with the reason at a desk, failed in continuous integration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import programs


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which programs are looked for."""
    monkeypatch.setattr(programs, "PLACES", str(tmp_path))
    return tmp_path


def test_a_program_that_is_installed(places: Path) -> None:
    (places / "nginx").write_text("#!/bin/sh\n")
    (places / "nginx").chmod(0o755)
    assert programs.program("nginx") == str(places / "nginx")


@pytest.mark.parametrize("text", [None, "", "0", "false"])
def test_at_a_desk_the_test_is_skipped(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    if text is not None:
        monkeypatch.setenv("CI", text)
    with pytest.raises(pytest.skip.Exception, match="nginx is not installed"):
        programs.program("nginx")


def test_in_continuous_integration_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="nginx is not installed"):
        programs.program("nginx")
