"""``/readyz`` is 200 exactly while the engine can write, and says what fails otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.by_hand import by_hand
from tests.databases import NewCluster
from tests.eventually import elapsed, eventually
from tests.wire import Api


def is_ready(api: Api) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await api.get("/readyz")).status == 200

    return look


def says(api: Api, failed: str) -> Callable[[], Awaitable[str]]:
    async def look() -> str:
        reply = await api.get("/readyz")
        if reply.status == 200:
            return ""
        details = reply.refused(503, "UNAVAILABLE")
        assert details["failed"] == failed, reply.content
        assert int(reply.headers["Retry-After"]) >= 0
        return str(reply.body["error"]["message"])

    return look


@contextlib.contextmanager
def no_room(engine: EngineProcess) -> Iterator[None]:
    """The write-ahead log may not grow any more; the process can still write what is shorter, such as its own log."""
    size = Path(f"{engine.place}-wal").stat().st_size
    assert size > 2**20
    before = resource.prlimit(engine.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (2**19, before[1]))
    try:
        yield
    finally:
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.sqlite_only
async def test_a_disk_without_room(engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    """Nothing but readiness asks for a write, and it tells."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    for _ in range(12):
        await api.start("job", init={"text": "x" * 100_000})
    for flow in (await api.get("/api/v1/flows")).ok()["flows"]:
        await api.until_acknowledged(flow["flow_id"])
    await eventually(is_ready(api))
    with no_room(engine):
        message = await eventually(says(api, "store"))
        assert "written" in message
        assert (await api.get("/healthz")).status == 200
        assert "store_unavailable" in engine.output() or "disk" in message
    await eventually(is_ready(api))
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--data", str(engine.data))
    assert code == 0, output + errors


@pytest.mark.postgresql_only
async def test_a_server_that_only_reads(new_cluster: NewCluster, new_engine: NewEngine, client_of: ClientOf) -> None:
    """As after a failover, or when its own disk is full: every query is answered, and nothing can be written."""
    place = new_cluster().dsn("postgres")
    engine = new_engine(store=place)
    await engine.start()
    api = client_of(engine)
    await eventually(is_ready(api))
    by_hand(place, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    await eventually(says(api, "store"))
    writable = "SET default_transaction_read_only = off"
    by_hand(place, writable, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")
    await eventually(is_ready(api), within=20)


async def test_asking_often_does_not_write_often(engine: EngineProcess, client_of: ClientOf) -> None:
    """However many ask, and however often: one write a second, and the database does not grow."""
    api = client_of(engine)
    await eventually(is_ready(api))
    before, size = writes(engine), pages(engine)
    begun = time.monotonic()
    for _ in range(20):
        replies = await asyncio.gather(*(api.get("/readyz") for _ in range(20)))
        assert {reply.status for reply in replies} == {200}
    took = time.monotonic() - begun
    made = writes(engine) - before  # on PostgreSQL with the renewals of the lease, two a second
    assert made <= 3 * (took + 2)
    await elapsed(1.1)
    assert (await api.get("/readyz")).status == 200
    assert writes(engine) > before
    assert pages(engine) == size


def writes(engine: EngineProcess) -> int:
    """How often the probe has written so far."""
    place = engine.place
    if isinstance(place, Path):
        return int(by_hand(place, "PRAGMA user_version")[0][0])
    query = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'nodes'"
    return int(by_hand(place, "SELECT pg_stat_clear_snapshot()", query)[0][0])


def pages(engine: EngineProcess) -> int:
    place = engine.place
    if isinstance(place, Path):
        return int(by_hand(place, "PRAGMA page_count")[0][0])
    return int(by_hand(place, "SELECT pg_relation_size('nodes')")[0][0])
