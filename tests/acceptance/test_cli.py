"""The commands against an engine in a process of its own, as an operator would use them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from counterfoil.client import Receipt, Reporter
from counterfoil.testing import StepEndpoint

ADMIN = "admin-secret-0123456789"


@dataclass
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Served:
    """An engine that ``counterfoil serve`` runs."""

    process: Process
    url: str
    data: Path

    async def run(self, *arguments: str) -> Ran:
        """Run a command with the engine's address and key in the environment."""
        return await run_command(*arguments, COUNTERFOIL_URL=self.url, COUNTERFOIL_KEY=ADMIN)

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.communicate(), 20)
        assert self.process.returncode is not None
        return self.process.returncode


async def start_process(*arguments: str, **variables: str) -> Process:
    command = [sys.executable, "-m", "counterfoil", *arguments]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env={**os.environ, **variables})


async def run_command(*arguments: str, **variables: str) -> Ran:
    process = await start_process(*arguments, **variables)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[Served]]]:
    processes: list[Process] = []

    async def start() -> Served:
        keys = f"ops:admin:{ADMIN},eyes:viewer:viewer-secret-0123456789"
        data = tmp_path / "data"
        process = await start_process("serve", "--port", "0", "--data", str(data), COUNTERFOIL_API_KEYS=keys)
        processes.append(process)
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        found = re.search(r"listening on (http://\S+)", line)
        assert found is not None, line
        return Served(process, found[1], data)

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.fixture
async def engine(serve: Callable[[], Awaitable[Served]]) -> Served:
    return await serve()


async def test_the_life_of_a_flow(engine: Served, endpoint: StepEndpoint, session: Any, tmp_path: Path) -> None:
    definition = tmp_path / "resize.json"
    definition.write_text(json.dumps({"endpoint": endpoint.url("/resize"), "work": {"max_retries": 2}}))
    assert (await engine.run("step", "put", "resize", str(definition))).code == 0
    assert "resize" in (await engine.run("step", "list")).out
    assert (await engine.run("step", "show", "resize")).json["work"]["max_retries"] == 2

    arguments = ["--init", "image=cat.png", "--label", "team=a", "--id", "mine"]
    started = await engine.run("flow", "start", "resize", *arguments)
    assert (started.code, started.out) == (0, "mine\n")
    received = await endpoint.received("/resize")
    assert received.arguments == {"image": "cat.png"}
    waiting = await engine.run("flow", "result", "mine", "--wait", "0")
    assert (waiting.code, waiting.out) == (1, "")
    assert "is still active" in waiting.err
    assert "mine" in (await engine.run("flow", "list", "--label", "team=a", "--since", "1h")).out
    listed = (await engine.run("work", "list", "--step", "resize", "--json")).json
    shown = await engine.run("work", "show", listed["work"][0]["work_id"])
    assert shown.code == 0
    assert "active" in shown.out

    await Reporter(session, Receipt.from_request(received.content)).succeed({"file": "small.png"})
    assert (await engine.run("flow", "result", "mine")).json == {"file": "small.png"}
    watched = await engine.run("flow", "watch", "mine")
    assert watched.code == 0
    assert "flow_completed" in watched.out.splitlines()[-1]
    events = (await engine.run("flow", "events", "mine", "--json")).json["events"]
    assert [item["type"] for item in events] == [line.split()[1] for line in watched.out.splitlines()]
    assert "small.png" in (await engine.run("flow", "show", "mine")).out
    for ran in (shown, watched):
        assert received.token not in ran.out + ran.err


async def test_errors_say_what_to_do(engine: Served, endpoint: StepEndpoint) -> None:
    await engine.run("step", "put", "resize", "--endpoint", endpoint.url("/resize"))
    for arguments, line in (
        (["flow", "show", "nobody"], "error: UNKNOWN_FLOW: "),
        (["work", "show", "nothing"], "error: UNKNOWN_WORK: "),
        (["flow", "start", "nowhere"], "error: UNKNOWN_STEP: "),
        (["step", "put", "bad", "--endpoint", "nowhere"], "error: INVALID_STEP: "),
        (["flow", "list", "--key", "wrong"], "error: UNAUTHENTICATED: "),
        (["flow", "start", "resize", "--key", "viewer-secret-0123456789"], "error: FORBIDDEN: "),
    ):
        ran = await engine.run(*arguments)
        assert (ran.code, ran.out) == (1, ""), arguments
        assert ran.err.startswith(line)
        assert ran.err.count("\n") == 1
        assert "; " in ran.err


async def test_a_cancelled_flow_has_no_result(engine: Served, endpoint: StepEndpoint) -> None:
    await engine.run("step", "put", "resize", "--endpoint", endpoint.url("/resize"))
    flow_id = (await engine.run("flow", "start", "resize")).out.strip()
    assert (await engine.run("flow", "cancel", flow_id)).out == f"flow {flow_id} is cancelled\n"
    result = await engine.run("flow", "result", flow_id)
    assert (result.code, result.out) == (1, "")
    assert "was cancelled" in result.err


async def test_the_doctor_looks_at_a_live_and_at_a_stopped_database(engine: Served, endpoint: StepEndpoint) -> None:
    await engine.run("step", "put", "resize", "--endpoint", endpoint.url("/resize"))
    flow_id = (await engine.run("flow", "start", "resize")).out.strip()
    await endpoint.received("/resize")
    live = await run_command("doctor", "--data", str(engine.data))
    assert (live.code, live.out) == (0, "✓ the database is clean: every invariant holds\n")
    assert await engine.stop() == 0
    store = f"sqlite:///{engine.data / 'counterfoil.db'}"
    assert (await run_command("doctor", "--store", store, "--json")).json == {"clean": True, "findings": []}

    with sqlite3.connect(engine.data / "counterfoil.db") as database:
        database.execute("UPDATE flows SET status = 'completed'")
    database.close()
    damaged = await run_command("doctor", "--data", str(engine.data))
    assert damaged.code == 1
    assert flow_id in damaged.out
    assert "→ " in damaged.out
    document = (await run_command("doctor", "--data", str(engine.data), "--json")).json
    assert document["clean"] is False
    assert {"invariant", "subject", "message", "advice"} <= set(document["findings"][0])


async def test_the_doctor_needs_a_database(tmp_path: Path) -> None:
    ran = await run_command("doctor", "--data", str(tmp_path))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: there is no database at ")


async def test_serve_refuses_a_wrong_setting_by_name(tmp_path: Path) -> None:
    ran = await run_command("serve", "--data", str(tmp_path), "--host", "0.0.0.0")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: host = '0.0.0.0' (flag --host): ")
    ran = await run_command("serve", "--data", str(tmp_path), COUNTERFOIL_BATCH_LIMIT="many")
    assert ran.code == 1
    assert "COUNTERFOIL_BATCH_LIMIT" in ran.err


async def test_serve_on_a_taken_port_says_so(engine: Served, tmp_path: Path) -> None:
    port = engine.url.rpartition(":")[2]
    ran = await run_command("serve", "--port", port, "--data", str(tmp_path / "other"))
    advice = "another process uses this port; stop that process, or choose another port with --port"
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"error: cannot listen on 127.0.0.1:{port}: {advice}\n"
