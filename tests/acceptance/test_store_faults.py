"""A locked, full or corrupt file: 503 while it lasts, a clear line in the log, recovery when the cause is gone."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterfoil.testing import Received, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.acceptance.scenario import dispatched
from tests.eventually import eventually
from tests.wire import Api, Reply

pytestmark = pytest.mark.sqlite_only  # what befalls a PostgreSQL is in test_outages.py and test_refusals.py

SUCCESS = {"success": True, "outputs": {"a": 1}}


def unavailable(reply: Reply) -> None:
    reply.refused(503, "UNAVAILABLE")
    assert int(reply.headers["Retry-After"]) >= 0


async def accepted(api: Api, received: Received) -> bool:
    reply = await api.complete(received, SUCCESS)
    if reply.status == 503:
        return False
    reply.ok()
    return True


async def test_a_locked_database(engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    api = client_of(engine)
    flow_id, received = await dispatched(api, endpoint)
    connection = sqlite3.connect(next(engine.data.glob("*.db")), isolation_level=None, timeout=10)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        unavailable(await api.complete(received, SUCCESS))
        unavailable(await api.post(received.metadata["heartbeat_url"], {}))
        unavailable(await api.post("/api/v1/flows", {"goals": ["job"]}))
        assert (await api.flow(flow_id))["status"] == "active"
        assert "locked" in engine.output()
    finally:
        connection.execute("ROLLBACK")
        connection.close()
    await eventually(lambda: accepted(api, received), within=15)
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    await eventually(lambda: ready(api))
    await clean(engine)


async def ready(api: Api) -> bool:
    return (await api.get("/readyz")).status == 200


async def clean(engine: EngineProcess) -> None:
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--data", str(engine.data))
    assert code == 0, output + errors


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A disk of its own, if this machine lets the tests mount one."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and the right to mount: the limit on the file's size is tested in its place")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


async def fill_up(api: Api) -> Reply:
    """Start flows with much input until one is refused."""
    for _ in range(400):
        reply = await api.post("/api/v1/flows", {"goals": ["job"], "init": {"ballast": "x" * 100_000}})
        if reply.status != 201:
            return reply
    raise AssertionError("the disk never filled up")


@pytest.mark.timeout(120)
async def test_a_full_disk(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, tmp_path: Path) -> None:
    """Nothing acknowledged is lost, what is refused leaves no trace, and space brings everything back."""
    with small_disk(tmp_path / "disk", "12m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 2**22)
        engine = new_engine(data=disk / "data")
        engine.log = tmp_path / "engine.log"
        await engine.start()
        api = client_of(engine)
        flow_id, received = await dispatched(api, endpoint)
        early, taken = await dispatched(api, endpoint)
        await api.succeed(taken, early=True)
        unavailable(await fill_up(api))
        for _ in range(3):
            reply = await api.complete(received, SUCCESS)
            if reply.status == 200:
                break
            unavailable(reply)
        assert (await api.get("/healthz")).status == 200
        assert (await api.final(early))["outputs"] == {"early": True}
        assert "full" in engine.output()
        ballast.unlink()

        async def recorded() -> bool:
            reply = await api.complete(received, SUCCESS)
            return reply.status == 200 or (reply.status == 400 and reply.code == "ALREADY_SUCCEEDED")

        await eventually(recorded, within=15)
        assert (await api.final(flow_id))["outputs"] == {"a": 1}
        assert (await api.final(early))["outputs"] == {"early": True}
        await clean(engine)


@pytest.mark.timeout(120)
async def test_a_file_that_may_not_grow(new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    """The same with a limit on the size of files, which the kernel reports as another error."""
    engine = new_engine()

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * 2**20, resource.RLIM_INFINITY))

    await engine.start(prepare=limit_file_size)
    api = client_of(engine)
    flow_id, received = await dispatched(api, endpoint)
    unavailable(await fill_up(api))
    assert engine.exit_code is None
    assert (await api.get("/healthz")).status == 200
    resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    async def recorded() -> bool:
        reply = await api.complete(received, SUCCESS)
        return reply.status == 200 or (reply.status == 400 and reply.code == "ALREADY_SUCCEEDED")

    await eventually(recorded, within=15)
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    await clean(engine)


async def test_a_corrupt_database_is_not_served(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """The start fails and says so; the file is left as it was."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    for _ in range(50):
        await api.start("job", init={"text": "x" * 2000})
    assert await engine.stop() == 0
    database = next(engine.data.glob("*.db"))
    content = bytearray(database.read_bytes())
    content[100 : len(content) // 2] = b"\xa5" * (len(content) // 2 - 100)
    database.write_bytes(content)
    await engine.spawn()
    assert await engine.wait() != 0
    output = engine.output()
    assert "Traceback" not in output, output[-2000:]
    assert str(database) in output or "malformed" in output or "not a database" in output
    assert database.read_bytes() == bytes(content)
    code, _, _ = await run_command("doctor", "--data", str(engine.data))
    assert code == 1


async def test_pages_of_open_work_that_turn_bad_are_found_by_the_doctor(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """A start need not read every page, but the doctor does."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    for _ in range(60):
        await api.start("job", init={"text": "x" * 4000})
    assert await engine.stop() == 0
    database = next(engine.data.glob("*.db"))
    content = bytearray(database.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 5 * 4096] = b"\x00" * (5 * 4096)
    database.write_bytes(content)
    code, output, errors = await run_command("doctor", "--data", str(engine.data))
    assert code == 1, output
    assert "Traceback" not in output + errors


async def test_a_database_that_turns_bad_while_it_is_served(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """The process goes on and answers 503 or the truth, never a 500 and never a stack trace."""
    api = client_of(engine)
    flow_id, received = await dispatched(api, endpoint)
    database = next(engine.data.glob("*.db"))
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * max(size - 4096, 8192))
    replies = [await api.complete(received, SUCCESS) for _ in range(3)]
    replies.append(await api.get(f"/api/v1/flows/{flow_id}"))
    for reply in replies:
        assert reply.status != 500, reply.content
        assert b"Traceback" not in reply.content
    assert engine.exit_code is None
    assert (await api.get("/healthz")).status == 200
