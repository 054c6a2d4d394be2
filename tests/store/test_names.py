"""What a store has, every backend has: the methods of the protocol, and the named queries that the engine asks for."""

from __future__ import annotations

import ast
import inspect
import re
from importlib.resources import files
from pathlib import Path

import counterfoil
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Store
from counterfoil.store.queries import load_queries
from counterfoil.store.sqlite.store import SqliteStore
from tests.store.backends import BACKENDS, QUERY_PACKAGES

SOURCE = Path(counterfoil.__file__).parent
STORES: dict[str, type] = {"sqlite": SqliteStore, "postgresql": PostgresStore}


def methods(kind: type) -> dict[str, str]:
    """The public methods of a class, each with its parameters and what it answers."""
    functions = inspect.getmembers(kind, inspect.isfunction)
    return {name: str(inspect.signature(function)) for name, function in functions if not name.startswith("_")}


def test_every_backend_has_the_methods_of_a_store_and_no_others() -> None:
    wanted = methods(Store)
    assert {"open", "close", "execute", "read", "join", "renew", "leave", "notify", "receipt_secret"} <= set(wanted)
    assert set(STORES) == set(BACKENDS)
    for name, store in STORES.items():
        assert methods(store) == wanted, name


async def test_a_notification_without_a_listener_is_dropped(store: Store) -> None:
    await store.notify("no node listens")


def asked_for() -> set[str]:
    """Every name that the engine and its sweeps read or search by, found in their source."""
    names = set()
    for path in (SOURCE / "engine").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.Call(
                        func=ast.Attribute(attr="read" | "_read" | "_list" | "of") | ast.Name(id="_found"),
                        args=[name, *_],
                    )
                    | ast.Call(func=ast.Name(id="_due_by"), args=[_, name])
                ):
                    texts = {leaf.value for leaf in ast.walk(name) if isinstance(leaf, ast.Constant)}
                    names |= {text for text in texts if isinstance(text, str) and "_" in text}
    return names


def test_every_backend_tells_where_its_queries_are() -> None:
    assert set(QUERY_PACKAGES) == set(BACKENDS)


def test_every_backend_has_what_the_engine_asks_for(backend: str) -> None:
    wanted = asked_for()
    assert {"find_claimable", "find_overdue", "find_orphaned", "find_calls", "due_lanes", "list_open_flows"} <= wanted
    assert {"find_due_schedules", "next_schedule", "list_schedules"} <= wanted
    assert wanted <= set(load_queries(QUERY_PACKAGES[backend]))


def test_all_backends_have_the_same_names() -> None:
    names = {backend: set(load_queries(package)) for backend, package in QUERY_PACKAGES.items()}
    assert len({frozenset(own) for own in names.values()}) == 1, names


def test_a_query_is_one_statement_without_comments(backend: str) -> None:
    for name, text in load_queries(QUERY_PACKAGES[backend]).items():
        assert text, name
        assert ";" not in text, name
        assert "--" not in text, name


def test_every_backend_has_a_file_for_each_concept() -> None:
    found = {name: {file.name for file in files(name).joinpath("sql").iterdir()} for name in QUERY_PACKAGES.values()}
    assert len({frozenset(own) for own in found.values()}) == 1, found


def test_every_name_is_given_once(backend: str) -> None:
    texts = [file.read_text() for file in files(QUERY_PACKAGES[backend]).joinpath("sql").iterdir()]
    names = re.findall(r"^-- name: (\w+)$", "\n".join(texts), re.MULTILINE)
    assert len(names) == len(set(names)) == len(load_queries(QUERY_PACKAGES[backend]))
