"""The table of docs/reference/clients.md: which clients were tried, in which version, what with, and what came of it.

Tests carry ``@pytest.mark.client("<client>", "<what>")``, on themselves or on a parameter. Each report of such a test
brings the two along, so that the process that prints the summary sees those of all processes (pytest-xdist).
``make clients`` writes the page; ``tests/tools/test_client_table.py`` compares it with what the tests declare.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "clients.md"
BEGIN, END = "<!-- made by: make clients -->\n", "<!-- end -->\n"
PROPERTY = "client"
OUTCOMES = ("failed", "skipped", "passed")
"""The worst first: one failure is the result of all."""

Tried = tuple[str, str]
"""A client, and what it was tried with."""

declared_key: pytest.StashKey[set[Tried]] = pytest.StashKey()
whole_key: pytest.StashKey[bool] = pytest.StashKey()


# ------------------------------------------------------------------------------------------------ what tests declare


def tried_by(item: pytest.Item) -> list[Tried]:
    """The marks of a test, those of its parameters included."""
    return [(str(mark.args[0]), str(mark.args[1])) for mark in item.iter_markers("client")]


class ClientTable:
    """Registered as a plugin: notes what tests declare, gathers their results, prints the table and writes the page."""

    def __init__(self, config: pytest.Config, page: Path | None) -> None:
        self._config = config
        self._page = page
        self.results: dict[Tried, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Before any test is left out: a test that is not run is declared all the same."""
        config.stash[declared_key] = {tried for item in items for tried in tried_by(item)}
        for item in items:
            item.user_properties += [(PROPERTY, list(tried)) for tried in tried_by(item)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        for name, tried in report.user_properties:
            if name == PROPERTY and isinstance(tried, list):
                key = (str(tried[0]), str(tried[1]))
                self.results[key] = min(self.results.get(key, "passed"), report.outcome, key=OUTCOMES.index)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.results or hasattr(self._config, "workerinput"):
            return
        terminalreporter.section("clients")
        for line in summary(self.results):
            terminalreporter.line(line)
        if self._page is not None:
            self._page.write_text(with_table(self._page.read_text("utf-8"), self.results), "utf-8")
            terminalreporter.line(f"written to {self._page}")


def runs_everything(config: pytest.Config) -> bool:
    """Whether this run collects all tests, so that all that is declared is known."""
    return {Path(argument).resolve() for argument in config.args} <= {ROOT, ROOT / "tests"}


# ------------------------------------------------------------------------------------------------ versions


def _of_program(name: str, *arguments: str) -> Callable[[], str]:
    def version() -> str:
        found = shutil.which(name)
        if found is None:
            return "not installed"
        ended = subprocess.run([found, *arguments], capture_output=True, text=True, timeout=30, check=False)
        numbers = re.search(r"\d+(?:\.\d+)+", ended.stdout)
        return numbers[0] if numbers else "unknown"

    return version


VERSIONS: dict[str, Callable[[], str]] = {
    "urllib.request": lambda: f"Python {platform.python_version()}",
    "curl": _of_program("curl", "--version"),
    "node": _of_program("node", "--version"),
    "go": _of_program("go", "version"),
    "bash": _of_program("bash", "--version"),
    "typescript": _of_program("node", "--version"),
}
"""By the first word of the client's name, in lower case; all others are Python packages of that name."""


def version_of(client: str) -> str:
    name = client.split(maxsplit=1)[0]
    if name.lower() in VERSIONS:
        return VERSIONS[name.lower()]()
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


# ------------------------------------------------------------------------------------------------ the page


def table(results: dict[Tried, str]) -> str:
    versions = {client: version_of(client) for client in {client for client, _ in results}}
    ordered = sorted(results, key=lambda tried: (tried[0].lower(), tried[1]))
    lines = ["| client | version | exercised | result |", "| --- | --- | --- | --- |"]
    lines += [f"| {client} | {versions[client]} | {what} | {results[client, what]} |" for client, what in ordered]
    return "\n".join(lines)


def summary(results: dict[Tried, str]) -> list[str]:
    """A line for each client and result."""
    lines = []
    for client in sorted({client for client, _ in results}, key=str.lower):
        for outcome in OUTCOMES:
            whats = sorted(what for (name, what), found in results.items() if (name, found) == (client, outcome))
            lines += [f"{client} {version_of(client)}: {outcome}: {'; '.join(whats)}"] if whats else []
    return lines


def with_table(page: str, results: dict[Tried, str]) -> str:
    """The page with another table in place of the one that it has."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n\n{END}{after}"


def shown_by(page: str) -> dict[Tried, str]:
    """What the table of a page says: the result of each client and what it was tried with."""
    _, _, rest = page.partition(BEGIN)
    body, _, _ = rest.partition(END)
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line.startswith("| ")
    ]
    return {(client, what): result for client, _, what, result in cells[2:]}
