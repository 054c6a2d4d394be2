"""``make audit``: every licence is known and allowed, and no advisories is not the same as no vulnerabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.audit import advisories, licences

FLAW = {"id": "CVE-2019-11324", "fix_versions": ["1.24.2"]}
OLD = {"name": "urllib3", "version": "1.24.1", "vulns": [FLAW]}
GOOD = {"name": "attrs", "version": "26.1.0", "vulns": []}
UNKNOWN = {"name": "attrs", "version": "26.1.0", "skip_reason": "Dependency not found on PyPI"}

Canned = dict[str, list[dict[str, Any]]]


def test_everything_that_is_installed_has_a_licence_that_is_allowed() -> None:
    rows = licences.licences()
    assert [row.name for row in rows if not row.allowed] == []
    runtime = {row.name for row in rows if row.is_runtime}
    assert {"aiohttp", "asyncpg", "orjson", "yarl"} <= runtime, "also what dependencies need"
    assert not runtime & {"pytest", "ruff", "counterfoil"}


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("GPL-3.0-only OR (MIT AND BSD-3-Clause)", True),
        ("(MIT OR ISC) AND AGPL-3.0-only", False),
        ("MIT MIT", False),
        ("(MIT", False),
        ("", False),
        ("some text", False),
    ],
)
def test_expressions(expression: str, allowed: bool) -> None:
    assert licences.is_allowed(expression) is allowed


def test_a_licence_that_is_not_allowed_is_shown_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [licences.Licence("good", "1", "MIT", True), licences.Licence("bad", "2", "", False)]
    monkeypatch.setattr(licences, "licences", lambda: rows)
    assert licences.main() == 1
    assert "UNKNOWN  <-- NOT ALLOWED" in capsys.readouterr().out


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> Canned:
    """What each source says: of the version that is known to be vulnerable, and of ours (``ours``)."""
    said: Canned = {}

    def audited(source: str, requirements: Path) -> tuple[list[dict[str, Any]], str]:
        return said.get("ours" if requirements.name == "constraints.txt" else source, []), "cannot be reached"

    monkeypatch.setattr(advisories, "audited", audited)
    return said


OURS = Path("constraints.txt")


def test_without_advisories_it_says_so_and_does_not_fail(canned: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    canned |= {"pypi": [UNKNOWN], "ours": [UNKNOWN]}
    assert advisories.main(OURS) == 0
    told = capsys.readouterr().out
    assert "NOT checked" in told
    assert "the OSV database tells nothing of urllib3==1.24.1: cannot be reached" in told


def test_a_known_vulnerability_fails(canned: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    canned |= {"osv": [OLD], "ours": [GOOD, OLD, UNKNOWN]}
    assert advisories.main(OURS) == 1
    told = capsys.readouterr().out
    assert "urllib3 1.24.1: CVE-2019-11324, fixed in 1.24.2" in told
    assert "2 of 3 versions checked by the OSV database: 1 with known vulnerabilities" in told


def test_nothing_known_is_well(canned: Canned, capsys: pytest.CaptureFixture[str]) -> None:
    canned |= {"pypi": [OLD], "ours": [GOOD]}
    assert advisories.main(OURS) == 0
    assert "1 of 1 versions checked by the JSON API of the package index: 0 with" in capsys.readouterr().out
