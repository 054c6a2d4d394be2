"""Commands that were answered together come back together: among other nodes, they wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.store.group_commit import batch_sizes as sharing
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.sqlite.store import SqliteStore
from tests.unit.store.commit_rig import CLOCK, Put, Watched, group_commit


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    store = SqliteStore(tmp_path / "counterfoil.db", CLOCK, WorkDefaults())
    await store.open()
    yield Watched(store)
    await store.close()


@pytest.fixture
async def commit(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GroupCommit]:
    monkeypatch.setattr(sharing, "PATIENCE_AT_REST", 5.0)
    commit = group_commit(watched, batches=2)
    commit.start()
    await asyncio.gather(*(commit.submit(Put(f"first-{number}")) for number in range(8)))
    assert watched.batches == [8]
    yield commit
    await commit.close()


async def come_in_two_groups(commit: GroupCommit) -> None:
    """Eight again, but only after the first four have been seen to wait."""
    first = [asyncio.create_task(commit.submit(Put(f"again-{number}"))) for number in range(4)]
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.gather(*first, *(commit.submit(Put(f"late-{number}")) for number in range(4)))


async def test_a_node_that_is_alone_commits_what_is_there_at_once(commit: GroupCommit, watched: Watched) -> None:
    await come_in_two_groups(commit)
    assert watched.batches == [8, 4, 4]


async def test_among_other_nodes_a_batch_waits_for_commands_that_are_still_to_come(
    commit: GroupCommit, watched: Watched
) -> None:
    commit.sizer.expect_others(1)
    await come_in_two_groups(commit)
    assert watched.batches == [8, 8]


async def test_but_not_for_ever(commit: GroupCommit, watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    commit.sizer.expect_others(1)
    monkeypatch.setattr(sharing, "PATIENCE_AT_REST", 0.01)
    assert await commit.submit(Put("alone")) == "alone"
    assert watched.batches == [8, 1]
