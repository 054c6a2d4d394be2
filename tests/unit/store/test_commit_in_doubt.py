"""A commit with an unknown outcome: nothing is answered or written until the database has told the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from counterfoil.domain.errors import InternalError, Unavailable
from counterfoil.store.group_commit.batch import Batch
from counterfoil.store.group_commit.commit import CommitUnknown, StoreFailure
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.records import DEFAULTS
from tests.unit.store.commit_rig import CLOCK, Handlers, Put, Rig, Watched, group_commit, kinds, refuse


class Doubtful(Watched):
    """The real store, but a commit may be in doubt: whether it was made is told when the test allows."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store)
        self.doubts: list[bool] = []
        """What becomes of the next commits: whether they hold. Commits that are not named here are answered."""
        self.known = True
        self.asked = 0

    def execute(self, batch: Batch) -> Awaitable[None]:
        return self._execute(batch) if self.doubts else super().execute(batch)

    async def _execute(self, batch: Batch) -> None:
        holds = self.doubts.pop(0)
        if holds:
            await super().execute(batch)

        async def resolve() -> bool:
            self.asked += 1
            if not self.known:
                raise StoreFailure("the database is still away")
            return holds

        raise CommitUnknown(resolve)


Doubt = tuple[Doubtful, Rig, list[list[str]]]


@pytest.fixture
async def doubtful(tmp_path: Path) -> AsyncIterator[Doubt]:
    """The store, a writer on it, and what follows from its commits: the steps that each has changed."""
    store = SqliteStore(tmp_path / "counterfoil.db", CLOCK, DEFAULTS)
    await store.open()
    backend = Doubtful(store)
    followed: list[list[str]] = []
    handlers: Handlers = [lambda unit: followed.append(sorted(unit.changes.current))]
    commit = group_commit(backend, handlers=handlers)
    commit.start()
    yield backend, Rig(store, backend, commit, handlers), followed
    await commit.close()
    await store.close()


async def test_no_command_is_answered_as_done_while_that_is_not_known(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts = [True]
    assert kinds(await rig.answers(Put("a"), Put("b", refuse))) == [Unavailable] * 2
    assert followed == []
    assert backend.asked == 0, "the next batch asks"


@pytest.mark.parametrize("holds", [True, False])
async def test_the_next_batch_asks_and_what_holds_is_acted_upon_before_it(doubtful: Doubt, *, holds: bool) -> None:
    backend, rig, followed = doubtful
    backend.doubts = [holds]
    await rig.answers(Put("a"))
    assert await rig.answers(Put("b")) == ["b"]
    assert followed == ([["a"], ["b"]] if holds else [["b"]])
    assert await rig.steps() == (["a", "b"] if holds else ["b"])
    assert await rig.answers(Put("c")) == ["c"]
    assert (backend.asked, followed[-1]) == (1, ["c"]), "it is settled once"


@pytest.mark.parametrize("holds", [True, False])
async def test_nothing_is_written_as_long_as_it_cannot_be_told(doubtful: Doubt, *, holds: bool) -> None:
    backend, rig, followed = doubtful
    backend.doubts, backend.known = [holds], False
    await rig.answers(Put("a"))
    written = rig.written()
    for number in range(1, 4):
        assert kinds(await rig.answers(Put("b"))) == [Unavailable]
        assert (backend.asked, rig.written(), followed) == (number, written, [])
    backend.known = True
    assert await rig.answers(Put("b")) == ["b"]
    assert followed == ([["a"], ["b"]] if holds else [["b"]])


async def test_the_batch_that_asks_may_itself_be_in_doubt(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts = [True, False, True]
    for name in ("a", "b", "c"):
        assert kinds(await rig.answers(Put(name))) == [Unavailable]
    assert await rig.answers(Put("d")) == ["d"]
    assert followed == [["a"], ["c"], ["d"]]
    assert await rig.steps() == ["a", "c", "d"]


async def test_what_follows_from_a_commit_that_holds_cannot_keep_the_next_from_being_written(doubtful: Doubt) -> None:
    backend, rig, _ = doubtful
    backend.doubts = [True]
    await rig.answers(Put("a"))

    def committed(unit: UnitOfWork) -> None:
        raise ZeroDivisionError

    rig.handlers.append(committed)
    assert await rig.answers(Put("b")) == ["b"]
    assert backend.asked == 1


async def test_a_bug_in_asking_leaves_the_doubt(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts = [True]
    await rig.answers(Put("a"))
    [(unit, resolve)] = rig.commit._doubtful

    async def broken() -> bool:
        raise ZeroDivisionError

    rig.commit._doubtful = [(unit, broken)]
    assert kinds(await rig.answers(Put("b"))) == [InternalError]
    rig.commit._doubtful = [(unit, resolve)]
    assert await rig.answers(Put("b")) == ["b"]
    assert followed == [["a"], ["b"]]


async def test_a_doubt_does_not_keep_the_writer_from_stopping(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts, backend.known = [True], False
    await rig.answers(Put("a"))
    waiting = [asyncio.create_task(rig.commit.submit(Put(name))) for name in ("b", "c")]
    await asyncio.sleep(0)
    await rig.commit.close()
    assert kinds(await asyncio.gather(*waiting, return_exceptions=True)) == [Unavailable] * 2
    assert followed == []
