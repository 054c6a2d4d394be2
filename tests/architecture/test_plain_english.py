"""Texts name the program or person that acts: batch, node, step, caller, reviewer; never "whoever" or "nobody"."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGE, ROOT, modules, shown

VAGUE = re.compile(
    r"(?<![a-z0-9])(who(m|so)?ever|whom|(some|any|every)(body|one)|nobody|he|him|his|himself)(?![a-z0-9])",
    re.IGNORECASE,
)
FOLDERS = (PACKAGE, ROOT / "docs", ROOT / "config", ROOT / "examples", ROOT / "benchmarks")
SUFFIXES = {".py", ".sql", ".md", ".toml", ".yaml", ".json", ".conf", ".sh", ".html", ".js", ".css"}

ALLOWED: dict[tuple[str, str], str] = {
    ("Makefile", r"grep -hE"): "an option of grep",
    ("config/compose.yaml", r"USER nobody$"): "the name of a Unix user",
    ("src/counterfoil/domain/approvals/decisions.py", r"\bNOBODY\b"): "a constant: the caller when no API keys are set",
    ("src/counterfoil/server/auth.py", r"\bNOBODY\b"): "the same constant",
    ("src/counterfoil/store/sqlite/migrations/migration_1.sql", r"^-- "): "released migrations are never edited",
}
"""Lines that may have such a word: the file and a pattern of the line, each with the reason."""


def texts() -> list[Path]:
    """Every text file that users or developers read."""
    found = [path for folder in FOLDERS for path in folder.rglob("*") if path.suffix in SUFFIXES]
    return sorted([*found, *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"])


def vague_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The number and the text of each line with such a word."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if VAGUE.search(line):
            yield number, line


def reason(path: Path, line: str) -> tuple[str, str] | None:
    """The key of the reason that allows a line; None: there is none."""
    return next((key for key in ALLOWED if key[0] == shown(path) and re.search(key[1], line)), None)


def said(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of what a test says: its name and those of its classes, docstrings, comments, messages."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Expr | ast.Assert):
            message = node.value if isinstance(node, ast.Expr) else node.msg
            if isinstance(message, ast.Constant) and isinstance(message.value, str):
                yield node.lineno, message.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("path", modules(ROOT / "tests"), ids=shown)
def test_a_test_names_what_acts(path: Path) -> None:
    if path == Path(__file__):
        return
    found = [f"{shown(path)}:{line}: {text}" for line, text in said(path) if VAGUE.search(text)]
    assert found == [], "name the batch, node, step, caller or person instead"


@pytest.mark.parametrize("path", texts(), ids=shown)
def test_a_text_names_what_acts(path: Path) -> None:
    found = [f"{shown(path)}:{number}: {line.strip()}" for number, line in vague_lines(path) if not reason(path, line)]
    assert found == [], "name the batch, node, step, caller or person instead"


def test_every_exception_is_still_needed() -> None:
    needed = {reason(path, line) for path in texts() for _, line in vague_lines(path)}
    assert set(ALLOWED) - needed == set()


def test_the_words_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("The node renews its lease.\nWhoever finds it due locks the row; nobody else may.\n", "utf-8")
    assert [number for number, _ in vague_lines(page)] == [2]
