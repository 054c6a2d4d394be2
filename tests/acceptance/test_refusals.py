"""A PostgreSQL that is not there, or is and will not have us: one clear line at the start, 503 later, no password."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import asyncpg
import orjson
import pytest

from counterfoil.app import Counterfoil, StartFailure
from counterfoil.settings import Settings
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import run_command
from tests.databases import NewCluster
from tests.eventually import eventually
from tests.postgres import Cluster, free_port
from tests.wire import Api

pytestmark = pytest.mark.postgresql_only

PASSWORD = "open-sesame"


CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'"


class Guarded:
    """A server on which the role ``app`` needs a password, and a database of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def dsn(self, password: str = PASSWORD, database: str = "app") -> str:
        return f"postgresql://app:{password}@127.0.0.1:{self._cluster.port}/{database}"

    async def do(self, *statements: str) -> None:
        connection = await self._cluster.connect()
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    async def shut_out(self, refuse: str) -> bool:
        """Let no new connection of the role in; False: an old one was back too quickly."""
        try:
            await self.do(CUT, refuse)
        except asyncpg.ObjectInUseError:
            return False
        return True


@pytest.fixture
async def guarded(new_cluster: NewCluster) -> Guarded:
    cluster = new_cluster()
    rules = cluster.data / "pg_hba.conf"
    rules.write_text(f"host all app 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    guarded = Guarded(cluster)
    await guarded.do(
        f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'", "CREATE DATABASE app OWNER app", "SELECT pg_reload_conf()"
    )
    return guarded


async def failure(dsn: str, tmp_path: Path) -> str:
    """Why an engine cannot start."""
    with pytest.raises(StartFailure) as caught:
        async with Counterfoil(Settings(data=tmp_path, port=0, store=dsn)):
            pass
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


async def test_why_it_cannot_start(guarded: Guarded, tmp_path: Path) -> None:
    text = await failure(guarded.dsn(password="wrong-sesame"), tmp_path)
    assert "password authentication failed" in text
    assert "wrong-sesame" not in text
    text = await failure(guarded.dsn(database="nowhere"), tmp_path)
    assert '"nowhere" does not exist' in text
    assert PASSWORD not in text
    await guarded.do("ALTER ROLE app CONNECTION LIMIT 2")
    text = await failure(guarded.dsn(), tmp_path)
    assert "too many connections" in text
    await guarded.do("ALTER ROLE app CONNECTION LIMIT -1", "ALTER DATABASE app SET default_transaction_read_only = on")
    assert "read-only" in await failure(guarded.dsn(), tmp_path)


@pytest.mark.parametrize("password", ["12/qqq", "12?qqq", "12#qqq", "zqq@qqq", "zqq/qqq", "%2/qqq"])
async def test_a_password_that_is_not_written_as_a_url_wants_it(password: str, tmp_path: Path) -> None:
    """What is wrong is said without repeating any of it, whatever is taken for host, port and path."""
    try:
        settings = Settings(data=tmp_path, port=0, store=f"postgresql://localhost:{password}@127.0.0.1:1/app")
    except ValueError as error:
        text = str(error)
    else:
        text = await failure(settings.store, tmp_path)
    assert "qq" not in text


async def test_no_server_is_there(tmp_path: Path) -> None:
    """The command says so in one line, soon, and ends with 1."""
    port = free_port()
    store = f"postgresql://app:{PASSWORD}@127.0.0.1:{port}/app"
    arguments = ("--port", "0", "--data", str(tmp_path / "data"), "--store", store)
    code, output, errors = await run_command("serve", *arguments, within=15)
    assert code == 1
    assert output == ""
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("error: ")
    assert f"127.0.0.1:{port}" in errors
    assert PASSWORD not in errors


async def test_refused_while_it_runs(guarded: Guarded, new_engine: NewEngine, client_of: ClientOf) -> None:
    """503 as long as it lasts, whatever the reason; when it is gone, so is the refusal, and no operator had to help."""
    engine = new_engine(store=guarded.dsn())
    await engine.start()
    api = client_of(engine)
    assert (await api.get("/readyz")).status == 200
    for refuse, relent in (
        ("ALTER ROLE app PASSWORD 'another'", f"ALTER ROLE app PASSWORD '{PASSWORD}'"),
        ("ALTER ROLE app CONNECTION LIMIT 0", "ALTER ROLE app CONNECTION LIMIT -1"),
        ("ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN"),
        ("ALTER DATABASE app RENAME TO gone", "ALTER DATABASE gone RENAME TO app"),
    ):
        await eventually(partial(guarded.shut_out, refuse))
        await eventually(lambda: is_refused_everywhere(api, guarded))
        assert (await api.get("/healthz")).status == 200
        await guarded.do(relent)
        await eventually(lambda: is_ready(api))
        (await api.post("/api/v1/flows", {"goals": ["job"]})).refused(404, "UNKNOWN_STEP")
    await guarded.do("DROP DATABASE app WITH (FORCE)")
    await eventually(lambda: is_refused(api))
    assert await engine.stop() == 0
    assert PASSWORD not in engine.output()
    for line in engine.output().splitlines():
        assert line.startswith("listening on") or "exception" not in orjson.loads(line), line


async def is_refused_everywhere(api: Api, guarded: Guarded) -> bool:
    """A connection that was being opened when the others were cut off is cut off by the next call."""
    await guarded.do(CUT)
    reply = await api.post("/api/v1/flows", {"goals": ["job"]})
    return reply.status == 503 and reply.code == "UNAVAILABLE" and await is_refused(api)


async def is_refused(api: Api) -> bool:
    reply = await api.get("/readyz")
    return reply.status == 503 and reply.code == "UNAVAILABLE" and int(reply.headers["Retry-After"]) >= 1


async def is_ready(api: Api) -> bool:
    return (await api.get("/readyz")).status == 200
