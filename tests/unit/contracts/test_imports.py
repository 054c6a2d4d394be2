"""What the library loads: no engine, no server, and no driver of a store that is not used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.acceptance.processes import environment
from tests.architecture.source_tree import PACKAGE, imports, modules

PROGRAM = """
import json, sys
{statement}
print(json.dumps(sorted(sys.modules)))
"""
LAYERS = ("app", "checking", "cli", "client", "engine", "observability", "server", "settings", "store", "transport")


def loaded(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    return set(json.loads(done.stdout))


def test_importing_contracts_loads_neither_drivers_nor_the_engine() -> None:
    found = loaded("import counterfoil.contracts")
    assert not found & {"aiohttp", "asyncpg", "aiosqlite", "structlog", "cel_expr_python", "jsonschema_rs"}
    assert not [name for name in found if name.startswith(tuple(f"counterfoil.{layer}" for layer in LAYERS))]
    assert "counterfoil.domain.steps" not in found


@pytest.mark.parametrize(("store", "driver"), [("PostgresDedupStore", "asyncpg"), ("EngineDedupStore", "aiohttp")])
def test_a_store_loads_its_driver_alone(store: str, driver: str) -> None:
    found = loaded(f"from counterfoil.contracts import {store}")
    assert found & {"aiohttp", "asyncpg"} == {driver}
    assert not [name for name in found if name.startswith(tuple(f"counterfoil.{layer}" for layer in LAYERS))]


def test_the_library_imports_itself_and_the_domain_only() -> None:
    own = ("counterfoil.contracts", "counterfoil.domain", "counterfoil.wire")
    foreign = {
        str(path): name
        for path in modules(PACKAGE / "contracts")
        for name in imports(path)
        if name.startswith("counterfoil.") and not name.startswith(own)
    }
    assert foreign == {}
