"""What is special about a file: it is locked, it may be broken or from another time, and the disk may be full."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.kinds.definitions import CURRENT, VERSIONS
from counterfoil.store.sqlite.connection import open_reader
from counterfoil.store.sqlite.migrations import SCHEMA_VERSION
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.testing.simulator import StillClock
from tests.eventually import eventually
from tests.store.backends import load, write
from tests.store.records import DEFAULTS, NOW, changed_records, new_records, step_version, work_item


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "counterfoil.db"


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, StillClock(NOW), DEFAULTS)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def by_hand(path: Path, *statements: str) -> None:
    """Change the file as another program would."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_second_store_on_the_same_file_is_refused(path: Path) -> None:
    async with opened(path):
        with pytest.raises(StoreFailure, match="another counterfoil is serving"):
            async with opened(path):
                pass
    async with opened(path):  # the first one has gone
        pass


async def test_the_lock_goes_with_the_process_that_held_it(path: Path) -> None:
    script = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from counterfoil.domain.steps.definitions import WorkDefaults\n"
        "from counterfoil.store.sqlite.store import SqliteStore\n"
        "async def main():\n"
        "    await SqliteStore(Path(sys.argv[1]), lambda: 0, WorkDefaults()).open()\n"
        "    os._exit(9)\n"
        "asyncio.run(main())\n"
    )
    died = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=30)
    assert died.returncode == 9
    async with opened(path):
        pass


async def test_a_failed_start_gives_the_lock_back(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, but it is long enough to be looked at " * 20)
    for _ in range(2):
        with pytest.raises(StoreFailure, match="not a database"):
            async with opened(path):
                pass


async def test_a_database_of_a_newer_program_is_refused(path: Path) -> None:
    async with opened(path):
        pass
    by_hand(path, f"INSERT INTO schema_version VALUES ({SCHEMA_VERSION + 1}, 0)")
    with pytest.raises(StoreFailure, match="written by a newer counterfoil"):
        async with opened(path):
            pass


async def test_a_directory_that_cannot_be_written_is_refused_with_its_name(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(path.name + ".lock").mkdir()
    with pytest.raises(StoreFailure, match=str(path.parent)):
        async with opened(path):
            pass


async def test_every_commit_is_flushed(path: Path) -> None:
    async with opened(path) as store:
        await write(store, new_records(work_item()))

        def pragmas(connection: sqlite3.Connection) -> list[object]:
            return [connection.execute(f"PRAGMA {name}").fetchall()[0][0] for name in ("journal_mode", "synchronous")]

        assert store._writer is not None
        assert await store._writer.run(pragmas) == ["wal", 2]


async def test_readers_cannot_write(path: Path) -> None:
    async with opened(path):
        reader = await open_reader(path)
        with pytest.raises(StoreFailure, match="readonly"):
            await reader.run(lambda raw: raw.execute("DELETE FROM work"))
        await reader.close()


async def test_a_commit_that_fails_leaves_nothing_and_the_next_one_works(path: Path) -> None:
    async with opened(path) as store:
        await write(store, new_records(work_item(work_id="before")))
        by_hand(path, "CREATE TRIGGER full BEFORE INSERT ON work BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        version = step_version()
        changes = new_records(work_item(work_id="during"))
        changes.of(CURRENT)["step"] = version.version
        changes.of(VERSIONS)[version.version] = version
        with pytest.raises(StoreFailure, match="disk full"):
            await write(store, changes)
        by_hand(path, "DROP TRIGGER full")
        assert await store.read("list_steps") == [], "what came earlier in the batch was not kept either"
        await write(store, new_records(work_item(work_id="after")))
        rows = await store.read("list_work", status=None, step_id=None, after=None, limit=9)
        assert [row[1] for row in rows] == ["before", "after"]


async def test_a_full_disk_is_survived(path: Path) -> None:
    async with opened(path) as store:
        await write(store, new_records(work_item(work_id="before")))
        assert store._writer is not None
        await store._writer.run(lambda raw: raw.execute("PRAGMA max_page_count = 1").fetchall())
        large = new_records(*(work_item(work_id=f"large-{number}", message="x" * 9_000) for number in range(99)))
        with pytest.raises(StoreFailure, match="full"):
            await write(store, large)
        await store._writer.run(lambda raw: raw.execute("PRAGMA max_page_count = 1000000").fetchall())
        await write(store, changed_records(work_item(work_id="before", message="after")))
        assert (await store.read("get_work", work_id="large-0")) == []


async def test_a_broken_database_is_refused_until_it_is_whole_again(path: Path) -> None:
    """Neither the writer nor a reader is stuck with what it once saw: each is opened anew."""
    async with opened(path) as store:
        await write(store, new_records(work_item(work_id="before")))
        assert len(await store.read("receipt_status", work_id="before")) == 1
        by_hand(path, "ALTER TABLE work RENAME TO elsewhere")
        for _ in range(3):
            with pytest.raises(StoreFailure, match="no such table"):
                await load(store, ReadSet(work={"before"}))
            with pytest.raises(StoreFailure, match="no such table"):
                await store.read("receipt_status", work_id="before")
        by_hand(path, "ALTER TABLE elsewhere RENAME TO work")
        await write(store, new_records(work_item(work_id="after")))
        assert len(await store.read("receipt_status", work_id="after")) == 1


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_an_opening_that_is_cancelled_leaves_no_thread_behind(path: Path, steps: int) -> None:
    async with opened(path):
        threads = threading.active_count()
        opening = asyncio.create_task(open_reader(path))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):  # unless it was quicker
            await (await opening).close()
        await eventually(lambda: threading.active_count() == threads, what="the end of the thread")


async def test_an_opening_that_fails_leaves_no_thread_behind(path: Path) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(StoreFailure, match="unable to open"):
        await open_reader(path)
    assert set(threading.enumerate()) <= threads


async def test_a_query_that_fails_keeps_the_reader(path: Path) -> None:
    async with opened(path) as store:
        with pytest.raises(StoreFailure):
            await store.read("get_work")  # a parameter is missing
        assert await store.read("last_seq") == [(0,)]
