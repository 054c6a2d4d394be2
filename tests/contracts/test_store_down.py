"""A dedup store that does not answer: what is refused, what goes on, and what is never reported as recorded."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from counterfoil.contracts import (
    DedupStore,
    DedupUnavailable,
    EngineDedupStore,
    NotRecorded,
    PostgresDedupStore,
    SqliteDedupStore,
    ToolFailure,
)
from tests.acceptance.processes import EngineProcess
from tests.contracts.refunds import TOOL, Provider, Refunded, asked, refunding
from tests.databases import NewCluster
from tests.integration.people import KEYED

REFUSED = ["write-non-idempotent", "irreversible"]


@dataclass
class Breakable:
    """A store, and how it is taken away and given back."""

    store: DedupStore
    stop: Callable[[], Awaitable[Any]]
    start: Callable[[], Awaitable[Any]]


def sqlite_file(tmp_path: Path) -> Breakable:
    """Another process has locked the file: it can be neither written nor recovered."""
    path = tmp_path / "effects.db"
    other = sqlite3.connect(path, isolation_level=None)

    async def lock() -> None:
        other.execute("PRAGMA journal_mode = WAL").fetchall()
        other.execute("BEGIN EXCLUSIVE")

    async def unlock() -> None:
        if other.in_transaction:
            other.execute("ROLLBACK")

    return Breakable(SqliteDedupStore(path, busy_timeout=0.05), lock, unlock)


@pytest.fixture(params=["sqlite", "postgresql", "engine"])
async def breakable(
    request: pytest.FixtureRequest, tmp_path: Path, new_cluster: NewCluster
) -> AsyncIterator[Breakable]:
    engine: EngineProcess | None = None
    if request.param == "sqlite":
        made = sqlite_file(tmp_path)
    elif request.param == "postgresql":
        cluster = new_cluster()

        async def stop() -> None:
            cluster.stop("immediate")

        async def start() -> None:
            cluster.start()

        made = Breakable(PostgresDedupStore(cluster.dsn("postgres"), timeout=2), stop, start)
    else:
        engine = EngineProcess(tmp_path / "engine", {"log_level": "warning"})
        await engine.start()
        made = Breakable(EngineDedupStore(engine.url, timeout=5), engine.kill, engine.start)
    yield made
    await made.store.aclose()
    if engine is not None:
        await engine.stop()


async def no_pause(seconds: float) -> None:
    """Retries of the record follow each other at once."""


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.mark.parametrize("effect", REFUSED)
async def test_writes_that_cannot_be_recognised_again_are_refused(
    breakable: Breakable, provider: Provider, effect: Any
) -> None:
    refund = refunding(provider, breakable.store, effect)
    await refund(asked("before"))
    await breakable.stop()
    for key in ("before", "new"):
        with pytest.raises(DedupUnavailable) as refused:
            await refund(asked(key))
        assert refused.value.retriable
    assert provider.executions == 1
    await breakable.start()
    assert (await refund(asked("before"))).refund_id == "r-1"
    assert (await refund(asked("new"))).refund_id == "r-2"


async def test_reads_and_idempotent_writes_go_on(breakable: Breakable, provider: Provider) -> None:
    await refunding(provider, breakable.store, "write-idempotent")(asked())
    await breakable.stop()
    for effect in ("read", "write-idempotent"):
        assert await refunding(provider, breakable.store, effect)(asked("other")) == Refunded(
            refund_id=f"r-{provider.executions}", amount_minor=1_400
        )
    assert provider.executions == 3


@pytest.mark.parametrize("effect", REFUSED)
@pytest.mark.parametrize("failure", [None, ToolFailure("CARD_EXPIRED")], ids=["success", "failure"])
async def test_an_outcome_that_cannot_be_recorded_is_no_success(
    breakable: Breakable, provider: Provider, effect: Any, failure: ToolFailure | None
) -> None:
    async def store_goes_down() -> None:
        await breakable.stop()
        if failure is not None:
            raise failure

    refund = refunding(provider, breakable.store, effect, sleep=no_pause)
    provider.before = [store_goes_down]
    with pytest.raises(NotRecorded) as unrecorded:
        await refund(asked())
    assert not unrecorded.value.retriable
    assert unrecorded.value.failure is failure
    assert unrecorded.value.result == (None if failure else Refunded(refund_id="r-1", amount_minor=1_400))
    await breakable.start()
    shown = await breakable.store.show(TOOL, "k")
    assert shown is not None
    assert shown.state == "pending"


async def test_an_outcome_is_recorded_when_the_store_comes_back_in_time(
    breakable: Breakable, provider: Provider
) -> None:
    pauses: list[float] = []

    async def comes_back(seconds: float) -> None:
        pauses.append(seconds)
        await breakable.start()

    refund = refunding(provider, breakable.store, sleep=comes_back)
    provider.before = [breakable.stop]
    first = await refund(asked())
    assert (await refund(asked()), provider.executions, pauses) == (first, 1, [0.1])


async def test_an_idempotent_write_is_answered_though_it_could_not_be_recorded(
    breakable: Breakable, provider: Provider
) -> None:
    provider.before = [breakable.stop]
    refund = refunding(provider, breakable.store, "write-idempotent", sleep=no_pause)
    assert (await refund(asked())).refund_id == "r-1"


@pytest.mark.parametrize("damage", ["no directory", "a directory", "no database"])
async def test_a_file_that_is_no_database_is_an_unavailable_store(
    tmp_path: Path, provider: Provider, damage: str
) -> None:
    path = tmp_path / "effects.db"
    if damage == "no directory":
        path = tmp_path / "absent" / "effects.db"
    elif damage == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"no database at all" * 1_000)
    store = SqliteDedupStore(path)
    with pytest.raises(DedupUnavailable):
        await refunding(provider, store)(asked())
    assert provider.executions == 0
    store.close()


async def test_an_engine_that_refuses_the_api_key_is_an_unavailable_store(tmp_path: Path, provider: Provider) -> None:
    engine = EngineProcess(tmp_path / "engine", {"log_level": "warning", **KEYED})
    await engine.start()
    async with EngineDedupStore(engine.url, "wrong") as store:
        with pytest.raises(DedupUnavailable) as refused:
            await refunding(provider, store)(asked())
    assert "401" in str(refused.value.__cause__)
    await engine.stop()
