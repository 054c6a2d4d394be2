"""``counterfoil doctor``: clean on a good database, exit 1 with the name of every promise that is broken by hand."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import orjson
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command

FORGED = '{"success":true,"outputs":{"forged":1},"error":null}'

BREAKAGES: dict[str, tuple[str, str]] = {
    "an outcome changed": ("journal", f"UPDATE work SET result = '{FORGED}' WHERE status = 'succeeded'"),
    "an outcome taken back": (
        "final_flow",
        "UPDATE work SET status = 'active', due_at = 1, recorded_at = NULL WHERE status = 'succeeded'",
    ),
    "an outcome recorded twice": (
        "one_outcome",
        """INSERT INTO journal (type, at, flow_id, step_id, work_id, attempt, data)
        SELECT type, at, flow_id, step_id, work_id, attempt, data FROM journal WHERE type = 'work_succeeded'""",
    ),
    "an outcome without a time": ("one_outcome", "UPDATE work SET recorded_at = NULL WHERE status = 'succeeded'"),
    "not completed without a next attempt": (
        "not_completed",
        "UPDATE work SET due_at = NULL WHERE status = 'not_completed'",
    ),
    "active without a clock": ("active", "UPDATE work SET due_at = NULL, owner = NULL WHERE status = 'active'"),
    "more attempts than allowed": ("attempts", "UPDATE work SET attempt = 99 WHERE status = 'active'"),
    "an attempt without an intent": (
        "journal",
        "DELETE FROM journal WHERE type = 'work_dispatched' AND flow_id = 'active'",
    ),
    "an intent that skips an attempt": (
        "one_outcome",
        "UPDATE journal SET attempt = 2 WHERE type = 'work_dispatched' AND flow_id = 'active'",
    ),
    "a change without an event": ("journal", "DELETE FROM journal WHERE type = 'work_acknowledged'"),
    "an event without a change": ("journal", "UPDATE work SET acknowledged_at = NULL WHERE status = 'active'"),
    "a stuck flow": ("stuck_flow", "UPDATE flows SET status = 'active', finished_at = NULL WHERE flow_id = 'done'"),
    "an open step in a final flow": (
        "final_flow",
        "UPDATE flow_steps SET status = 'active', finished_at = NULL WHERE flow_id = 'done'",
    ),
    "a flow that only the journal knows": ("journal", "DELETE FROM flows WHERE flow_id = 'done'"),
    "a flow that the journal does not know": ("journal", "DELETE FROM journal WHERE flow_id = 'done'"),
    "a wrong counter": ("counters", "UPDATE flow_steps SET open_items = 7 WHERE flow_id = 'active'"),
}


@pytest.fixture
async def stopped(engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint) -> Path:
    """The data of an engine that has one flow done, one waiting for its callback and one waiting for a retry."""
    endpoint.answer("/busy", Answer(503, headers={"Retry-After": "600"}))
    api = client_of(engine)
    for step_id in ("job", "busy"):
        await api.put_step(step_id, endpoint.url(f"/{step_id}"), work={"max_retries": 5})
    await api.start("job", flow_id="done")
    await api.succeed(await endpoint.received("/job"), good=1)
    await api.final("done")
    await api.start("job", flow_id="active")
    await api.until_acknowledged("active")
    await api.start("busy", flow_id="busy")
    await api.until_work("busy", "not_completed")
    assert await engine.stop() == 0
    return engine.data


async def test_a_good_database_is_clean(stopped: Path) -> None:
    code, output, errors = await run_command("doctor", "--data", str(stopped), "--json")
    assert code == 0, output + errors
    document = orjson.loads(output)
    assert document["findings"] == []


def damaged(stopped: Path, copy: Path, statement: str) -> Path:
    """A copy of the data, broken by one statement."""
    shutil.copytree(stopped, copy)
    connection = sqlite3.connect(next(copy.glob("*.db")))
    with connection:
        assert connection.execute(statement).rowcount > 0, statement
    connection.close()
    return copy


async def test_each_broken_promise_is_found_and_named(stopped: Path, tmp_path: Path) -> None:
    missed = {}
    for number, (name, (invariant, statement)) in enumerate(BREAKAGES.items()):
        data = damaged(stopped, tmp_path / f"broken-{number}", statement)
        found = {finding.invariant for finding in run_doctor(Settings(data=data))}
        if invariant not in found:
            missed[name] = (invariant, found)
    assert missed == {}


@pytest.mark.parametrize("flags", [[], ["--json"]])
async def test_the_command_says_what_is_wrong_and_ends_with_1(stopped: Path, tmp_path: Path, flags: list[str]) -> None:
    invariant, statement = BREAKAGES["a stuck flow"]
    data = damaged(stopped, tmp_path / "broken", statement)
    code, output, errors = await run_command("doctor", "--data", str(data), *flags)
    assert code == 1, output + errors
    assert invariant in output
    assert "done" in output
    if flags:
        assert {"invariant", "subject", "message"} <= set(orjson.loads(output)["findings"][0])


async def test_a_running_engine_can_be_examined(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    await api.until_acknowledged(flow_id)
    code, output, errors = await run_command("doctor", "--data", str(engine.data))
    assert code == 0, output + errors
    await api.succeed(await endpoint.received("/job"))
    assert (await api.final(flow_id))["status"] == "completed"


async def test_the_doctor_needs_no_settings_of_the_engine(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """What was allowed when the work was sent is known to the database, not only to the engine's environment."""
    engine = new_engine(work__max_retries="30", work__init_backoff_ms="1", work__max_backoff_ms="1")
    await engine.start()
    endpoint.answer("/job", Answer(503))
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    assert (await api.final(flow_id))["status"] == "failed"
    assert (await api.work(flow_id))["attempt"] == 31
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--data", str(engine.data))
    assert code == 0, output + errors


async def test_no_database(tmp_path: Path) -> None:
    code, output, errors = await run_command("doctor", "--data", str(tmp_path / "nothing"))
    assert code == 1
    assert "Traceback" not in output + errors
    assert not (tmp_path / "nothing").exists()


async def test_a_file_that_is_no_database(stopped: Path) -> None:
    database = next(stopped.glob("*.db"))
    database.write_bytes(b"this is not a database, it only has its name" * 200)
    code, output, errors = await run_command("doctor", "--data", str(stopped))
    assert code == 1
    assert "Traceback" not in output + errors
