"""SIGTERM: in-flight requests finish, nothing new begins, the rest goes on at the next start."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.by_hand import Place, by_hand
from tests.eventually import elapsed
from tests.unit.commands import run
from tests.wire import Api

SUCCESS = {"success": True, "outputs": {"a": 1}}
LEASES = "SELECT count(*) FROM nodes WHERE lease_until > clock_timestamp()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_with_0(engine: EngineProcess, client_of: ClientOf, number: signal.Signals) -> None:
    assert (await client_of(engine).get("/healthz")).status == 200
    engine.signal(number)
    assert await engine.wait() == 0
    assert "Traceback" not in engine.output()


async def test_open_connections_do_not_hold_it(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """Streams, long polls and idle connections end with the engine, well within its grace."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    poll = asyncio.ensure_future(api.get(f"/api/v1/flows/{flow_id}/result", wait="25"))
    async with api.session.get(f"{engine.url}/api/v1/stream") as stream:
        assert stream.status == 200
        begun = time.monotonic()
        assert await engine.stop() == 0
        assert time.monotonic() - begun < 3
    reply = await asyncio.gather(poll, return_exceptions=True)
    assert reply


async def test_requests_in_flight_finish(engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint) -> None:
    """A sync call that is under way when the signal comes has its result recorded, and is not repeated."""
    release = asyncio.Event()
    endpoint.answer("/slow", Answer(body=SUCCESS, until=release))
    api = client_of(engine)
    await api.put_step("slow", endpoint.url("/slow"), kind="sync")
    flow_id = await api.start("slow")
    await endpoint.received("/slow")
    engine.signal(signal.SIGTERM)
    await elapsed(0.3)
    assert engine.exit_code is None
    release.set()
    assert await engine.wait() == 0
    await engine.start()
    assert (await client_of(engine).final(flow_id))["outputs"] == {"a": 1}
    assert len(endpoint.requests("/slow")) == 1


async def test_the_rest_goes_on_at_the_next_start(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """Waiting for a callback, for a retry, for a place: each goes on where it was."""
    endpoint.answer("/busy", Answer(503, headers={"Retry-After": "2"}), Answer())
    api = client_of(engine)
    await api.put_step("patient", endpoint.url("/patient"))
    await api.put_step("busy", endpoint.url("/busy"))
    await api.put_step("narrow", endpoint.url("/narrow"), work={"parallelism": 1})
    patient, busy = await api.start("patient"), await api.start("busy")
    first, second = await api.start("narrow"), await api.start("narrow")
    await api.until_acknowledged(patient)
    await api.until_work(busy, "not_completed")
    await api.until_acknowledged(first)
    assert await engine.stop() == 0
    sent = len(endpoint.all_requests())
    await engine.start()
    api = client_of(engine)
    await api.succeed(await endpoint.received("/busy", 2), done=1)
    assert len(endpoint.all_requests()) == sent + 1
    await api.succeed(await endpoint.received("/patient"), done=1)
    await api.succeed(await endpoint.received("/narrow"), done=1)
    await api.succeed(await endpoint.received("/narrow", 2), done=1)
    for flow_id in (patient, busy, first, second):
        assert (await api.final(flow_id))["status"] == "completed"
    assert len(endpoint.requests("/patient")) == 1


async def test_a_killed_engine_counts_the_attempt_that_was_cut_short(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """Sent, and it is unknown whether it arrived: the next start sends the next attempt, within the budget."""
    endpoint.answer("/job", Answer(fault="silent"))
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"), work={"max_retries": 1, "ack_timeout_ms": 60_000})
    flow_id = await api.start("job")
    await endpoint.received("/job")
    await engine.kill()
    await engine.start()
    second = await endpoint.received("/job", 2)
    assert second.metadata["attempt"] == 2
    await engine.kill()
    await engine.start()
    api = client_of(engine)
    assert (await api.final(flow_id))["status"] == "failed"
    assert len(endpoint.requests("/job")) == 2
    assert (await api.work(flow_id))["attempt"] == 2


async def test_a_late_result_of_a_call_cut_short_by_a_kill_is_accepted(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    endpoint.answer("/job", Answer(fault="silent"), Answer())
    api = client_of(engine)
    work = {"ack_timeout_ms": 60_000, "init_backoff_ms": 30_000, "max_backoff_ms": 30_000}
    await api.put_step("job", endpoint.url("/job"), work=work)
    flow_id = await api.start("job")
    received = await endpoint.received("/job")
    await engine.kill()
    await engine.start()
    api = client_of(engine)
    await api.until_work(flow_id, "not_completed")
    await api.succeed(received, late=True)
    assert (await api.final(flow_id))["outputs"] == {"late": True}


@pytest.fixture
def second(engine: EngineProcess, new_engine: NewEngine) -> EngineProcess:
    """Another engine with the same settings and directory as the one that runs."""
    second = new_engine(data=engine.data)
    second.log = engine.data.parent / "second.log"
    return second


@pytest.mark.sqlite_only
async def test_a_second_engine_on_a_file_is_refused(engine: EngineProcess, second: EngineProcess) -> None:
    """With a reason; the first one does not notice."""
    await second.spawn()
    assert await second.wait() == 1
    assert str(engine.data) in one_line(second.output())
    assert engine.exit_code is None


@pytest.mark.postgresql_only
async def test_a_second_engine_on_a_server_takes_part(
    engine: EngineProcess, second: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """What one has begun the other one ends, also when the first is gone; its own stop disturbs no other one."""
    await second.start()
    first_api, second_api = client_of(engine), client_of(second)
    await first_api.put_step("job", endpoint.url("/job"))
    early, late = await first_api.start("job", flow_id="early"), await first_api.start("job", flow_id="late")
    for flow_id in (early, late):
        await second_api.until_acknowledged(flow_id)
    paths = {each.metadata["flow_id"]: urlsplit(each.webhook_url).path for each in endpoint.requests("/job")}
    (await second_api.post(paths[early], SUCCESS)).ok()
    assert (await first_api.final(early))["outputs"] == {"a": 1}
    assert await engine.stop() == 0
    (await second_api.post(paths[late], SUCCESS)).ok()
    assert (await second_api.final(late))["outputs"] == {"a": 1}
    assert await second.stop() == 0
    assert by_hand(engine.place, LEASES) == [(0,)]
    code, output, errors = await run_command("doctor", "--store", engine.store_url)
    assert code == 0, output + errors


# ------------------------------------------------------------------------------------------- refused starts


def one_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.sqlite_only
async def test_a_port_in_use(engine: EngineProcess, tmp_path: Path) -> None:
    code, output, errors = await run_command("serve", "--port", str(engine.port), "--data", str(tmp_path / "other"))
    assert code == 1
    assert str(engine.port) in one_line(errors)
    assert "listening on" not in output


@pytest.mark.postgresql_only
async def test_a_port_in_use_by_another_node(engine: EngineProcess, tmp_path: Path) -> None:
    """The node that cannot serve has left again, and holds nothing."""
    flags = ("--port", str(engine.port), "--data", str(tmp_path / "other"), "--store", engine.store_url)
    code, output, errors = await run_command("serve", *flags, extra={"COUNTERFOIL_LOG_LEVEL": "error"})
    assert code == 1
    assert str(engine.port) in one_line(errors)
    assert "listening on" not in output
    assert by_hand(engine.place, LEASES) == [(1,)]


@pytest.mark.parametrize(
    ("flags", "variables", "names"),
    [
        (["--host", "0.0.0.0"], {}, ["host", "key"]),
        (["--store", "mysql://x"], {}, ["store", "sqlite", "postgresql"]),
        (["--store", "postgresql://me:12/hunter2@host/name"], {}, ["store", "postgresql"]),
        ([], {"COUNTERFOIL_BACKLOG_LIMIT": "many"}, ["backlog_limit"]),
        ([], {"COUNTERFOIL_SWEEP_INTERVAL_MS": "-5"}, ["sweep_interval_ms"]),
        ([], {"COUNTERFOIL_LOG_LEVEL": "loud"}, ["log_level", "debug"]),
        ([], {"COUNTERFOIL_WORK__MAX_RETRIES": "-2"}, ["max_retries"]),
        ([], {"COUNTERFOIL_API_KEYS": "nonsense"}, ["api_keys", "name:role:secret"]),
        ([], {"COUNTERFOIL_API_KEYS": "me:king:hunter2-hunter2"}, ["api_keys", "admin"]),
        ([], {"COUNTERFOIL_API_KEYS": "me:admin:hunter2"}, ["api_keys", "key me", "16 characters"]),
        ([], {"COUNTERFOIL_SIGNING_SECRET": "hunter2-hunter2"}, ["signing_secret", "whsec_"]),
        ([], {"WEBHOOK_BASE_URL": "not a url"}, ["webhook_base_url", "http"]),
        ([], {"COUNTERFOIL_NO_SUCH_SETTING": "1"}, ["COUNTERFOIL_NO_SUCH_SETTING"]),
        (["--config", "/does/not/exist.toml"], {}, ["/does/not/exist.toml"]),
    ],
)
async def test_a_wrong_setting_is_named_with_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], variables: dict[str, str], names: list[str]
) -> None:
    """The command runs in this process: it ends before it would start anything."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    result = await run("serve", "--port", "0", "--data", str(tmp_path / "data"), *flags)
    assert result.exit_code != 0
    line = one_line(result.stderr)
    for name in names:
        assert name in line, line
    assert "hunter2" not in line


async def test_a_wrong_receipt_secret_is_named(tmp_path: Path) -> None:
    """In a process of its own: this setting is read when the engine starts."""
    wrong = {"COUNTERFOIL_RECEIPT_SECRETS": "hunter2"}
    code, _, errors = await run_command("serve", "--port", "0", "--data", str(tmp_path / "data"), extra=wrong)
    assert code != 0
    line = one_line(errors)
    assert "receipt_secrets" in line
    assert "hunter2" not in line


@pytest.mark.sqlite_only  # the store is a setting like the others
async def test_settings_from_the_environment_and_a_file(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint, tmp_path: Path
) -> None:
    """Flags win over the environment, the environment over the file, the file over defaults."""
    config = tmp_path / "my.toml"
    config.write_text(
        'max_body_bytes = 500\nwebhook_base_url = "http://from-the-file.example"\n[work]\nmax_retries = 7\n'
    )
    engine = new_engine(webhook_base_url="http://from-the-environment.example")
    await engine.start("--config", str(config))
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    await api.start("job")
    received = await endpoint.received("/job")
    assert received.webhook_url.startswith("http://from-the-environment.example/webhook/")
    assert received.metadata["max_attempts"] == 8
    (await api.post("/api/v1/flows", {"goals": ["job"], "init": {"a": "x" * 600}})).refused(413, "PAYLOAD_TOO_LARGE")


async def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    code, _, errors = await run_command("serve", "--port", "0", "--data", str(blocked / "data"), within=20)
    assert code != 0
    assert "Traceback" not in errors


# ------------------------------------------------------------------------------------------- the database's version


async def test_a_newer_database_is_refused(engine: EngineProcess) -> None:
    """Clearly, and without touching it."""
    await engine.stop()
    by_hand(engine.place, "INSERT INTO schema_version SELECT max(version) + 41, 0 FROM schema_version")
    before = content(engine.place)
    await engine.spawn()
    assert await engine.wait() == 1
    assert "newer" in one_line(engine.output())
    assert content(engine.place) == before
    code, output, errors = await run_command("doctor", "--store", engine.store_url)
    assert code == 1
    assert "version" in output + errors


def content(place: Place) -> object:
    """All that a database holds."""
    if isinstance(place, Path):
        return place.read_bytes()
    tables = by_hand(place, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert tables
    return {name: by_hand(place, f"SELECT * FROM {name}") for (name,) in tables}


@pytest.mark.sqlite_only
async def test_the_secret_is_made_once_for_its_owner_only(engine: EngineProcess) -> None:
    await engine.stop()
    secrets = [path for path in engine.data.iterdir() if "secret" in path.name]
    assert len(secrets) == 1
    assert secrets[0].stat().st_mode & 0o777 == 0o600
    before = secrets[0].read_bytes()
    assert len(before) >= 32
    await engine.start()
    assert secrets[0].read_bytes() == before


@pytest.mark.postgresql_only
async def test_the_secret_is_made_once_for_all_nodes(
    engine: EngineProcess, new_engine: NewEngine, tmp_path: Path, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """It is in the database, so a node with another directory, or none, takes the receipts that are out."""
    [(before,)] = by_hand(engine.place, "SELECT secret FROM receipt_secret")
    assert len(before) >= 32
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    await api.until_acknowledged(flow_id)
    await engine.stop()
    other = new_engine(data=tmp_path / "elsewhere")
    other.port = engine.port
    await other.start()
    assert by_hand(engine.place, "SELECT secret FROM receipt_secret") == [(before,)]
    await client_of(other).succeed(await endpoint.received("/job"), a=1)
    assert (await client_of(other).final(flow_id))["outputs"] == {"a": 1}
    assert list(tmp_path.rglob("*secret*")) == []


async def test_many_waiting_items_do_not_slow_a_stop(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    api: Api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"), work={"parallelism": 20})
    for _ in range(6):
        await asyncio.gather(*(api.start("job") for _ in range(50)))
    await endpoint.received("/job", 20)
    begun = time.monotonic()
    assert await engine.stop() == 0
    assert time.monotonic() - begun < 3
