"""The table of clients is made by the tests that ran, and the committed page lists what the tests declare."""

from __future__ import annotations

import pytest

from tests.client_table import PAGE, ROOT, declared_key, shown_by, table, version_of, whole_key, with_table

pytest_plugins = ["pytester"]

EXAMPLE = """
import pytest

@pytest.mark.client("curl", "reads")
def test_reads():
    pass

@pytest.mark.parametrize("name", [
    pytest.param("a", marks=pytest.mark.client("curl", "writes")),
    pytest.param("b", marks=pytest.mark.client("bash", "writes")),
])
@pytest.mark.parametrize("time", [1, 2])
def test_writes(name, time):
    assert name == "b" or time == 1

@pytest.mark.client("no-such-package", "nothing")
def test_left_out():
    pytest.skip("not here")
"""


def test_the_page_lists_what_the_tests_declare(pytestconfig: pytest.Config) -> None:
    """Where only some tests are collected: at least those."""
    shown = set(shown_by(PAGE.read_text("utf-8")))
    declared = pytestconfig.stash[declared_key]
    assert declared - shown == set(), "make clients"
    if pytestconfig.stash[whole_key]:
        assert shown - declared == set(), "make clients"


def test_the_page_shows_no_failure() -> None:
    assert set(shown_by(PAGE.read_text("utf-8")).values()) <= {"passed", "skipped"}


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_table_is_made_by_the_tests_that_ran(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    """In one process and in several; the worst result of all tests of a line is its result."""
    pytester.makeini("[pytest]\nmarkers = client(name, what): a client")
    pytester.makeconftest(
        "from pathlib import Path\nfrom tests.client_table import ClientTable\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(ClientTable(config, Path('page.md')))\n"
    )
    pytester.makepyfile(EXAMPLE)
    page = pytester.path / "page.md"
    page.write_text("before\n<!-- made by: make clients -->\nold\n<!-- end -->\nafter\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.runpytest_subprocess("-n", processes)
    text = page.read_text("utf-8")
    assert (text.startswith("before\n"), text.endswith("after\n")) == (True, True)
    assert shown_by(text) == {
        ("bash", "writes"): "passed",
        ("curl", "reads"): "passed",
        ("curl", "writes"): "failed",
        ("no-such-package", "nothing"): "skipped",
    }


def test_versions_are_those_that_are_installed() -> None:
    import aiohttp

    assert version_of("aiohttp") == aiohttp.__version__
    assert version_of("curl") not in ("not installed", "unknown")
    assert version_of("no-such-package") == "not installed"


def test_a_page_keeps_what_is_around_its_table() -> None:
    page = "a\n<!-- made by: make clients -->\n<!-- end -->\nb\n"
    made = with_table(page, {("aiohttp", "x"): "passed"})
    assert with_table(made, {("aiohttp", "x"): "passed"}) == made
    assert table({("aiohttp", "x"): "passed"}) in made
