"""The code that relies on aiohttp's insides stands in one package, and nothing of it runs when it is turned off."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT

SOURCE = ROOT / "src" / "counterfoil"
FENCE = SOURCE / "server" / "fast_path"
PUBLIC = {"aiohttp", "aiohttp.web", "aiohttp.abc", "aiohttp.typedefs", "aiohttp.http_exceptions"}
"""What may be imported everywhere: what aiohttp documents, and the errors that reading a body raises."""
PACKAGE = "counterfoil.server.fast_path"


def imports_of(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of a module, with the statement; of ``from a import b`` it is ``a``, or ``a.b`` for a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "aiohttp":
                lower = [alias.name for alias in node.names if alias.name.islower() and alias.name.isidentifier()]
                yield from ((node, f"aiohttp.{name}") for name in lower)
            yield node, node.module


MODULES = sorted(path for path in SOURCE.rglob("*.py") if FENCE not in path.parents)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_outside_of_the_fast_path_relies_on_the_insides_of_aiohttp(path: Path) -> None:
    found = {name for _, name in imports_of(path) if name.split(".")[0] == "aiohttp"}
    assert found <= PUBLIC
    text = path.read_text(encoding="utf-8")
    if found:
        assert "SLF001" not in text, "a private attribute, perhaps of aiohttp"
        inherited = {ast.unparse(base) for base in bases_of(text)}
        assert not {base for base in inherited if base.startswith("web.")}, "a class of aiohttp's server"


def bases_of(text: str) -> Iterator[ast.expr]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield from node.bases


def test_the_composition_root_alone_imports_the_fast_path() -> None:
    importing = {path for path in MODULES for _, name in imports_of(path) if name.startswith(PACKAGE)}
    assert importing == {SOURCE / "app.py"}


def test_the_fast_path_is_not_loaded_where_it_is_turned_off(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from counterfoil.app import Counterfoil\n"
        "from counterfoil.settings import Settings\n"
        "async def main():\n"
        f"    async with Counterfoil(Settings(data={str(tmp_path)!r}, port=0, fast_path=False)):\n"
        f"        print([name for name in sys.modules if name.startswith({PACKAGE!r})])\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
