"""Group commit on a real store: who is answered what when commands share a transaction, and what is durable then."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError, InternalError, Unavailable, UnknownStep
from counterfoil.domain.events import Event, EventType
from counterfoil.domain.flows import StartFlow
from counterfoil.domain.receipts import Receipts
from counterfoil.domain.results import StepResult
from counterfoil.engine.complete import Complete
from counterfoil.engine.context import EngineContext
from counterfoil.engine.start import Start
from counterfoil.engine.steps import DeleteStep, PutStep
from counterfoil.observability.metrics import Metrics
from counterfoil.store.batch import Batch, Command
from counterfoil.store.commit import CommitUnknown, GroupCommit, StoreFailure
from counterfoil.store.needs import Needs
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.world import World
from counterfoil.testing.simulator import StillClock
from tests.store.backends import load, write
from tests.store.records import DEFAULTS, NOW, RETRY, flow_record, new_records, step_run, step_version, work_item

CLOCK = StillClock(NOW)
CONTEXT = EngineContext(Receipts([b"secret"]), defaults=DEFAULTS, clock=CLOCK)
FULL = "CREATE TRIGGER full BEFORE INSERT ON step_versions BEGIN SELECT RAISE(ABORT, 'disk full'); END"


@dataclass
class Put:
    """Registers a step, and whatever else is asked of it."""

    step_id: str
    then: Callable[[World], Any] = lambda world: None

    def needs(self, needs: Needs) -> None:
        pass

    def decide(self, world: World, now: int) -> str:
        world.register(self.step_id, step_version(self.step_id))
        world.record(Event(EventType.CANCEL_DELIVERED, now, self.step_id, data={}))
        self.then(world)
        return self.step_id


def refuse(_: World) -> None:
    raise UnknownStep("no")


def crash(_: World) -> None:
    raise ZeroDivisionError("a bug")


class Watched:
    """The real store, with a note of what is asked of it."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.batches: list[int] = []

    def execute(self, batch: Batch) -> Awaitable[None]:
        self.batches.append(len(batch))
        return self._store.execute(batch)


@dataclass
class Rig:
    store: SqliteStore
    watched: Watched
    commit: GroupCommit

    async def answers(self, *commands: Command[Any]) -> list[Any]:
        """What becomes of commands that come at once: answers and errors."""
        return await asyncio.gather(*map(self.commit.submit, commands), return_exceptions=True)

    async def steps(self) -> list[str]:
        return [row[0] for row in await self.store.read("list_steps")]

    async def told(self) -> list[str]:
        return [row[3] for row in await self.store.read("journal_after", after=0, limit=999)]

    def by_hand(self, statement: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.store.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def written(self) -> int:
        """How many lines the journal has, as another process sees it."""
        count: int = self.by_hand("SELECT count(*) FROM journal")[0][0]
        return count


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "counterfoil.db", CLOCK, DEFAULTS)
    await store.open()
    yield store
    await store.close()


def group_commit(backend: Watched, backlog: int = 1000, batch: int = 100) -> GroupCommit:
    return GroupCommit(backend, CLOCK, Metrics(), {}, backlog_limit=backlog, batch_limit=batch)


@pytest.fixture
async def rig(store: SqliteStore) -> AsyncIterator[Rig]:
    watched = Watched(store)
    commit = group_commit(watched)
    commit.start()
    yield Rig(store, watched, commit)
    await commit.close()


def kinds(answers: list[Any]) -> list[Any]:
    return [type(answer) if isinstance(answer, Exception) else answer for answer in answers]


async def test_one_transaction_serves_all_that_came_at_once(rig: Rig) -> None:
    assert await rig.answers(*(Put(f"s{number}") for number in range(20))) == [f"s{n}" for n in range(20)]
    assert rig.watched.batches == [20]
    assert len(await rig.steps()) == 20


async def test_bad_commands_do_not_spoil_their_neighbours(rig: Rig) -> None:
    answers = await rig.answers(Put("a"), Put("b", refuse), Put("c"), Put("d", crash), Put("e"), Put("f", refuse))
    assert kinds(answers) == ["a", UnknownStep, "c", InternalError, "e", UnknownStep]
    assert rig.watched.batches == [6]
    assert await rig.steps() == ["a", "c", "e"]
    assert await rig.told() == ["a", "c", "e"], "what was refused left no trace, not even in the journal"


async def test_a_bug_tells_its_client_nothing(rig: Rig) -> None:
    [answer] = await rig.answers(Put("a", crash))
    assert type(answer) is InternalError
    assert "bug" not in str(answer.body())
    assert await rig.answers(Put("a")) == ["a"], "and the writer goes on"


async def test_the_second_of_two_sees_what_the_first_did(rig: Rig) -> None:
    version = step_version()
    assert await rig.answers(PutStep(version), PutStep(version), DeleteStep("step"), PutStep(version)) == [
        True,
        False,
        None,
        True,
    ]
    assert rig.watched.batches == [4]


async def test_the_second_of_two_does_not_see_what_the_first_was_refused(rig: Rig) -> None:
    answers = await rig.answers(Put("step", refuse), PutStep(step_version()))
    assert kinds(answers) == [UnknownStep, True]


async def test_commands_that_change_nothing_are_not_committed(rig: Rig) -> None:
    version = step_version()
    await rig.answers(PutStep(version))
    written = rig.written()
    assert await rig.answers(PutStep(version), PutStep(version)) == [False, False]
    assert rig.written() == written


async def test_what_was_missed_is_looked_at_again_once_it_is_loaded(rig: Rig) -> None:
    await rig.answers(Put("known"))
    looks: list[str] = []

    def look_at(*step_ids: str) -> Callable[[World], None]:
        def look(world: World) -> None:
            looks.append(",".join(step_ids))
            for step_id in step_ids:
                world.current_version(step_id)

        return look

    answers = await rig.answers(
        Put("a", look_at("known")), Put("b", look_at("known", "unknown")), Put("c"), Put("d", look_at("known"))
    )
    assert answers == ["a", "b", "c", "d"]
    assert looks == ["known", "known,unknown", "known"] * 2 + ["known,unknown"], "the others are not decided again"
    assert await rig.steps() == ["a", "b", "c", "d", "known"]
    assert sorted(await rig.told()) == ["a", "b", "c", "d", "known"], "deciding twice tells once"


async def test_what_is_not_there_is_not_looked_for_for_ever(rig: Rig) -> None:
    answers = await rig.answers(Put("a", lambda world: world.version("nowhere")), Put("b"))
    assert kinds(answers) == [InternalError, "b"]


async def test_one_moment_is_the_time_of_a_batch_however_often_it_is_decided(rig: Rig) -> None:
    times: list[int] = []

    class Later(Put):
        def decide(self, world: World, now: int) -> str:
            times.append(now)
            CLOCK.advance(1)
            world.current_version("missed")
            return super().decide(world, now)

    await rig.answers(Later("a"), Later("b"))
    assert len(times) == 4
    assert len(set(times)) == 1


async def test_a_failed_commit_fails_all_and_nothing_is_written(rig: Rig) -> None:
    rig.by_hand(FULL)
    answers = await rig.answers(Put("a"), Put("b", refuse), Put("c"))
    assert kinds(answers) == [Unavailable] * 3
    rig.by_hand("DROP TRIGGER full")
    assert await rig.steps() == []
    assert await rig.told() == []
    assert await rig.answers(Put("a"), Put("c")) == ["a", "c"], "the same may be sent again"


async def test_a_failed_load_fails_all(rig: Rig) -> None:
    rig.by_hand("ALTER TABLE steps RENAME TO elsewhere")
    assert kinds(await rig.answers(PutStep(step_version()), Put("a"))) == [Unavailable] * 2
    assert kinds(await rig.answers(Put("a", lambda world: world.current_version("b")), Put("c"))) == [Unavailable] * 2
    rig.by_hand("ALTER TABLE elsewhere RENAME TO steps")
    assert await rig.answers(PutStep(step_version()), Put("a")) == [True, "a"]


async def test_a_guard_that_refuses_fails_all_and_nothing_is_written(rig: Rig) -> None:
    """A row that is not as the decision saw it: a bug or another program, never something to paper over."""
    version = step_version()
    await rig.answers(PutStep(version))
    await write(
        rig.store, new_records(flow_record(), step_run(version=version.version), work_item(version=version.version))
    )
    rig.by_hand("CREATE TRIGGER stubborn BEFORE UPDATE ON work BEGIN SELECT RAISE(IGNORE); END")
    report = Complete("work", StepResult(success=True), RETRY)
    assert kinds(await rig.answers(report, Put("a"))) == [InternalError] * 2
    assert (await rig.steps(), await rig.told()) == (["step"], [])
    rig.by_hand("DROP TRIGGER stubborn")
    assert kinds(await rig.answers(report))[0].verdict == "accepted"


async def test_past_the_backlog_nothing_is_taken(store: SqliteStore) -> None:
    commit = group_commit(Watched(store), backlog=3)  # not started: everything waits
    waiting = [asyncio.create_task(commit.submit(Put(f"s{number}"))) for number in range(3)]
    await asyncio.sleep(0)
    assert commit.backlog == 3
    with pytest.raises(Unavailable, match="too much is waiting"):
        await commit.submit(Put("one more"))
    assert not commit.enqueue(Put("another"), lambda answer: None)
    commit.start()
    assert await asyncio.gather(*waiting) == ["s0", "s1", "s2"]
    assert await commit.submit(Put("one more")) == "one more"
    await commit.close()


async def test_a_batch_takes_no_more_than_its_limit(store: SqliteStore) -> None:
    watched = Watched(store)
    commit = group_commit(watched, batch=4)
    commit.start()
    await asyncio.gather(*(commit.submit(Put(f"s{number}")) for number in range(10)))
    assert watched.batches == [4, 4, 2]
    await commit.close()


async def test_closing_commits_what_waits_and_takes_nothing_more(store: SqliteStore) -> None:
    commit = group_commit(Watched(store), batch=2)
    waiting = [asyncio.create_task(commit.submit(Put(f"s{number}"))) for number in range(5)]
    await asyncio.sleep(0)
    commit.start()
    await commit.close()
    assert commit.closed
    assert await asyncio.gather(*waiting) == [f"s{number}" for number in range(5)]
    with pytest.raises(Unavailable, match="stopping"):
        await commit.submit(Put("late"))
    assert len(await store.read("list_steps")) == 5


async def test_answers_come_even_while_the_next_batch_is_written(store: SqliteStore) -> None:
    """Under load there is always a next batch: nobody waits for a pause to be answered."""
    commit = group_commit(Watched(store), batch=1)
    commit.start()
    order: list[str] = []

    async def ask(step_id: str) -> None:
        order.append(await commit.submit(Put(step_id)))
        if len(order) < 20:
            order.append(await commit.submit(Put(f"{step_id}-again")))

    await asyncio.gather(*(ask(f"s{number}") for number in range(5)))
    assert order[:5] == [f"s{number}" for number in range(5)], "in the order in which they came"
    assert len(order) == 10
    await commit.close()


async def test_closing_what_was_never_started_is_harmless(store: SqliteStore) -> None:
    await group_commit(Watched(store)).close()


async def test_nobody_is_answered_before_the_commit_and_what_follows_from_it(rig: Rig) -> None:
    story: list[str] = []

    def committed(world: World) -> None:
        story.append(f"committed {sorted(world.changes.current)}: {rig.written()} events are durable")

    rig.commit.committed = committed

    async def ask(step_id: str) -> None:
        await rig.commit.submit(Put(step_id))
        story.append(f"{step_id} answered")

    await asyncio.gather(ask("a"), ask("b"))
    assert story == ["committed ['a', 'b']: 2 events are durable", "a answered", "b answered"]


async def test_what_follows_from_a_commit_cannot_undo_its_answers(rig: Rig) -> None:
    def committed(world: World) -> None:
        raise ZeroDivisionError

    rig.commit.committed = committed
    assert await rig.answers(Put("a"), Put("b")) == ["a", "b"]


async def test_whoever_asked_may_be_gone(rig: Rig) -> None:
    asking = asyncio.create_task(rig.commit.submit(Put("a")))
    await asyncio.sleep(0)
    asking.cancel()
    assert await rig.answers(Put("b")) == ["b"]
    assert await rig.steps() == ["a", "b"], "a command that was taken is carried out"


async def test_one_that_cannot_be_told_does_not_keep_the_others_from_being_told(rig: Rig) -> None:
    told: list[Any] = []

    def fall_over(answer: Any) -> None:
        told.append(answer)
        raise ConnectionResetError("the connection is gone")

    for _ in range(2):
        assert rig.commit.enqueue(Put("a"), fall_over)
        assert await rig.answers(Put("b")) == ["b"]
    assert told == ["a", "a"], "each is told once"
    rig.by_hand(FULL)
    rig.commit.enqueue(Put("c"), fall_over)
    assert kinds(await rig.answers(Put("d"))) == [Unavailable]
    rig.by_hand("DROP TRIGGER full")
    assert await rig.answers(Put("d")) == ["d"], "nor the writer from going on"


async def test_enqueued_commands_are_told_of_refusals_too(rig: Rig) -> None:
    told: list[Any] = []
    rig.commit.enqueue(Put("a", refuse), told.append)
    rig.commit.enqueue(Put("b"), told.append)
    await rig.answers(Put("c"))
    assert kinds(told) == [UnknownStep, "b"]
    assert isinstance(told[0], CounterfoilError)


@pytest.mark.parametrize("last", [PutStep(step_version(name="second")), DeleteStep("step")], ids=["changed", "deleted"])
async def test_a_flow_keeps_a_version_that_was_current_for_a_moment_only(rig: Rig, last: Command[Any]) -> None:
    first = step_version()
    start = Start(StartFlow(flow_id="flow", goals=["step"]), CONTEXT)
    answers = await rig.answers(PutStep(first), start, last)
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert rig.watched.batches == [3]
    world = await load(rig.store, Needs(versions={first.version}))
    assert world.version(first.version) == first, "another process can go on with the flow"


# A commit of which nobody knows whether it holds ------------------------------------------------------------------


class Doubtful(Watched):
    """The real store, but a commit may be in doubt: it was made or not, and who asks learns it when the test allows."""

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


@pytest.fixture
async def doubtful(store: SqliteStore) -> AsyncIterator[tuple[Doubtful, Rig, list[list[str]]]]:
    """The store, a writer on it, and what follows from its commits: the steps that each has changed."""
    backend = Doubtful(store)
    commit = group_commit(backend)
    followed: list[list[str]] = []
    commit.committed = lambda world: followed.append(sorted(world.changes.current))
    commit.start()
    yield backend, Rig(store, backend, commit), followed
    await commit.close()


Doubt = tuple[Doubtful, Rig, list[list[str]]]


async def test_nobody_is_told_that_it_was_done_while_that_is_not_known(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts = [True]
    assert kinds(await rig.answers(Put("a"), Put("b", refuse))) == [Unavailable] * 2
    assert followed == []
    assert backend.asked == 0, "whoever comes next asks"


@pytest.mark.parametrize("holds", [True, False])
async def test_the_next_batch_asks_first_and_what_holds_is_acted_upon_before_it(
    doubtful: Doubt, *, holds: bool
) -> None:
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

    def committed(world: World) -> None:
        raise ZeroDivisionError

    rig.commit.committed = committed
    assert await rig.answers(Put("b")) == ["b"]
    assert backend.asked == 1


async def test_a_bug_in_asking_leaves_the_doubt(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts = [True]
    await rig.answers(Put("a"))
    assert rig.commit._doubtful is not None
    world, resolve = rig.commit._doubtful

    async def broken() -> bool:
        raise ZeroDivisionError

    rig.commit._doubtful = (world, broken)
    assert kinds(await rig.answers(Put("b"))) == [InternalError]
    rig.commit._doubtful = (world, resolve)
    assert await rig.answers(Put("b")) == ["b"]
    assert followed == [["a"], ["b"]]


async def test_a_doubt_keeps_nobody_from_stopping(doubtful: Doubt) -> None:
    backend, rig, followed = doubtful
    backend.doubts, backend.known = [True], False
    await rig.answers(Put("a"))
    waiting = [asyncio.create_task(rig.commit.submit(Put(name))) for name in ("b", "c")]
    await asyncio.sleep(0)
    await rig.commit.close()
    assert kinds(await asyncio.gather(*waiting, return_exceptions=True)) == [Unavailable] * 2
    assert followed == []
