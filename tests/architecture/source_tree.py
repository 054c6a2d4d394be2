"""The source as the architecture tests read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "counterfoil"


def modules(*directories: Path) -> list[Path]:
    """Every Python file below the directories, in a stable order."""
    return sorted(path for directory in directories for path in directory.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a module imports, anywhere in it; ``from a.b import c`` gives ``a.b.c``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{shown(path)}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
