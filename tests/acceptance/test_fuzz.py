"""The OpenAPI document against the engine that serves it: no 5xx, and every answer as the document says."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf
from tests.acceptance.processes import EngineProcess, environment, run_command
from tests.seeds import announce
from tests.wire import Api

EXAMPLES = 3
"""Of each operation, beside those of the phase that goes through the edges of each schema: some seconds."""
SECONDS = os.environ.get("FUZZ_SECONDS", "")
"""How long to go on with others (``make fuzz``); empty: a fixed number of them, so that every run does the same."""
LEFT_OUT = "positive_data_acceptance"
"""A document cannot say that a cursor must be one that a list has given, nor that inputs must fit a step."""


def on(store: str) -> pytest.MarkDecorator:
    """The store that the short run of an aim is on: the document says the same of both. The long run takes both."""
    return pytest.mark.slow if SECONDS else getattr(pytest.mark, f"{store}_only")


@pytest.mark.fuzz
@pytest.mark.timeout(180 + 3 * float(SECONDS or 0))
@on("sqlite")
async def test_every_answer_is_as_documented(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, tmp_path: Path
) -> None:
    await compare_answers(engine, client_of(engine), endpoint, tmp_path, aim="anything")


@pytest.mark.fuzz
@pytest.mark.timeout(180 + 3 * float(SECONDS or 0))
@on("postgresql")
async def test_every_answer_about_a_real_receipt_is_as_documented(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, tmp_path: Path
) -> None:
    """Ids out of thin air seldom hit anything: this run is given those of a work item that waits for its callback."""
    await compare_answers(engine, client_of(engine), endpoint, tmp_path, aim="a real receipt")


async def compare_answers(engine: EngineProcess, api: Api, endpoint: StepEndpoint, tmp_path: Path, *, aim: str) -> None:
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job", init={"a": 1})
    await api.until_acknowledged(flow_id)
    if aim == "a real receipt":
        token = (await endpoint.received("/job")).token
        work_id = (await api.work(flow_id))["work_id"]
        ids = {"flow_id": flow_id, "step_id": "job", "receipt_token": token, "work_id": work_id}
        lines = ["[parameters]", *(f"{name} = {orjson.dumps(value).decode()}" for name, value in ids.items())]
        (tmp_path / "schemathesis.toml").write_text("\n".join(lines))
    code, report = await schemathesis(engine.url, tmp_path)
    assert code == 0, report[-12_000:]
    assert engine.exit_code is None
    assert "Traceback" not in engine.output()
    if aim == "a real receipt":
        assert (await api.work(flow_id))["status"] in ("succeeded", "failed", "cancelled"), "it was hit"
    assert await engine.stop() == 0
    code, findings, errors = await run_command("doctor", "--store", engine.store_url)
    assert code == 0, findings + errors


async def schemathesis(url: str, directory: Path) -> tuple[int, str]:
    """Run it in a process of its own, in a directory where it may leave its files."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{url}/openapi.json",
        *("--checks", "all", "--exclude-checks", LEFT_OUT),
        *(("--max-time", SECONDS) if SECONDS else ("--max-examples", str(EXAMPLES))),
        *("--seed", str(announce())),
        *("--generation-database", "none"),
        *("--suppress-health-check", "all"),
        *("--request-timeout", "10"),
        *("--exclude-path-regex", "stream$|relays/[^/]+$"),
        "--no-color",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=directory,
        env=environment(),
    )
    output, _ = await asyncio.wait_for(process.communicate(), 150 + 2 * float(SECONDS or 0))
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")
