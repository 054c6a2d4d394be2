"""Group commit on a real store: the answers of commands that share a transaction, and what is durable then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError, InternalError, Unavailable, UnknownStep
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.steps.checks import CheckNeeded, Findings, ValueCheck
from counterfoil.domain.work.receipts import Receipts
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.start import Start
from counterfoil.engine.steps import DeleteStep, PutStep
from counterfoil.engine.work.complete import Complete
from counterfoil.store.group_commit.batch import Command
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.sqlite.store import SqliteStore
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.eventually import eventually
from tests.store.backends import load, write
from tests.store.records import DEFAULTS, RETRY, flow_record, new_records, step_run, step_version, work_item
from tests.unit.store.commit_rig import CLOCK, Handlers, Put, Rig, Watched, crash, group_commit, kinds, refuse

CONTEXT = EngineContext(Receipts([b"secret"]), defaults=DEFAULTS, clock=CLOCK)
FULL = "CREATE TRIGGER full BEFORE INSERT ON step_versions BEGIN SELECT RAISE(ABORT, 'disk full'); END"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "counterfoil.db", CLOCK, DEFAULTS)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def rig(store: SqliteStore) -> AsyncIterator[Rig]:
    watched, handlers = Watched(store), Handlers()
    commit = group_commit(watched, handlers=handlers)
    commit.start()
    yield Rig(store, watched, commit, handlers)
    await commit.close()


@pytest.fixture
def checker() -> ByHand:
    return ByHand()


@pytest.fixture
async def checked(store: SqliteStore, checker: ByHand) -> AsyncIterator[Rig]:
    """With checks that the test makes."""
    watched = Watched(store)
    commit = group_commit(watched, checker=checker)
    commit.start()
    yield Rig(store, watched, commit)
    await commit.close()


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

    def look_at(*step_ids: str) -> Callable[[UnitOfWork], None]:
        def look(unit: UnitOfWork) -> None:
            looks.append(",".join(step_ids))
            for step_id in step_ids:
                unit.current_version(step_id)

        return look

    answers = await rig.answers(
        Put("a", look_at("known")), Put("b", look_at("known", "unknown")), Put("c"), Put("d", look_at("known"))
    )
    assert answers == ["a", "b", "c", "d"]
    assert looks == ["known", "known,unknown", "known"] * 2 + ["known,unknown"], "the others are not decided again"
    assert await rig.steps() == ["a", "b", "c", "d", "known"]
    assert sorted(await rig.told()) == ["a", "b", "c", "d", "known"], "deciding twice tells once"


async def test_what_is_not_there_is_not_looked_for_for_ever(rig: Rig) -> None:
    answers = await rig.answers(Put("a", lambda unit: unit.version("nowhere")), Put("b"))
    assert kinds(answers) == [InternalError, "b"]


async def test_one_moment_is_the_time_of_a_batch_however_often_it_is_decided(rig: Rig) -> None:
    times: list[int] = []

    class Later(Put):
        def decide(self, unit: UnitOfWork, now: int) -> str:
            times.append(now)
            CLOCK.advance(1)
            unit.current_version("missed")
            return super().decide(unit, now)

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
    assert kinds(await rig.answers(Put("a", lambda unit: unit.current_version("b")), Put("c"))) == [Unavailable] * 2
    rig.by_hand("ALTER TABLE elsewhere RENAME TO steps")
    assert await rig.answers(PutStep(step_version()), Put("a")) == [True, "a"]


async def test_a_guard_that_refuses_fails_its_command_and_no_other(rig: Rig) -> None:
    """A row that is not as the decision saw it: a bug or another program, never something to paper over."""
    version = step_version()
    await rig.answers(PutStep(version))
    await write(
        rig.store, new_records(flow_record(), step_run(version=version.version), work_item(version=version.version))
    )
    rig.by_hand("CREATE TRIGGER stubborn BEFORE UPDATE ON work BEGIN SELECT RAISE(IGNORE); END")
    report = Complete("work", StepResult(success=True), RETRY)
    assert kinds(await rig.answers(Put("a"), report, Put("b"), Put("c"))) == ["a", InternalError, "b", "c"]
    assert rig.watched.batches == [1, 4, 2, 1, 1, 2], "by halves"
    assert (await rig.steps(), await rig.told()) == (["a", "b", "c", "step"], ["a", "b", "c"])
    assert kinds(await rig.answers(report)) == [InternalError], "nor is it committed when it is alone"
    rig.by_hand("DROP TRIGGER stubborn")
    assert kinds(await rig.answers(report))[0].verdict == "accepted"


async def test_past_the_backlog_nothing_is_taken(store: SqliteStore) -> None:
    commit = group_commit(Watched(store), backlog=3)  # not started: everything waits
    waiting = [asyncio.create_task(commit.submit(Put(f"s{number}"))) for number in range(3)]
    await asyncio.sleep(0)
    assert commit.backlog == 3
    with pytest.raises(Unavailable, match="too many commands are waiting"):
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
    """Under load there is always a next batch: no answer waits for a pause."""
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


async def test_no_command_is_answered_before_the_commit_and_what_follows_from_it(rig: Rig) -> None:
    story: list[str] = []

    def committed(unit: UnitOfWork) -> None:
        story.append(f"committed {sorted(unit.changes.current)}: {rig.written()} events are durable")

    rig.handlers.append(committed)

    async def ask(step_id: str) -> None:
        await rig.commit.submit(Put(step_id))
        story.append(f"{step_id} answered")

    await asyncio.gather(ask("a"), ask("b"))
    assert story == ["committed ['a', 'b']: 2 events are durable", "a answered", "b answered"]


async def test_what_follows_from_a_commit_cannot_undo_its_answers(rig: Rig) -> None:
    def committed(unit: UnitOfWork) -> None:
        raise ZeroDivisionError

    rig.handlers.append(committed)
    assert await rig.answers(Put("a"), Put("b")) == ["a", "b"]


async def test_a_handler_that_fails_does_not_keep_the_next_from_being_called(store: SqliteStore) -> None:
    called: list[GroupCommit] = []

    def broken(unit: UnitOfWork) -> None:
        raise ZeroDivisionError

    commit = group_commit(Watched(store), handlers=[broken], also=[lambda _, own: called.append(own)])
    commit.start()
    assert await commit.submit(Put("a")) == "a"
    assert called == [commit], "and each is given the commit itself"
    await commit.close()


async def test_a_commit_that_changes_nothing_has_no_consequences(rig: Rig) -> None:
    called: list[UnitOfWork] = []
    rig.handlers.append(called.append)
    assert kinds(await rig.answers(Put("a", refuse))) == [UnknownStep]
    assert called == []


async def test_the_caller_may_be_gone(rig: Rig) -> None:
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
    unit = await load(rig.store, ReadSet(versions={first.version}))
    assert unit.version(first.version) == first, "another process can go on with the flow"


# ------------------------------------------------------------------------------------------------ checks that take long


class ByHand:
    """Checks that the test makes."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.has_room = True

    def check(self, checks: Sequence[ValueCheck], done: Callable[[Findings | None], None], *, urgent: bool) -> bool:
        self.asked.append((checks, done, urgent))
        return self.has_room


CHECK = ValueCheck(b"{}", b"1")


def needs_check(unit: UnitOfWork) -> None:
    if CHECK.key not in unit.findings:
        raise CheckNeeded((CHECK,))


async def test_a_command_is_decided_again_when_its_check_was_made(checked: Rig, checker: ByHand) -> None:
    waits = asyncio.create_task(checked.commit.submit(Put("a", needs_check)))
    assert await checked.answers(Put("b")) == ["b"]
    await eventually(lambda: checker.asked, what="the check")
    assert await checked.answers(Put("c")) == ["c"], "nothing waits for it"
    [(checks, done, urgent)] = checker.asked
    assert (tuple(checks), urgent) == ((CHECK,), True)
    assert not waits.done()
    done({CHECK.key: None})
    assert await waits == "a"
    assert await checked.told() == ["b", "c", "a"]


async def test_checks_that_cannot_be_made_are_unavailable(rig: Rig, checked: Rig, checker: ByHand) -> None:
    assert kinds(await rig.answers(Put("a", needs_check))) == [Unavailable]
    checker.has_room = False
    assert kinds(await checked.answers(Put("a", needs_check))) == [Unavailable]
    checker.has_room = True
    waits = asyncio.create_task(checked.commit.submit(Put("a", needs_check)))
    await eventually(lambda: len(checker.asked) == 2, what="the check")
    checker.asked[-1][1](None)
    with pytest.raises(Unavailable):
        await waits
    assert await checked.steps() == []


async def test_a_check_that_ends_when_the_engine_stops_is_of_no_use(store: SqliteStore) -> None:
    checker = ByHand()
    commit = group_commit(Watched(store), checker=checker)
    commit.start()
    waits = asyncio.create_task(commit.submit(Put("a", needs_check)))
    await eventually(lambda: checker.asked, what="the check")
    await commit.close()
    checker.asked[0][1]({CHECK.key: None})
    with pytest.raises(Unavailable, match="stopping"):
        await waits
