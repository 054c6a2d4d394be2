"""The PostgreSQL that tests start: private, restartable, shared by the processes of a run, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import asyncpg
import pytest

from tests import postgres
from tests.databases import NewCluster, NewDatabase, databases_of, skipped_without_postgres
from tests.eventually import eventually
from tests.postgres import VARIABLE, Cluster, PortTaken, PostgresFailure, binaries_of_the_wheel, find_binaries

pytestmark = pytest.mark.postgresql_only

ROOT = Path(__file__).resolve().parents[2]
AS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    with skipped_without_postgres():
        cluster.start()
    yield cluster
    cluster.remove()


async def value(cluster: Cluster, query: str, database: str = "postgres") -> object:
    connection = await cluster.connect(database)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def test_it_listens_on_the_loopback_address_alone(cluster: Cluster) -> None:
    assert cluster.is_running()
    with socket.create_connection(("127.0.0.1", cluster.port), timeout=5):
        pass
    assert "listen_addresses = '127.0.0.1'" in (cluster.data / "postgresql.conf").read_text().splitlines()


def test_it_does_not_run_as_root(cluster: Cluster) -> None:
    """The server starts only if the directory of its data is its own."""
    assert cluster.data.stat().st_uid != 0
    assert (cluster.data.stat().st_uid == os.geteuid()) is not AS_ROOT


async def test_its_settings(new_cluster: NewCluster, cluster: Cluster) -> None:
    assert [await value(cluster, f"SHOW {name}") for name in ("fsync", "max_connections")] == ["off", "400"]
    careful = new_cluster(fsync=True, settings={"max_connections": "17"})
    assert [await value(careful, f"SHOW {name}") for name in ("fsync", "max_connections")] == ["on", "17"]
    assert not careful.data.is_symlink(), "what is to be durable is not kept in memory"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_keeps_port_and_data(new_cluster: NewCluster, mode: postgres.StopMode) -> None:
    cluster = new_cluster()
    connection = await cluster.connect()
    await connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    address = cluster.dsn("postgres")
    cluster.restart(mode)
    assert cluster.is_running()
    assert cluster.dsn("postgres") == address
    assert await value(cluster, "SELECT number FROM kept") == 7
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.InterfaceError)):
        await connection.execute("SELECT 1")
    await connection.close()


async def test_it_is_gone_after_stop_and_leaves_nothing_after_removal(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.stop()
    assert not cluster.is_running()
    with pytest.raises(ConnectionRefusedError):
        await cluster.connect()
    cluster.stop()
    cluster.start()
    directories = [cluster.home, cluster.data.resolve()]
    cluster.remove()
    assert not [directory for directory in directories if directory.exists()]
    assert not cluster.is_running()


async def test_a_clone_holds_what_its_template_holds(cluster: Cluster) -> None:
    await cluster.create_database("template")
    connection = await cluster.connect("template")
    await connection.execute("CREATE TABLE made AS SELECT 3 AS number")
    await connection.close()
    began = time.monotonic()
    await cluster.create_database("clone", template="template")
    assert time.monotonic() - began < 5
    assert await value(cluster, "SELECT number FROM made", "clone") == 3
    await cluster.drop_database("clone")
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await cluster.connect("clone")
    await cluster.drop_database("clone")


async def test_a_database_is_dropped_though_it_is_in_use(cluster: Cluster) -> None:
    await cluster.create_database("used")
    connection = await cluster.connect("used")
    await cluster.drop_database("used")
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.InterfaceError)):
        await connection.execute("SELECT 1")
    await connection.close()


def test_a_port_that_was_taken_meanwhile_is_given_up(new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    free_port = postgres.free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = int(other.getsockname()[1])
        ports = [taken, taken]
        monkeypatch.setattr(postgres, "free_port", lambda: ports.pop() if ports else free_port())
        cluster = new_cluster()
    assert not ports
    assert cluster.port != taken
    assert cluster.is_running()


def test_a_port_that_was_taken_during_a_restart_is_said(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    cluster.stop()
    with socket.create_server(("127.0.0.1", cluster.port)), pytest.raises(PortTaken, match=str(cluster.port)):
        cluster.start()
    cluster.start()
    assert cluster.is_running()


@pytest.mark.parametrize("binaries", binaries_of_the_wheel(), ids=lambda path: path.parent.name)
async def test_the_binaries_of_the_wheel_will_do(new_cluster: NewCluster, binaries: Path) -> None:
    cluster = new_cluster(binaries=binaries)
    await cluster.create_database("clone", template="template1")
    cluster.restart()
    assert "PostgreSQL" in str(await value(cluster, "SELECT version()", "clone"))


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server as another user")
@pytest.mark.skipif(not binaries_of_the_wheel(), reason="only the binaries of the wheel can be moved")
def test_binaries_in_a_private_directory_are_copied(new_cluster: NewCluster, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private" / "install").symlink_to(binaries_of_the_wheel()[0].parent)
    cluster = new_cluster(binaries=tmp_path / "private" / "install" / "bin")
    assert (cluster.home / "bin").resolve().is_relative_to(cluster.home.resolve())
    assert cluster.is_running()


def test_binaries_that_are_named_but_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(PostgresFailure, match=str(tmp_path)):
        find_binaries()
    cluster = Cluster()
    with pytest.raises(PostgresFailure, match=VARIABLE):
        cluster.start()
    cluster.remove()
    assert not cluster.home.exists()


async def test_it_does_not_outlive_an_owner_that_was_killed(cluster: Cluster) -> None:
    script = (
        "import sys; from tests.postgres import Cluster\n"
        "cluster = Cluster(); cluster.start()\n"
        "print(cluster.home, cluster.data.resolve(), cluster.port, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        home, data, port = owner.stdout.readline().split()
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5):
            owner.send_signal(signal.SIGKILL)
        owner.wait()
    await eventually(lambda: not Path(home).exists() and not Path(data).exists(), within=20, what="removal")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


# ------------------------------------------------------------------------------------------------ of a run


async def test_each_database_of_a_test_is_its_own(
    new_database: NewDatabase, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    """Runs in other runs, too: see below."""
    first, second = await asyncpg.connect(new_database()), await asyncpg.connect(new_database())
    empty = await asyncpg.connect(new_database(empty=True))
    await first.execute("CREATE TABLE mine ()")
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    counts = [await connection.fetchval(tables) for connection in (first, second, empty)]
    assert counts[0] == counts[1] + 1 > 2
    assert counts[2] == 0
    for connection in (first, second, empty):
        await connection.close()
    record_property("home", str(databases_of(pytestconfig).home))


async def test_a_database_that_was_dropped_is_gone(new_database: NewDatabase, pytestconfig: pytest.Config) -> None:
    new_database(empty=True)  # which skips this test where there can be none
    databases = databases_of(pytestconfig)
    name = databases.create(empty=True)
    await (await asyncpg.connect(databases.dsn(name))).close()
    databases.drop(name).result()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(databases.dsn(name))


def run_of_its_own(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """One test of this file in a test run of its own."""
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "COV_")) and name != "CI"
    }
    test = f"{Path(__file__).relative_to(ROOT)}::{test_each_database_of_a_test_is_its_own.__name__}"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *flags, test],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_all_processes_of_a_run_share_a_cluster_that_ends_with_it(cluster: Cluster, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    done = run_of_its_own("-n", "2", "--dist", "each", f"--junitxml={report}")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    homes = [found.attrib["value"] for found in ET.parse(report).iter("property") if found.attrib["name"] == "home"]
    assert len(homes) == 2
    assert len(set(homes)) == 1
    assert not Path(homes[0]).exists()


def test_a_run_without_postgresql_says_so_loudly(tmp_path: Path) -> None:
    done = run_of_its_own("-n", "1", **{VARIABLE: str(tmp_path)})
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "! PostgreSQL WAS NOT TESTED !" in done.stdout
    assert str(tmp_path) in done.stdout


def test_continuous_integration_does_not_go_without_postgresql(tmp_path: Path) -> None:
    done = run_of_its_own(**{VARIABLE: str(tmp_path)}, CI="true")
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout
    assert "! PostgreSQL WAS NOT TESTED !" in done.stdout
