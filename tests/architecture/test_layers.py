"""What import-linter cannot say of the layers: lists of what is allowed, where it knows lists of what is forbidden."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGE, ROOT, imports, modules, shown

DOMAIN_LIBRARIES = {"cel_expr_python", "cronsim", "jsonschema_rs", "pydantic", "pydantic_core", "rfc8785"}
IMPURE = {  # standard, but they touch the world: files, network, processes, threads, the clock, the log
    "asyncio",
    "concurrent",
    "http",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
}


@pytest.mark.parametrize("path", modules(PACKAGE / "domain"), ids=shown)
def test_the_domain_imports_itself_the_pure_standard_library_and_its_few_libraries(path: Path) -> None:
    allowed = (set(sys.stdlib_module_names) - IMPURE) | DOMAIN_LIBRARIES
    foreign = [
        name
        for name in imports(path)
        if name.partition(".")[0] not in allowed and not name.startswith("counterfoil.domain.")
    ]
    assert not foreign


@pytest.mark.parametrize("path", modules(PACKAGE / "domain"), ids=shown)
def test_the_domain_has_neither_clock_nor_coroutines(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    assert not [node.name for node in nodes if isinstance(node, ast.AsyncFunctionDef)]
    clocks = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in {"now", "today", "utcnow"}]
    assert not [ast.unparse(node) for node in clocks if ast.unparse(node.value) in {"datetime", "date"}]


@pytest.mark.parametrize("path", modules(PACKAGE / "client"), ids=shown)
def test_of_the_package_the_client_imports_the_domain_and_the_wire_shapes_only(path: Path) -> None:
    own = ("counterfoil.client.", "counterfoil.domain.", "counterfoil.wire.")
    names = [name for name in imports(path) if name.partition(".")[0] == "counterfoil"]
    assert not [name for name in names if not name.startswith(own) and name != "counterfoil.version.__version__"]


def test_importing_the_package_itself_costs_nothing() -> None:
    assert list(imports(PACKAGE / "__init__.py")) == ["counterfoil.version.__version__"]


def test_the_layer_contract_is_exhaustive() -> None:
    """A new package must be given its place: without this line import-linter would not look at it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (layers,) = [contract for contract in contracts if contract["type"] == "layers"]
    assert layers["exhaustive"] is True
    assert set(layers["exhaustive_ignores"]) == {"__main__", "client", "contracts", "testing"}
