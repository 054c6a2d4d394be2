"""Behind pgbouncer in transaction mode, where each transaction may get another connection of the server."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import asyncpg
import pytest

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.engine import system_clock
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.testing import Received, StepEndpoint
from tests.acceptance.chaos import load
from tests.acceptance.conftest import NewEngine
from tests.acceptance.ledger import compare
from tests.databases import NewDatabase
from tests.eventually import eventually
from tests.postgres import UNPRIVILEGED, free_port
from tests.programs import program
from tests.proxy import CommitFault, Proxy
from tests.running import Connect, StartNode
from tests.sse import event_stream

pytestmark = pytest.mark.postgresql_only

SECONDS_TO_THE_END = 30.0
POOL = 3
"""Fewer than two nodes would take for themselves."""
CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {pool}
server_round_robin = 1
logfile = {log}
pidfile =
"""


@dataclass(frozen=True)
class Pooler:
    """A running pgbouncer: the database by way of it, and past it."""

    dsn: str
    direct: str
    log: Path

    @property
    def settings(self) -> dict[str, str]:
        """What an engine behind it has to be told."""
        return {"store": self.dsn, "store_listen": self.direct, "store_statement_cache": "0"}


@pytest.fixture
async def pooler(new_database: NewDatabase) -> AsyncIterator[Pooler]:
    pgbouncer = program("pgbouncer")
    direct = new_database()
    home = Path(tempfile.mkdtemp(prefix="counterfoil-pgbouncer-"))
    home.chmod(0o755)
    pooler = configure(home, direct)
    process = await asyncio.create_subprocess_exec(
        pgbouncer,
        *("-u", UNPRIVILEGED) if os.geteuid() == 0 else (),
        str(home / "pgbouncer.ini"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: pooler.log.exists() and "process up" in pooler.log.read_text(), what="pgbouncer")
        yield pooler
    finally:
        process.kill()
        await process.wait()
        shutil.rmtree(home)


def configure(home: Path, direct: str) -> Pooler:
    """Write what pgbouncer reads, and make what it writes."""
    parts, port, log = urlsplit(direct), free_port(), home / "log"
    log.touch()
    log.chmod(0o666)
    (home / "users").write_text(f'"{parts.username}" ""\n')
    (home / "pgbouncer.ini").write_text(
        CONFIGURATION.format(
            server=parts.port, user=parts.username, port=port, users=home / "users", pool=POOL, log=log
        )
    )
    return Pooler(f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}", direct, log)


async def test_two_nodes_under_load(
    pooler: Pooler,
    start_node: StartNode,
    new_engine: NewEngine,
    endpoint: StepEndpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Everything ends, and nothing that a client was told changes."""
    engine = new_engine(**pooler.settings, log_level="warning")
    node, _ = await asyncio.gather(start_node(**pooler.settings), engine.start())
    async with load(endpoint, seed=5) as chaos:
        chaos.urls = [node.url, engine.url]
        await chaos.register()
        chaos.open(customers=12)
        await eventually(lambda: len(chaos.ledger.accepted) > 80, within=30)
        await chaos.close(SECONDS_TO_THE_END)
        await chaos.idle(SECONDS_TO_THE_END)
        await compare(chaos.ledger, chaos.call, SECONDS_TO_THE_END)
    assert await engine.stop() == 0
    said = engine.output() + pooler.log.read_text() + capsys.readouterr().out
    assert "prepared statement" not in said
    assert "Traceback" not in said


async def test_nodes_hear_each_other_past_it(
    pooler: Pooler, start_node: StartNode, connect: Connect, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """Word goes out through the pooler and is heard on a connection past it."""
    nodes = [await start_node(**pooler.settings, lease_ms=60_000) for _ in range(2)]
    await nodes[
        0
    ].engine.engine.membership.renew()  # so that it knows of the second without waiting for its next renewal
    apis = [connect(node) for node in nodes]
    await apis[0].put_step("job", endpoint.url("/job"))
    flow_id = await apis[0].start("job")
    received = await endpoint.received("/job")
    async with event_stream(session, f"{apis[1].url}/api/v1/flows/{flow_id}/stream") as stream:
        await stream.until("work_acknowledged")
        await apis[0].succeed(received)
        await stream.until("flow_completed", within=5)


async def test_missing_settings_are_named(pooler: Pooler, capsys: pytest.CaptureFixture[str]) -> None:
    for cache, told in ((0, False), (1024, True)):
        store = PostgresStore(pooler.dsn, system_clock, WorkDefaults(), listen_dsn=pooler.direct, statement_cache=cache)
        await store.open()
        await store.close()
        assert ("store_behind_pooler" in capsys.readouterr().out) is told
    store = PostgresStore(pooler.direct, system_clock, WorkDefaults())
    await store.open()
    await store.close()
    assert "store_behind_pooler" not in capsys.readouterr().out


@pytest.fixture
def proxy(pooler: Pooler) -> Iterator[Proxy]:
    with Proxy(pooler.dsn) as proxy:
        yield proxy


@pytest.mark.parametrize("fault", ["lost", "forwarded", "answered"])
async def test_a_commit_in_doubt(
    pooler: Pooler, proxy: Proxy, start_node: StartNode, connect: Connect, endpoint: StepEndpoint, fault: CommitFault
) -> None:
    """The connection to the pooler is cut during a commit: what became of it is read back through the pooler."""
    api = connect(await start_node(**{**pooler.settings, "store": proxy.dsn}))
    await api.put_step("job", endpoint.url("/job"))
    left = [fault]
    proxy.on_commit = lambda: left.pop() if left else None
    flow_id = await api.start("job")
    await api.succeed(await endpoint.received("/job"))
    assert (await api.final(flow_id))["status"] == "completed"
    assert not left
    assert len(endpoint.requests("/job")) == 1


async def test_restarted(pooler: Pooler, start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """The server's connections are cut behind the pooler's back: the engine goes on."""
    api = connect(await start_node(**pooler.settings))
    await api.put_step("job", endpoint.url("/job"))
    for number in range(3):
        flow_id = await api.start("job")
        received = await endpoint.received("/job", number + 1)
        await api.until_acknowledged(flow_id)
        connection = await asyncpg.connect(pooler.direct)
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        await connection.close()

        async def completed(received: Received = received) -> bool:
            reply = await api.complete(received, {"success": True})
            assert reply.status in (200, 503) or reply.code == "ALREADY_SUCCEEDED", reply.content
            return reply.status != 503

        await eventually(completed)
        assert (await api.final(flow_id))["status"] == "completed"
