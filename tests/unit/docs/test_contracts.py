"""The reference of tool contracts names what the library has, and nothing else."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import counterfoil.contracts
from counterfoil.contracts import ContractPhase, ContractRuntime, ToolCall, tool_contract
from counterfoil.contracts.declaration import CLASSES, DEFAULT_WINDOWS
from counterfoil.contracts.errors import OWN_CODES, ToolError
from counterfoil.contracts.testing import crash_between_phases, hammer, undeclared_errors, window
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "contracts.md").read_text("utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def first_columns(title: str) -> list[str]:
    """The names in code in the first column of the tables of a section."""
    return [
        name
        for row in re.findall(r"^\| ([^|]*`[^|]*) \|", section(title), re.MULTILINE)
        for name in re.findall(r"`(\w[\w-]*)", row)
    ]


def test_every_argument_of_the_decorator() -> None:
    documented = section("`@tool_contract`").partition("The contract is callable")[0]
    names = re.findall(r"^\| (`[^|]*) \|", documented, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(names)) == list(inspect.signature(tool_contract).parameters)


def test_every_field_of_a_call_and_of_the_runtime() -> None:
    assert first_columns("`ToolCall`") == [each.name for each in fields(ToolCall)]
    assert sorted(first_columns("Runtime")) == sorted(each.name for each in fields(ContractRuntime))
    phases = section("Runtime").rpartition("Phases: ")[2]
    assert re.findall(r"`(\w+)`", phases) == list(ContractPhase)


def test_every_class_with_its_window() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (?:`(\w+)`)?", section("Classes and windows"), re.MULTILINE)
    assert [name for name, _ in rows] == list(CLASSES)
    assert {name: shown for name, shown in rows if shown} == {
        name: length for name, length in DEFAULT_WINDOWS.items() if name != "read"
    }


def exceptions(root: type[ToolError]) -> dict[str, type[ToolError]]:
    found = {root.code: root} if root.code else {}
    for each in root.__subclasses__():
        found |= exceptions(each)
    return found


def test_every_code_with_its_exception() -> None:
    rows = re.findall(r"^\| (?:`([A-Z_]+)`)?[^|]* \| `(\w+)` \| (\w+)", section("Errors"), re.MULTILINE)
    documented = {code: (name, retriable) for code, name, retriable in rows if code}
    assert set(documented) == OWN_CODES
    for code, error in exceptions(ToolError).items():
        name, retriable = documented[code]
        assert name == error.__name__
        if retriable in ("yes", "no"):
            assert error.default_retriable == (retriable == "yes"), code


def test_every_option_of_the_checks() -> None:
    rows = dict(re.findall(r"^\| (`\w+\(.+?)\) \|(.+)$", section("Testing kit").replace(")` |", ") |"), re.MULTILINE))
    shown = {re.match(r"`(\w+)", row)[1]: row + rest for row, rest in rows.items()}  # type: ignore[index]
    for check in (hammer, crash_between_phases, window, undeclared_errors):
        for name in inspect.signature(check).parameters:
            assert re.search(rf"\b{name}\b", shown[check.__name__]), (check.__name__, name)


def test_the_names_in_the_page_exist() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)", PAGE)) - {"ContractCheckFailed", "AgentStep", "InvalidContract"}
    assert sorted(name for name in named if not hasattr(counterfoil.contracts, name)) == []
