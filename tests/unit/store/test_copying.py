"""A store copied into PostgreSQL: every value as it was, numbers that go on, proof before it counts, and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterfoil.settings import Settings
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.maintenance.copying import Digest, Fingerprint, Table, kept_secret, open_source
from counterfoil.store.maintenance.migrating import migrate_store
from counterfoil.store.postgres.connection import Access, Connector
from counterfoil.store.postgres.copying import COPIED_TOGETHER, DERIVED_TABLES, OWN_TABLES, copy
from counterfoil.store.postgres.migrations import SCHEMA_VERSION as SHARED_SCHEMA_VERSION
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from counterfoil.store.sqlite.store import SqliteStore
from tests.by_hand import by_hand
from tests.databases import NewDatabase
from tests.store.records import DEFAULTS, NOW
from tests.unit.store.copied_rows import ROWS, TABLES

SECRET = "a-secret-that-signed-the-receipts"


class Unwatched:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.rows = 0

    def begins(self, stage: str, table: Table) -> None:
        self.stages.append((stage, table.name))

    def advanced(self, rows: int) -> None:
        self.rows += rows


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with the schema and no rows."""
    path = tmp_path / "counterfoil.db"
    await migrate_store(Settings(store=f"sqlite:///{path}"), NOW)
    return path


def fill(path: Path, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)


async def copied(path: Path, dsn: str, secret: str | None = SECRET) -> dict[str, Fingerprint]:
    with open_source(path) as source:
        return await copy(source, dsn, NOW, secret, Unwatched())


async def refusal(path: Path, dsn: str) -> str:
    with pytest.raises(StoreFailure) as refused:
        await copied(path, dsn)
    return str(refused.value)


def held(dsn: str) -> dict[str, int]:
    """How many rows there are, of the tables that have any. Those of revisions count once they were raised."""
    counts = {name: by_hand(dsn, f"SELECT count(*) FROM {name}")[0][0] for name in (*TABLES, *OWN_TABLES)}
    for name in ("register", "controls"):
        if by_hand(dsn, f"SELECT revision FROM {name}") == [(0,)]:
            del counts[name]
    return {name: count for name, count in counts.items() if count}


# ------------------------------------------------------------------------------------------------ what is copied


async def test_every_value_arrives_as_it_was(path: Path, new_database: NewDatabase) -> None:
    fill(path, ROWS)
    dsn = new_database(empty=True)
    found = await copied(path, dsn)
    assert [(name, held.rows) for name, held in found.items()] == [(name, len(rows)) for name, rows in ROWS.items()]
    for table, rows in ROWS.items():
        columns = ", ".join(name for _, name, *_ in by_hand(path, f"PRAGMA table_info({table})"))
        there = by_hand(dsn, f"SELECT {columns} FROM {table} ORDER BY {', '.join(TABLES[table])}")
        assert there == sorted(rows), table
    assert by_hand(dsn, "SELECT goal FROM flow_steps WHERE goal") == [(True,)]
    assert by_hand(dsn, "SELECT secret FROM receipt_secret") == [(SECRET,)]
    assert by_hand(dsn, "SELECT version, applied_at FROM schema_version") == [(SHARED_SCHEMA_VERSION, NOW)]


async def test_all_tables_are_found_and_all_of_them_exist_on_both_sides(path: Path, new_database: NewDatabase) -> None:
    with open_source(path) as source:
        assert {table.name: table.key for table in source.tables} == TABLES
    dsn = new_database()  # with the schema, and empty
    empty = {**dict.fromkeys(TABLES, digest()), "register": digest((1, 0)), "controls": digest((1, 0))}
    assert await copied(path, dsn) == empty
    there = by_hand(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert {name for (name,) in there} == {*TABLES, *OWN_TABLES, *DERIVED_TABLES, "schema_version"}


async def test_new_rows_are_numbered_behind_all_that_ever_were(path: Path, new_database: NewDatabase) -> None:
    fill(path, ROWS)
    by_hand(path, "DELETE FROM journal WHERE seq = 5")
    dsn = new_database(empty=True)
    await copied(path, dsn)
    entry = "INSERT INTO journal (flow_id, at, events) VALUES ('z', 1, '[]') RETURNING seq"
    assert by_hand(dsn, entry) == [(6,)]
    flow = "INSERT INTO flows (flow_id, status, created_at, open_steps) VALUES ('n', 'active', 1, 1) RETURNING ordinal"
    assert by_hand(dsn, flow) == [(10,)]
    told = "INSERT INTO deliveries (delivery_id, subscription_id, flow_id, type, body, attempt, created_at) "
    assert by_hand(dsn, told + "VALUES ('n', 's', 'z', 't', '{}', 0, 1) RETURNING ordinal") == [(12,)]


async def test_an_empty_store_begins_to_count_at_one(path: Path, new_database: NewDatabase) -> None:
    dsn = new_database(empty=True)
    await copied(path, dsn)
    entry = "INSERT INTO journal (flow_id, at, events) VALUES ('z', 1, '[]') RETURNING seq"
    assert by_hand(dsn, entry) == [(1,)]


@pytest.mark.parametrize("name", ["register", "controls"])
async def test_a_target_whose_revision_was_raised_is_refused(path: Path, new_database: NewDatabase, name: str) -> None:
    dsn = new_database()
    by_hand(dsn, f"UPDATE {name} SET revision = 1")
    assert f"rows in {name}: give an empty database" in await refusal(path, dsn)


async def test_many_rows_go_in_parts_and_are_counted_on_the_way(path: Path, new_database: NewDatabase) -> None:
    count = 2 * COPIED_TOGETHER + 1
    fill(path, {"journal": [(number, "z", None, 1, "[]") for number in range(1, count + 1)]})
    dsn, watch = new_database(empty=True), Unwatched()
    with open_source(path) as source:
        found = await copy(source, dsn, NOW, None, watch)
    assert found["journal"].rows == count
    assert by_hand(dsn, "SELECT count(*), max(seq) FROM journal") == [(count, count)]
    assert watch.stages == [(stage, table) for stage in ("copying", "verifying") for table in TABLES]
    assert count * 3 - 2000 <= watch.rows <= count * 3
    assert by_hand(dsn, "SELECT reltuples FROM pg_class WHERE relname = 'journal'") == [(count,)], "not analyzed"
    assert by_hand(dsn, "SELECT * FROM receipt_secret") == []


async def test_the_source_is_left_as_it_was(path: Path, new_database: NewDatabase) -> None:
    fill(path, ROWS)
    before = path.read_bytes()
    await copied(path, new_database(empty=True))
    assert path.read_bytes() == before
    store = SqliteStore(path, lambda: NOW, DEFAULTS)
    await store.open()  # and its lock is free again
    await store.close()


# ------------------------------------------------------------------------------------------------ proof


def digest(*rows: tuple[Any, ...]) -> Fingerprint:
    digest = Digest()
    for row in rows:
        digest.add(row)
    return digest.fingerprint


def test_a_digest_tells_apart_whatever_is_not_the_same() -> None:
    different = [
        digest(),
        digest(("ab", "c")),
        digest(("a", "bc")),
        digest(("a",), ("bc",)),
        digest(("bc",), ("a",)),
        digest(("a", "bc", None)),
        digest(("a", "bc", "")),
        digest(("a", "bc", "null")),
        digest((1,)),
        digest(("1",)),
        digest((True,)),
    ]
    assert len({found.digest for found in different}) == len(different)
    assert digest((1, "é", None)) == digest((1, "é", None))


@contextlib.contextmanager
def meddling(dsn: str, body: str) -> Iterator[None]:
    """The target changes rows of the journal as they are written."""
    by_hand(
        dsn,
        f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$",
        "CREATE TRIGGER meddle BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION meddle()",
    )
    yield
    by_hand(dsn, "DROP TRIGGER meddle ON journal", "DROP FUNCTION meddle")


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ("NEW.events = '[ ]'; RETURN NEW;", 2),
        ("NEW.seq = NEW.seq + 1; RETURN NEW;", 2),
        ("IF NEW.seq = 1 THEN RETURN NULL; END IF; RETURN NEW;", 1),
    ],
    ids=["a value", "a number", "a row"],
)
async def test_a_difference_undoes_the_copy(path: Path, new_database: NewDatabase, body: str, rows: int) -> None:
    fill(path, ROWS)
    dsn = new_database()
    expected = rf"table journal differs: the source has 2 rows .*, the target {rows} .*nothing was copied"
    with meddling(dsn, body), pytest.raises(StoreFailure, match=expected):
        await copied(path, dsn)
    assert held(dsn) == {}
    await copied(path, dsn)
    assert held(dsn)["journal"] == 2


async def test_a_commit_without_an_answer_is_not_called_a_failure(path: Path, new_database: NewDatabase) -> None:
    fill(path, ROWS)
    dsn = new_database()
    by_hand(
        dsn,
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON cancel_calls DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION die()",
    )
    told = await refusal(path, dsn)
    assert "it is not known whether the copy holds: run it again" in told
    assert "nothing was copied" not in told


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE schema_version SET version = version + 1", "written by a newer counterfoil, copy it with that one"),
        ("UPDATE schema_version SET version = 0", "this is not a counterfoil database"),
        ("DELETE FROM schema_version", "this is not a counterfoil database"),
        ("DROP TABLE schema_version", "this is not a counterfoil database"),
    ],
)
async def test_a_source_of_another_version_is_refused(path: Path, statement: str, said: str) -> None:
    by_hand(path, statement)
    assert said in await refusal(path, "postgresql://127.0.0.1:1/nobody")


async def test_an_older_source_is_to_be_migrated_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterfoil.store.maintenance.copying.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    assert "run counterfoil store migrate on it first" in await refusal(path, "postgresql://127.0.0.1:1/nobody")


async def test_a_source_that_is_no_database_is_refused(tmp_path: Path) -> None:
    missing, other = tmp_path / "missing.db", tmp_path / "other.db"
    other.write_bytes(b"this is not a database, but it is long enough to be looked at " * 20)
    assert "there is no database here" in await refusal(missing, "postgresql://127.0.0.1:1/nobody")
    assert "not a database" in await refusal(other, "postgresql://127.0.0.1:1/nobody")
    assert not missing.with_name("missing.db.lock").exists()


async def test_a_source_that_is_served_is_refused_and_no_engine_starts_on_one_that_is_copied(path: Path) -> None:
    store = SqliteStore(path, lambda: NOW, DEFAULTS)
    await store.open()
    assert "another counterfoil is serving" in await refusal(path, "postgresql://127.0.0.1:1/nobody")
    await store.close()
    with open_source(path), pytest.raises(StoreFailure, match="another counterfoil is serving"):
        await store.open()


@pytest.mark.parametrize(
    "row",
    [
        "step_versions (version, step_id, definition) VALUES ('v', 's', '{}')",
        "journal (flow_id, at, events) VALUES ('z', 1, '[]')",
        "nodes (node_id, joined_at, lease_until) VALUES ('n', now(), now())",
        "receipt_secret (secret) VALUES ('of-another-engine')",
    ],
    ids=lambda row: row.split(maxsplit=1)[0],
)
async def test_a_target_that_holds_anything_is_refused(path: Path, new_database: NewDatabase, row: str) -> None:
    fill(path, ROWS)
    dsn = new_database()
    by_hand(dsn, f"INSERT INTO {row}")
    table = row.split(maxsplit=1)[0]
    assert f"rows in {table}: give an empty database" in await refusal(path, dsn)
    assert held(dsn) == {table: 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE schema_version SET version = 99", "schema version 99"),
        ("ALTER TABLE work ADD COLUMN more TEXT", "its table work has other columns than the source"),
        ("ALTER TABLE journal DROP COLUMN events", "its table journal has other columns than the source"),
        ("DROP TABLE cancel_calls", "it has no table cancel_calls"),
    ],
)
async def test_a_target_of_another_kind_is_refused(
    path: Path, new_database: NewDatabase, change: str, said: str
) -> None:
    dsn = new_database()
    by_hand(dsn, change)
    assert said in await refusal(path, dsn)


async def test_a_target_with_foreign_tables_is_refused_and_left_alone(path: Path, new_database: NewDatabase) -> None:
    dsn = new_database(empty=True)
    by_hand(dsn, "CREATE TABLE flows (theirs TEXT)", "INSERT INTO flows VALUES ('kept')")
    assert '"flows" already exists; nothing was copied' in await refusal(path, dsn)
    assert by_hand(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [("flows",)]
    assert by_hand(dsn, "SELECT theirs FROM flows") == [("kept",)]


async def test_a_target_that_another_program_writes_to_is_refused(
    path: Path, new_database: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterfoil.store.postgres.copying.LOCK_MS", 100)
    dsn = new_database()
    other = await Connector(Access(dsn, 0)).connect()
    async with other.transaction():
        await other.execute("INSERT INTO steps SELECT 's', version, 1, 1 FROM step_versions")
        assert "in use by another session" in await refusal(path, dsn)
    await other.close()
    await copied(path, dsn)


async def test_what_postgresql_cannot_hold_is_refused_by_the_name_of_its_table(
    path: Path, new_database: NewDatabase
) -> None:
    fill(path, ROWS)
    dsn = new_database(empty=True)
    by_hand(path, "UPDATE work SET message = 'a' || char(0) || 'b'")
    assert "table work: invalid byte sequence" in await refusal(path, dsn)
    by_hand(path, "UPDATE work SET message = NULL", "UPDATE cancel_calls SET attempt = 4294967296")
    assert "table cancel_calls: " in await refusal(path, dsn)
    assert by_hand(dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []


async def test_two_copies_at_once_make_one(tmp_path: Path, path: Path, new_database: NewDatabase) -> None:
    fill(path, ROWS)
    twin = tmp_path / "twin.db"
    twin.write_bytes(path.read_bytes())
    dsn = new_database(empty=True)
    done = await asyncio.gather(copied(path, dsn), copied(twin, dsn), return_exceptions=True)
    (refused,) = [result for result in done if isinstance(result, BaseException)]
    assert "give an empty database" in str(refused)
    assert held(dsn) == {**{name: len(rows) for name, rows in ROWS.items()}, "receipt_secret": 1}
    assert [by_hand(dsn, f"SELECT count(*) FROM {name}") for name in DERIVED_TABLES] == [[(2,)], [(1,)]]


# ------------------------------------------------------------------------------------------------ secrets


def test_the_secret_is_that_of_the_first_directory_that_has_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    assert kept_secret([first, second]) is None
    (second / "receipt.secret").write_text(f"{SECRET}\n")
    assert kept_secret([first, second]) == SECRET
    (first / "receipt.secret").write_text("short")
    with pytest.raises(StoreFailure, match="not a receipt secret") as refused:
        kept_secret([first, second])
    assert "short" not in str(refused.value)
    (first / "receipt.secret").write_bytes(b"\xff" * 32)
    with pytest.raises(StoreFailure, match="cannot be read: not text"):
        kept_secret([first])
