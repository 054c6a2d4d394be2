"""One real engine per test: in process, on a free port, with its own database, seen by the doctor afterwards.

Tests that start engines run once on each store; ``--store`` chooses one, and the markers ``sqlite_only`` and
``postgresql_only`` say what a test is about. Of a test that is marked ``either_store``, each case runs on one of them.
The engine is imported by the fixtures that need it, so that tests of one layer load no other. What is drawn by lot is
drawn the same in every run (seeds.py).
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from coverage import Coverage

from counterfoil.domain.time import Clock
from counterfoil.testing import StepEndpoint
from tests.client_table import ClientTable, runs_everything, whole_key
from tests.clients import MISSING
from tests.databases import (
    STORES,
    UNAVAILABLE,
    NewCluster,
    NewDatabase,
    databases_of,
    finish_databases,
    skipped_without_postgres,
)
from tests.postgres import Cluster
from tests.seeds import load_hypothesis_profile
from tests.wire import Api

if TYPE_CHECKING:
    from tests.running import Connect, Node, StartNode

TRACED = {Path(__file__).parent / "unit", Path(__file__).parent / "integration"}
QUICK = {"port": 0, "sweep_interval_ms": 200, "shutdown_grace_ms": 2000, "log_level": "warning", "log_format": "json"}
QUICK_WORK = {"init_backoff_ms": 20, "max_backoff_ms": 1000, "ack_timeout_ms": 5000, "jitter": False}

os.environ.setdefault("PGSSLMODE", "disable")  # the servers of the tests have no certificate: clients need not ask
load_hypothesis_profile()  # before any test module is imported: what they set themselves is built on it

# ------------------------------------------------------------------------------------------------ which stores


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store", choices=[*STORES, "both"], default="both", help="run tests that need a store on this one"
    )
    parser.addoption("--clients-page", type=Path, help="write the table of the clients that were tried to this page")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[whole_key] = getattr(config, "workerinput", {}).get("whole", runs_everything(config))
    config.pluginmanager.register(ClientTable(config, config.getoption("--clients-page")), "client-table")


def stores_of(definition: pytest.Item | pytest.Function, config: pytest.Config) -> list[str]:
    """The stores that a test is about."""
    named = [store for store in STORES if definition.get_closest_marker(f"{store}_only")]
    chosen = str(config.getoption("--store"))
    return named or [store for store in STORES if chosen in (store, "both")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that are marked ``both_paths`` run on the plain path as well, on one store: the path knows of none."""
    if "store_name" not in metafunc.fixturenames:
        return
    stores = stores_of(metafunc.definition, metafunc.config)
    if metafunc.definition.get_closest_marker("both_paths") is None:
        metafunc.parametrize("store_name", stores, indirect=True)
        return
    ways = [(store, True) for store in stores] + [(stores[0], False)]
    names = [store if fast else f"{store}, plain" for store, fast in ways]
    metafunc.parametrize(("store_name", "fast_path"), ways, ids=names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal out what may run on either store, and leave out what is about the store that was not chosen."""
    items[:] = in_turn(items, config)
    chosen = config.getoption("--store")
    kept = [item for item in items if chosen == "both" or chosen in stores_of(item, config)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def in_turn(items: list[pytest.Item], config: pytest.Config) -> Iterator[pytest.Item]:
    """The tests, with each case of those marked ``either_store`` on one store only: the first, the second, and so on.

    So every such test runs on both stores, and its cases cost half. Those on the plain path run as well.
    """
    turns: dict[tuple[str, frozenset[tuple[str, int]]], int] = {}
    counts: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("either_store") is None or not isinstance(item, pytest.Function):
            yield item
            continue
        test = item.nodeid.partition("[")[0]
        values = item.callspec.params.items()
        case = test, frozenset((name, id(value)) for name, value in values if name not in ("store_name", "fast_path"))
        if case not in turns:
            turns[case] = counts[test]
            counts[test] += 1
        stores = stores_of(item, config)
        store, fast_path = (item.callspec.params.get(name) for name in ("store_name", "fast_path"))
        if fast_path is False or store == stores[turns[case] % len(stores)]:
            yield item


# ------------------------------------------------------------------------------------------------ garbage


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of garbage collections: no test frees it, and looking through it takes a third of all.

    Nothing is collected meanwhile either. What tests themselves leave is found as ever.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


# ------------------------------------------------------------------------------------------------ coverage


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Trace a test for the coverage report only where that can add to it, since tracing takes half as long again.

    Unit and integration tests call all there is on purpose. Others draw what they do (property tests), run engines in
    other processes (acceptance tests), or are about the store. What a test covers on PostgreSQL or on the plain path,
    it covers elsewhere as well.
    """
    coverage = Coverage.current()
    if coverage is None or (TRACED.intersection(item.path.parents) and not runs_again(item)):
        return (yield)
    coverage.stop()
    try:
        return (yield)
    finally:
        coverage.start()


def runs_again(item: pytest.Item) -> bool:
    """Whether the engine and the domain do in this test what they do in its runs on SQLite, on the fast path."""
    chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    on_both = item.get_closest_marker("either_store") is None
    stores = chosen.get("store_name"), chosen.get("shared_store")
    return (on_both and "postgresql" in stores) or chosen.get("fast_path") is False


# ------------------------------------------------------------------------------------------------ one cluster a run


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker (of pytest-xdist) where the cluster of the run is, or will be, and whether all tests are run."""
    node.workerinput["postgres_home"] = str(databases_of(node.config).home)
    node.workerinput["whole"] = node.config.stash[whole_key]


def pytest_unconfigure(config: pytest.Config) -> None:
    finish_databases(config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason, title, needed in (
        (UNAVAILABLE, "PostgreSQL WAS NOT TESTED", "tests need it and did not run"),
        (MISSING, "CLIENTS OF OTHER SYSTEMS WERE NOT TESTED", "modules need them and did not run"),
    ):
        missed = [
            str(report.longrepr)
            for outcome in ("skipped", "failed", "error")
            for report in terminalreporter.getreports(outcome)
            if reason in str(report.longrepr)
        ]
        if missed:
            terminalreporter.section(title, sep="!", red=True, bold=True)
            terminalreporter.line(f"{len(missed)} {needed}.", red=True, bold=True)
            terminalreporter.line(missed[0], red=True)


# ------------------------------------------------------------------------------------------------ stores


@pytest.fixture
def store_name(request: pytest.FixtureRequest) -> str:
    """The store that the test runs on: a test that needs this runs once on each."""
    return str(request.param)


@pytest.fixture
def new_database(pytestconfig: pytest.Config) -> Iterator[NewDatabase]:
    """Makes PostgreSQL databases that hold the schema, or nothing at all; they are dropped after the test."""
    names: list[str] = []

    def make(*, empty: bool = False) -> str:
        databases = databases_of(pytestconfig)
        with skipped_without_postgres():
            names.append(databases.create(empty=empty))
        return databases.dsn(names[-1])

    yield make
    for name in names:
        databases_of(pytestconfig).drop(name)


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    """Starts PostgreSQL servers that a test may stop, restart and break; they are gone after it."""
    clusters: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        with skipped_without_postgres():
            clusters.append(Cluster(**options))
            clusters[-1].start()
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.remove()


@pytest.fixture
def store_settings(store_name: str, new_database: NewDatabase) -> dict[str, str]:
    """The settings that put an engine on the store of the test: all engines of a test share one database."""
    return {"store": new_database()} if store_name == "postgresql" else {}


# ------------------------------------------------------------------------------------------------ engines


@pytest.fixture
def fast_path(request: pytest.FixtureRequest) -> bool:
    """Whether the engines of the test serve HTTP by their own protocol, or by aiohttp's public API alone."""
    return bool(getattr(request, "param", True))


@pytest.fixture
async def start_node(tmp_path: Path, store_settings: dict[str, str], fast_path: bool) -> AsyncIterator[StartNode]:
    """Starts engines with quick defaults; all are stopped at the end and every database is checked by the doctor."""
    from counterfoil.app import Counterfoil, run_doctor
    from counterfoil.engine import system_clock
    from counterfoil.settings import Settings
    from tests.running import Node

    nodes: list[Node] = []

    async def start(clock: Clock | None = None, *, new_receipt_secret: bool = False, **overrides: Any) -> Node:
        work = {**QUICK_WORK, **overrides.pop("work", {})}
        chosen = {"data": str(tmp_path / "data"), "fast_path": fast_path, **QUICK, **store_settings, "work": work}
        settings = Settings(**{**chosen, **overrides})
        stack = contextlib.AsyncExitStack()
        made = Counterfoil(settings, clock or system_clock, new_receipt_secret=new_receipt_secret)
        engine = await stack.enter_async_context(made)
        node = Node(settings, engine, stack)
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        await node.stop()
    for settings in {node.settings.store_url: node.settings for node in nodes}.values():
        findings = run_doctor(settings)
        assert not findings, findings


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30)) as session:
        yield session


@pytest.fixture
async def api(node: Node, session: aiohttp.ClientSession) -> Api:
    return Api(session, node.url)


@pytest.fixture
async def connect(session: aiohttp.ClientSession) -> Connect:
    """Makes a client of an engine that the test started itself."""
    return lambda node: Api(session, node.url)


@pytest.fixture
async def endpoint() -> AsyncIterator[StepEndpoint]:
    async with StepEndpoint() as served:
        yield served
