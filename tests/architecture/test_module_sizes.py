"""Modules of one responsibility, functions of about 30 lines, and names that say something."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGE, ROOT, modules, shown

LONGEST_MODULE = 500
LONGEST_FUNCTION = 70  # a table of routes or of SQL takes that much; logic should not
REASONS: dict[str, str] = {
    "src/counterfoil/domain/errors.py": "one tree: a class for each error code, and its details",
}
"""Modules that may be longer, each with the reason why there is no seam in it."""

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
EVERYTHING = modules(PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
MEANINGLESS = re.compile(r"(^|_)(utils?|helpers?|managers?|misc|common)(_|$)")


@pytest.mark.parametrize("path", EVERYTHING, ids=shown)
def test_a_module_is_short_or_has_a_reason(path: Path) -> None:
    length = len(path.read_text(encoding="utf-8").splitlines())
    assert length <= LONGEST_MODULE or shown(path) in REASONS, f"{length} lines: is there a seam?"


def test_every_reason_is_still_needed() -> None:
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in EVERYTHING}
    assert not [name for name in REASONS if lengths.get(name, 0) <= LONGEST_MODULE]


def own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without those of the functions inside it: they are counted by themselves."""
    inner = [node for child in ast.iter_child_nodes(function) for node in ast.walk(child) if isinstance(node, FUNCTION)]
    lines = {line for node in inner for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(set(range(function.lineno, (function.end_lineno or function.lineno) + 1)) - lines)


@pytest.mark.parametrize("path", modules(PACKAGE), ids=shown)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lengths = {node.name: own_lines(node) for node in ast.walk(tree) if isinstance(node, FUNCTION)}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}


def test_no_module_is_named_after_nothing() -> None:
    parts = {part for path in EVERYTHING for part in Path(shown(path)).with_suffix("").parts}
    assert not [part for part in parts if MEANINGLESS.search(part)]
