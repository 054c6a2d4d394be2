"""``counterfoil doctor``: clean on a good database, exit 1 with the name of every promise that is broken by hand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from counterfoil.app import run_doctor
from counterfoil.settings import Settings
from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command, store_url
from tests.by_hand import Place, break_it, by_hand
from tests.databases import NewDatabase
from tests.journal import Breakage, changed_event, lost_event, repeated_event
from tests.postgres import free_port

PASSWORD = "never-to-be-seen"
FORGED = '{"success":true,"outputs":{"forged":1},"error":null}'
ADD_KEY = "INSERT INTO keyed_flows (flow_id, run_key, claim, digest, retain_ms, retain_failed)"

BREAKAGES: dict[str, tuple[str, str | Breakage]] = {
    "an outcome changed": ("journal", f"UPDATE work SET result = '{FORGED}' WHERE status = 'succeeded'"),
    "an outcome taken back": (
        "final_flow",
        "UPDATE work SET status = 'active', due_at = 1, recorded_at = NULL WHERE status = 'succeeded'",
    ),
    "an outcome recorded twice": (
        "one_outcome",
        repeated_event("work_succeeded", again="work_succeeded"),
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
        lost_event("work_dispatched", "active"),
    ),
    "an intent that skips an attempt": (
        "one_outcome",
        changed_event("work_dispatched", lambda fields: [*fields[:3], 2, fields[4]], "active"),
    ),
    "a change without an event": ("journal", lost_event("work_acknowledged")),
    "an event without a change": ("journal", "UPDATE work SET acknowledged_at = NULL WHERE status = 'active'"),
    "a stuck flow": ("stuck_flow", "UPDATE flows SET status = 'active', finished_at = NULL WHERE flow_id = 'done'"),
    "an open step in a final flow": (
        "final_flow",
        "UPDATE flow_steps SET status = 'active', finished_at = NULL WHERE flow_id = 'done'",
    ),
    "a flow that only the journal knows": ("journal", "DELETE FROM flows WHERE flow_id = 'done'"),
    "a flow that the journal does not know": ("journal", "DELETE FROM journal WHERE flow_id = 'done'"),
    "two open flows of one run key": (
        "run_keys",
        f"{ADD_KEY} VALUES ('busy', 'order:7', 2, '', 0, FALSE)",
    ),
    "a run key that the journal does not know": (
        "run_keys",
        f"{ADD_KEY} VALUES ('done', 'order:8', 1, '', 0, FALSE)",
    ),
    "a lost run key": ("run_keys", "DELETE FROM keyed_flows"),
    "a run key of a lost flow": ("run_keys", "UPDATE keyed_flows SET flow_id = 'lost'"),
    "a wrong counter": ("counters", "UPDATE flow_steps SET open_items = 7 WHERE flow_id = 'active'"),
}


class Copies:
    """Copies of a database that is not in use, to be broken one by one."""

    def __init__(self, original: Place, directory: Path) -> None:
        self._original = original
        self._directory = directory
        self._made = 0

    def broken(self, change: str | Breakage) -> str:
        """The URL of a copy that was changed in one way."""
        copy = self._copy_file(self._original) if isinstance(self._original, Path) else self._clone(self._original)
        break_it(copy, change)
        return store_url(copy)

    def remove(self) -> None:
        if not isinstance(self._original, Path):
            server, _, name = self._original.rpartition("/")
            drop = (f'DROP DATABASE IF EXISTS "{name}_{number}" WITH (FORCE)' for number in range(1, self._made + 1))
            by_hand(f"{server}/postgres", *drop)

    def _copy_file(self, original: Path) -> Path:
        self._made += 1
        directory = self._directory / f"copy-{self._made}"
        shutil.copytree(original.parent, directory)
        return directory / original.name

    def _clone(self, original: str) -> str:
        self._made += 1
        server, _, name = original.rpartition("/")
        by_hand(f"{server}/postgres", f'CREATE DATABASE "{name}_{self._made}" TEMPLATE "{name}"')
        return f"{original}_{self._made}"


@pytest.fixture
async def stopped(engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint) -> EngineProcess:
    """An engine that has left one flow done, one waiting for its callback and one waiting for a retry."""
    endpoint.answer("/busy", Answer(503, headers={"Retry-After": "600"}))
    api = client_of(engine)
    for step_id in ("job", "busy"):
        await api.put_step(step_id, endpoint.url(f"/{step_id}"), work={"max_retries": 5})
    await api.start("job", flow_id="done")
    await api.succeed(await endpoint.received("/job"), good=1)
    await api.final("done")
    await api.start("job", flow_id="active", idempotency_key="order:7")
    await api.until_acknowledged("active")
    await api.start("busy", flow_id="busy")
    await api.until_work("busy", "not_completed")
    assert await engine.stop() == 0
    return engine


@pytest.fixture
def copies(stopped: EngineProcess, tmp_path: Path) -> Iterator[Copies]:
    made = Copies(stopped.place, tmp_path)
    yield made
    made.remove()


async def test_each_broken_promise_is_found_and_named(copies: Copies) -> None:
    missed = {}
    for name, (invariant, change) in BREAKAGES.items():
        found = {finding.invariant for finding in run_doctor(Settings(store=copies.broken(change)))}
        if invariant not in found:
            missed[name] = (invariant, found)
    assert missed == {}


async def test_the_command_says_what_is_wrong_and_ends_with_1(stopped: EngineProcess, copies: Copies) -> None:
    code, output, errors = await run_command("doctor", "--store", stopped.store_url, "--json")
    assert code == 0, output + errors
    assert orjson.loads(output) == {"clean": True, "findings": []}
    invariant, change = BREAKAGES["a stuck flow"]
    broken = copies.broken(change)
    for flags in ([], ["--json"]):
        code, output, errors = await run_command("doctor", "--store", broken, *flags)
        assert (code, errors) == (1, "")
        assert invariant in output
        assert "done" in output
    assert {"invariant", "subject", "message", "advice"} <= set(orjson.loads(output)["findings"][0])


async def test_a_running_engine_can_be_examined(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    await api.until_acknowledged(flow_id)
    code, output, errors = await run_command("doctor", "--store", engine.store_url)
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
    code, output, errors = await run_command("doctor", "--store", engine.store_url)
    assert code == 0, output + errors


# ------------------------------------------------------------------------------------------------ nothing to judge


@pytest.mark.sqlite_only
async def test_no_directory(tmp_path: Path) -> None:
    code, output, errors = await run_command("doctor", "--data", str(tmp_path / "nothing"))
    assert (code, output) == (1, "")
    assert errors.startswith("error: there is no database at ")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.sqlite_only
async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    database = tmp_path / "counterfoil.db"
    database.write_bytes(b"this is not a database, it only has its name" * 200)
    code, output, errors = await run_command("doctor", "--data", str(tmp_path))
    assert (code, errors) == (1, "")
    assert f"✗ file  {database}: " in output


def with_password(dsn: str) -> str:
    """The server of the tests trusts every user, and so takes any password."""
    assert "postgres@" in dsn
    return dsn.replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.mark.postgresql_only
async def test_no_database_of_ours_on_a_server(new_database: NewDatabase) -> None:
    """Empty, unknown or unreachable: one line says which and why, with neither password nor user."""
    empty = with_password(new_database(empty=True))
    unreachable = f"postgresql://postgres:{PASSWORD}@127.0.0.1:{free_port()}/counterfoil"
    for dsn, reason in (
        (empty, "there is no counterfoil database here"),
        (f"{empty}_of_none", '_of_none" does not exist'),
        (unreachable, "Connect call failed"),
    ):
        code, output, errors = await run_command("doctor", "--store", dsn)
        assert (code, output) == (1, "")
        assert errors.startswith(f"error: postgresql://{dsn.rpartition('@')[2]}: ")
        assert reason in errors
        assert errors.count("\n") == 1, errors
        assert PASSWORD not in errors


@pytest.mark.postgresql_only
@pytest.mark.parametrize("version", [-1, 42], ids=["older", "newer"])
async def test_a_database_of_another_version_is_not_judged(new_database: NewDatabase, version: int) -> None:
    dsn = with_password(new_database())
    break_it(dsn, f"UPDATE schema_version SET version = {version}")
    code, output, errors = await run_command("doctor", "--store", dsn)
    assert (code, errors) == (1, "")
    assert f"✗ schema  version {version}: this program knows version " in output
    assert "counterfoil store migrate" in output
    assert PASSWORD not in output
