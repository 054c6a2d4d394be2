"""``counterfoil store`` as a process: what it prints and refuses, how much it takes, and what a kill leaves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from counterfoil.store.postgres.migrations import SCHEMA_VERSION as SHARED_SCHEMA_VERSION
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from tests.acceptance.processes import EngineProcess, environment, run_command
from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.pages import ROOT, blocks_of

pytestmark = pytest.mark.sqlite_only  # where it begins; the target is always PostgreSQL

PASSWORD = "never-to-be-seen"
PAGE = ROOT / "docs" / "how-to" / "move-to-postgresql.md"
MANY = 20_000


def with_password(dsn: str) -> str:
    """The server of the tests trusts every user, and so takes any password."""
    return dsn.replace("postgres@", f"postgres:{PASSWORD}@")


def schema_of(dsn: str) -> list[tuple[Any, ...]]:
    return by_hand(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")


# ------------------------------------------------------------------------------------------------ many flows


@pytest.fixture
async def empty(tmp_path: Path) -> Path:
    """The data of an engine that has never done anything."""
    data = tmp_path / "data"
    created = f"schema version {SCHEMA_VERSION}: created\n"
    assert (await run_command("store", "migrate", "--data", str(data)))[:2] == (0, created)
    (data / "receipt.secret").write_text("a-secret-of-this-test-alone\n")
    return data


def fill(data: Path, flows: int) -> Path:
    """Flows by the thousand, each of some kilobytes in several tables."""
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {flows})"
    payload = """'{"text":"' || hex(randomblob(500)) || '"}'"""

    def entry(kind: str) -> str:
        return f"""'[["{kind}",null,0,null,' || {payload} || ']]'"""

    with contextlib.closing(sqlite3.connect(data / "counterfoil.db")) as connection, connection:
        for statement in (
            "flows (ordinal, flow_id, status, created_at, open_steps) | n, 'flow-' || n, 'active', n, 1",
            f"flow_inputs (flow_id, goals, init, metadata, labels) | 'flow-' || n, '[]', {payload}, '{{}}', '{{}}'",
            f"journal (seq, flow_id, at, events) | 3 * n, 'flow-' || n, n, {entry('flow_started')}",
            f"journal (seq, flow_id, at, events) | 3 * n + 1, 'flow-' || n, n, {entry('work_created')}",
        ):
            columns, _, values = statement.partition(" | ")
            connection.execute(f"INSERT INTO {columns} {numbers} SELECT {values} FROM numbers")
    return data


async def peak_bytes(data: Path, dsn: str) -> int:
    """How much memory a copy took at most, by its own account."""
    script = (
        "import atexit, re, sys\n"
        "from counterfoil.cli import main\n"
        "def report():\n"
        "    with open('/proc/self/status') as status:\n"
        "        print(re.search(r'VmHWM:\\s+(\\d+) kB', status.read())[1], file=sys.stderr)\n"
        "atexit.register(report)\n"
        "main()\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, "store", "copy", str(data), dsn), stdout=PIPE, stderr=PIPE, env=environment()
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, (output + errors).decode()
    return int(errors) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
async def test_many_flows_take_no_more_memory_than_few(empty: Path, new_database: NewDatabase) -> None:
    few = await peak_bytes(empty, new_database(empty=True))
    dsn = new_database(empty=True)
    many = await peak_bytes(fill(empty, MANY), dsn)
    assert by_hand(dsn, "SELECT count(*) FROM flows") == [(MANY,)]
    size = (empty / "counterfoil.db").stat().st_size
    assert size > 60_000_000
    assert many - few < 20_000_000


async def test_a_copy_that_is_killed_leaves_nothing(empty: Path, new_database: NewDatabase) -> None:
    fill(empty, MANY)
    dsn = new_database(empty=True)
    arguments = (sys.executable, "-m", "counterfoil", "store", "copy", str(empty), dsn)
    process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE, env=environment())
    assert process.stdout is not None
    while not (line := await process.stdout.readline()).startswith(b"copying journal"):
        assert line, "it ended before the journal"
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert schema_of(dsn) == []
    code, output, errors = await run_command("store", "copy", str(empty), dsn)
    assert (code, errors) == (0, ""), output
    assert by_hand(dsn, "SELECT count(*) FROM journal") == [(2 * MANY,)]


async def test_on_a_terminal_there_is_a_bar(empty: Path, new_database: NewDatabase) -> None:
    fill(empty, 2_000)
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "counterfoil", "store", "copy", str(empty), new_database(empty=True)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment({"TERM": "xterm", "COLUMNS": "100"}),
    )
    os.close(theirs)
    shown = await asyncio.to_thread(read_all, ours)
    assert await process.wait() == 0, shown
    assert "━" in shown
    assert "copied and verified: 8,002 rows" in shown


def read_all(terminal: int) -> str:
    parts = []
    with contextlib.suppress(OSError):  # the end of a terminal, on Linux
        while part := os.read(terminal, 65_536):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


async def test_the_page_on_it_shows_what_is_printed(empty: Path, new_database: NewDatabase) -> None:
    (shown,) = (block.text for block in blocks_of(PAGE) if block.mark == "picture")
    _, printed, _ = await run_command("store", "copy", str(empty), new_database(empty=True))
    assert without_numbers(printed) == without_numbers(shown)


def without_numbers(text: str) -> list[str]:
    named = re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", text)
    return [re.sub(r"[0-9,]+ +", "N ", line).rstrip() for line in re.sub(r"  +", " ", named).splitlines()]


# ------------------------------------------------------------------------------------------------ refusals


async def refused(*arguments: str, **variables: str) -> str:
    code, output, errors = await run_command("store", *arguments, extra=variables)
    assert (code, output) == (1, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert PASSWORD not in errors
    return errors


async def test_an_engine_that_runs_is_neither_copied_nor_migrated(
    engine: EngineProcess, new_database: NewDatabase
) -> None:
    dsn = new_database(empty=True)
    assert "another counterfoil is serving" in await refused("copy", str(engine.data), with_password(dsn))
    assert schema_of(dsn) == []
    assert "another counterfoil is serving" in await refused("migrate", "--data", str(engine.data))


async def test_a_second_copy_is_refused(empty: Path, new_database: NewDatabase) -> None:
    fill(empty, 10)
    dsn = with_password(new_database())
    code, output, errors = await run_command("store", "copy", str(empty), dsn)
    assert (code, errors) == (0, "")
    assert PASSWORD not in output
    told = await refused("copy", str(empty), dsn)
    assert "there are rows in flows, flow_inputs, journal, receipt_secret: give an empty database" in told


async def test_a_target_that_cannot_be_reached_is_named_without_its_password(empty: Path) -> None:
    told = await refused("copy", str(empty), f"postgresql://me:{PASSWORD}@127.0.0.1:1/nowhere?password={PASSWORD}")
    assert told.startswith("error: postgresql://127.0.0.1:1/nowhere: ")
    told = await refused("migrate", "--store", f"postgresql://me:{PASSWORD}@127.0.0.1:1/nowhere")
    assert told.startswith("error: postgresql://127.0.0.1:1/nowhere: ")


@pytest.mark.parametrize(
    ("source", "target", "argument"),
    [
        ("data", "sqlite:///other.db", "TARGET"),
        ("data", "other-data", "TARGET"),
        ("data", f"postgresql://me:12/{PASSWORD}@host/database", "TARGET"),
        (f"postgresql://me:{PASSWORD}@host/database", "postgresql://host/database", "SOURCE"),
        (f"mysql://me:{PASSWORD}@host/database", "postgresql://host/database", "SOURCE"),
        ("sqlite:///", "postgresql://host/database", "SOURCE"),
    ],
)
async def test_only_sqlite_is_copied_and_only_to_postgresql(source: str, target: str, argument: str) -> None:
    code, output, errors = await run_command("store", "copy", source, target)
    assert (code, output) == (2, "")
    assert f"Invalid value for {argument}: " in errors
    assert PASSWORD not in errors


async def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = "postgresql://127.0.0.1:1/nowhere"
    for source in (str(tmp_path), str(tmp_path / "counterfoil.db"), f"sqlite:///{tmp_path / 'counterfoil.db'}"):
        assert f"{tmp_path / 'counterfoil.db'}: there is no database here" in await refused("copy", source, target)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ secrets, migrations


async def test_without_the_secret_of_its_receipts_nothing_is_copied(
    empty: Path, tmp_path: Path, new_database: NewDatabase
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (empty / "receipt.secret").rename(elsewhere / "receipt.secret")
    dsn = new_database(empty=True)
    assert "there is no receipt.secret in " in await refused("copy", str(empty), dsn)
    assert schema_of(dsn) == []

    secrets = {"COUNTERFOIL_RECEIPT_SECRETS": "a-secret-of-the-settings"}
    code, output, _ = await run_command("store", "copy", str(empty), dsn, extra=secrets)
    assert code == 0
    assert "if the new nodes have the same receipt_secrets in their settings" in output
    assert by_hand(dsn, "SELECT * FROM receipt_secret") == []

    source = str(empty / "counterfoil.db")
    settings = {"COUNTERFOIL_STORE": f"sqlite:///{source}", "COUNTERFOIL_DATA": str(elsewhere)}
    for more, variables in ((["--data", str(elsewhere)], {}), ([], settings)):
        dsn = new_database(empty=True)
        assert (await run_command("store", "copy", source, dsn, *more, extra=variables))[0] == 0
        assert by_hand(dsn, "SELECT secret FROM receipt_secret") == [("a-secret-of-this-test-alone",)]


async def test_a_shared_database_is_made_by_hand(new_database: NewDatabase, tmp_path: Path) -> None:
    dsn, version = new_database(empty=True), f"schema version {SHARED_SCHEMA_VERSION}"
    for arguments, variables in ((["--store", dsn], {}), ([], {"COUNTERFOIL_STORE": dsn})):
        code, output, errors = await run_command("store", "migrate", *arguments, extra=variables)
        assert (code, errors) == (0, "")
        assert output in (f"{version}: created\n", f"{version}: up to date\n")
    assert output == f"{version}: up to date\n"
    by_hand(dsn, "UPDATE schema_version SET version = 99")
    assert "it was written by a newer counterfoil" in await refused("migrate", "--store", with_password(dsn))
    code, _, errors = await run_command("store", "migrate", "--store", dsn, "--data", str(tmp_path))
    assert (code, "not both" in errors) == (2, True)
