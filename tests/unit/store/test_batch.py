"""A batch: rounds until nothing is missed, searches that become commands, and beginning again as if at first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from counterfoil.domain.errors import CounterfoilError, InternalError, Unavailable, UnknownStep
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.policies.controls import Controls
from counterfoil.domain.steps.checks import CheckNeeded, ValueCheck
from counterfoil.store.cache.definitions import DefinitionCache
from counterfoil.store.group_commit.batch import Batch, Command, ForEach
from counterfoil.store.kinds.definitions import CURRENT
from counterfoil.store.kinds.work import WORK
from counterfoil.store.unit_of_work.read_set import Find, NotLoaded, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.testing.simulator import StillClock
from tests.store.records import NOW

SEARCH = Find.of("find_overdue", now=NOW, limit=9)


@dataclass
class Note:
    """Tells the journal of a flow, after having looked at some of the unit."""

    name: str
    look: Callable[[UnitOfWork], Any] = lambda unit: None
    wanted: ReadSet = field(default_factory=ReadSet)
    decided: int = 0

    def needs(self, needs: ReadSet) -> None:
        needs.include(self.wanted)

    def decide(self, unit: UnitOfWork, now: int) -> str:
        self.decided += 1
        unit.record(Event(EventType.CANCEL_DELIVERED, now, self.name, data={}))
        self.look(unit)
        return self.name


def refuse(_: UnitOfWork) -> None:
    raise UnknownStep


def crash(_: UnitOfWork) -> None:
    raise ZeroDivisionError


def look_at(*step_ids: str) -> Callable[[UnitOfWork], None]:
    def look(unit: UnitOfWork) -> None:
        for step_id in step_ids:
            unit.current_version(step_id)

    return look


class Rig:
    """A batch without a database: the test loads what is missed."""

    def __init__(self, *commands: Command[Any]) -> None:
        self.answers: list[Any] = []
        self.units: list[UnitOfWork] = []
        self.clock = StillClock(NOW)
        self.batch = Batch([(command, self.answers.append) for command in commands], self._new_unit, self.clock)

    def _new_unit(self) -> UnitOfWork:
        known = DefinitionCache()
        known.controls = Controls(0)
        self.units.append(UnitOfWork(known))
        return self.units[-1]

    @property
    def told(self) -> list[str]:
        return [event.flow_id for event in self.batch.unit.changes.events]

    def answer(self) -> list[Any]:
        """What the commands are answered: answers, and the kinds of errors."""
        self.batch.answer()
        return [type(each) if isinstance(each, CounterfoilError) else each for each in self.answers]


# Rounds ----------------------------------------------------------------------------------------------------------


def test_what_all_commands_need_is_known_beforehand() -> None:
    rig = Rig(
        Note("a", wanted=ReadSet(work={"w1"}, flows={"f"})), Note("b", wanted=ReadSet(work={"w2"}, finds={SEARCH}))
    )
    assert rig.batch.needs == ReadSet(work={"w1", "w2"}, flows={"f"}, finds={SEARCH})
    assert len(rig.batch) == 2


def test_what_several_missed_is_named_once_and_only_they_are_decided_again() -> None:
    commands = [Note("a", look_at("x")), Note("b"), Note("c", look_at("x", "y"))]
    rig = Rig(*commands)
    assert rig.batch.decide() == ReadSet(steps={"x"})
    rig.batch.unit.records(CURRENT).add("x", None)
    assert rig.batch.decide() == ReadSet(steps={"y"})
    rig.batch.unit.records(CURRENT).add("y", None)
    assert rig.batch.decide() is None
    assert [command.decided for command in commands] == [2, 1, 3]
    assert rig.told == ["b", "a", "c"], "each is told once, in the order in which they were decided"
    assert rig.answer() == ["a", "b", "c"], "and answered in the order in which they came"


def test_what_is_not_there_though_it_was_loaded_is_a_bug_of_that_command_alone() -> None:
    rig = Rig(Note("a", lambda unit: unit.version("nowhere")), Note("b"))
    assert rig.batch.decide() == ReadSet(versions={"nowhere"})
    assert rig.batch.decide() is None
    assert rig.answer() == [InternalError, "b"]
    assert rig.told == ["b"]


def test_bad_commands_leave_no_trace() -> None:
    rig = Rig(Note("a"), Note("b", refuse), Note("c", crash), Note("d"))
    assert rig.batch.decide() is None
    assert rig.told == ["a", "d"]
    assert rig.answer() == ["a", UnknownStep, InternalError, "d"]


def test_a_batch_has_one_time() -> None:
    rig = Rig(Note("a", look_at("x")), Note("b"))
    rig.batch.decide()
    rig.clock.advance(5)
    rig.batch.unit.records(CURRENT).add("x", None)
    rig.batch.decide()
    assert {event.at for event in rig.batch.unit.changes.events} == {NOW}
    assert rig.batch.unit.changes.at == NOW


def test_a_failed_transaction_is_everybodys_failure() -> None:
    rig = Rig(Note("a"), Note("b", refuse), ForEach(SEARCH, Note))
    rig.batch.unit.add_found(SEARCH, [("found",)])
    rig.batch.decide()
    rig.batch.fail(Unavailable("no"))
    assert rig.answer() == [Unavailable] * 3


def test_one_that_cannot_be_told_does_not_keep_the_others_from_being_told() -> None:
    told: list[Any] = []

    def fall_over(answer: Any) -> None:
        raise ConnectionResetError

    batch = Batch([(Note("a"), fall_over), (Note("b"), told.append)], lambda: UnitOfWork({}), StillClock(NOW))
    batch.decide()
    batch.answer()
    assert told == ["b"]


# One command that stands for many --------------------------------------------------------------------------------


def expanded(rig: Rig, *names: str) -> ReadSet | None:
    """Let the search find these, and decide until the commands that they become are to be decided."""
    rig.batch.unit.add_found(SEARCH, [(name,) for name in names])
    return rig.batch.decide()


def test_a_search_is_a_need() -> None:
    assert Rig(ForEach(SEARCH, Note)).batch.needs == ReadSet(finds={SEARCH})
    assert Find.of("find_overdue", now=NOW, limit=9) == SEARCH, "the same search is made once"
    assert Find.of("find_overdue", now=NOW, limit=8) != SEARCH


def test_what_was_found_is_loaded_before_it_is_decided() -> None:
    made: list[Note] = []

    def make(name: str) -> Note:
        made.append(Note(name, lambda unit: unit.work(name), ReadSet(work={name})))
        return made[-1]

    rig = Rig(ForEach(SEARCH, make), Note("beside"))
    assert expanded(rig, "x", "y") == ReadSet(work={"x", "y"})
    assert [note.decided for note in made] == [0, 0]
    for name in ("x", "y"):
        rig.batch.unit.records(WORK).add(name, None)
    assert rig.batch.decide() is None
    assert rig.answer() == [[], "beside"], "unknown work is refused, each item for itself"


def test_its_answer_is_the_list_of_theirs() -> None:
    rig = Rig(Note("before"), ForEach(SEARCH, Note), Note("behind"))
    assert expanded(rig, "x", "y") == ReadSet()
    assert rig.batch.decide() is None
    assert rig.answer() == ["before", ["x", "y"], "behind"]
    assert rig.told == ["before", "behind", "x", "y"], "they stand behind all others"


def test_a_search_that_found_nothing_is_answered_with_nothing() -> None:
    rig = Rig(ForEach(SEARCH, Note))
    assert expanded(rig) is None
    assert rig.answer() == [[]]


@pytest.mark.parametrize("poison", [refuse, crash])
def test_one_poisoned_item_does_not_spoil_the_others(poison: Callable[[UnitOfWork], None]) -> None:
    rig = Rig(ForEach(SEARCH, lambda name: Note(name, poison if name == "poison" else look_at())), Note("beside"))
    expanded(rig, "x", "poison", "y")
    assert rig.batch.decide() is None
    assert rig.answer() == [["x", "y"], "beside"]
    assert rig.told == ["beside", "x", "y"]


def test_what_an_item_misses_is_loaded_and_only_that_item_is_decided_again() -> None:
    notes = {name: Note(name, look_at("x") if name == "y" else look_at()) for name in "xyz"}
    rig = Rig(ForEach(SEARCH, notes.__getitem__))
    expanded(rig, *notes)
    assert rig.batch.decide() == ReadSet(steps={"x"})
    rig.batch.unit.records(CURRENT).add("x", None)
    assert rig.batch.decide() is None
    assert [note.decided for note in notes.values()] == [1, 2, 1]
    assert rig.answer() == [["x", "y", "z"]]


def test_what_cannot_even_be_made_is_the_fault_of_the_whole_search() -> None:
    def make(name: str) -> Note:
        raise ZeroDivisionError

    rig = Rig(ForEach(SEARCH, make), Note("beside"))
    assert expanded(rig, "x") is None
    assert rig.answer() == [InternalError, "beside"]


def test_two_searches_keep_their_answers_apart() -> None:
    other = Find.of("find_overdue", now=NOW, limit=1)
    rig = Rig(ForEach(SEARCH, Note), ForEach(other, lambda name: Note(f"other {name}")))
    rig.batch.unit.add_found(other, [("x",)])
    expanded(rig, "x", "y")
    assert rig.batch.decide() is None
    assert rig.answer() == [["x", "y"], ["other x"]]


def test_a_list_that_is_no_search_is_just_an_answer() -> None:
    class Listing(Note):
        def decide(self, unit: UnitOfWork, now: int) -> Any:
            return ["a", "b"]

    rig = Rig(Listing("a"))
    assert rig.batch.decide() is None
    assert rig.answer() == [["a", "b"]]


# Beginning again -------------------------------------------------------------------------------------------------


@pytest.fixture
def missing() -> list[Note]:
    return [Note("a", look_at("x")), Note("b"), Note("c", refuse)]


def test_a_batch_that_begins_again_knows_nothing_but_what_it_will_miss(missing: list[Note]) -> None:
    rig = Rig(*missing)
    rig.batch.decide()
    rig.clock.advance(5)
    rig.batch.restart()
    assert len(rig.units) == 2
    assert rig.batch.unit is rig.units[1]
    assert not rig.batch.unit.changes.any()
    assert rig.batch.needs == ReadSet(steps={"x"}), "locked and loaded at the beginning, this time"
    rig.batch.unit.records(CURRENT).add("x", None)
    assert rig.batch.decide() is None
    assert rig.told == ["a", "b"]
    assert rig.batch.unit.changes.at == NOW + 5, "another time as well"
    assert rig.answer() == ["a", "b", UnknownStep]


def test_what_was_missed_in_every_attempt_is_remembered() -> None:
    rig = Rig(Note("a", look_at("x", "y")))
    rig.batch.decide()
    rig.batch.restart()
    rig.batch.unit.records(CURRENT).add("x", None)
    assert rig.batch.decide() == ReadSet(steps={"y"})
    rig.batch.restart()
    assert rig.batch.needs == ReadSet(steps={"x", "y"})


def test_it_may_begin_again_when_it_was_decided_already(missing: list[Note]) -> None:
    """The transaction may fail as late as in its commit."""
    rig = Rig(*missing)
    for _ in range(3):
        rig.batch.restart()
        rig.batch.unit.records(CURRENT).add("x", None)
        assert rig.batch.decide() is None
    assert rig.told == ["a", "b"]
    assert rig.answer() == ["a", "b", UnknownStep], "every command is answered once"


def test_a_search_is_made_again_and_what_was_found_before_is_forgotten() -> None:
    rig = Rig(ForEach(SEARCH, lambda name: Note(name, wanted=ReadSet(work={name}))), Note("beside"))
    assert expanded(rig, "x", "y") == ReadSet(work={"x", "y"})
    rig.batch.decide()
    rig.batch.restart()
    assert rig.batch.needs == ReadSet(finds={SEARCH}), "another node may have them by now"
    assert expanded(rig, "z") == ReadSet(work={"z"})
    assert rig.batch.decide() is None
    assert rig.answer() == [["z"], "beside"]
    assert rig.told == ["beside", "z"]


@pytest.mark.parametrize("load", ["approvals", "reconciliations", "waiters"])
def test_what_the_lock_of_a_flow_covers_is_not_looked_for_without_it(load: str) -> None:
    """The flow was locked because a search found it, and the search may not find it again."""

    def look(unit: UnitOfWork) -> None:
        raise NotLoaded(load, "x")

    rig = Rig(ForEach(SEARCH, lambda name: Note(name, look)))
    expanded(rig, "x")
    assert rig.batch.decide() == ReadSet(**{load: {"x"}})
    rig.batch.restart()
    assert rig.batch.needs == ReadSet(finds={SEARCH})


def test_a_search_that_found_something_may_find_nothing_the_next_time() -> None:
    rig = Rig(ForEach(SEARCH, Note))
    expanded(rig, "x")
    rig.batch.decide()
    rig.batch.restart()
    assert expanded(rig) is None
    assert rig.answer() == [[]]
    assert rig.told == []


# Checks that take long -------------------------------------------------------------------------------------------

CHECK, OTHER = ValueCheck(b"{}", b"1"), ValueCheck(b"{}", b"2")


def need(check: ValueCheck) -> Callable[[UnitOfWork], None]:
    def look(_: UnitOfWork) -> None:
        raise CheckNeeded((check,))

    return look


def test_a_command_that_needs_a_check_is_postponed_and_leaves_no_trace() -> None:
    waits = Note("b", need(CHECK))
    rig = Rig(Note("a"), waits, Note("c"))
    assert rig.batch.decide() is None
    postponed: list[Any] = []
    rig.batch.answer(lambda *told: postponed.append(told))
    assert rig.answers == ["a", "c"]
    assert rig.told == ["a", "c"]
    [(command, resolve, needed)] = postponed
    assert command is waits
    assert needed.checks == (CHECK,)
    resolve("later")
    assert rig.answers == ["a", "c", "later"]


@pytest.mark.parametrize("rest", [["b", "c"], Unavailable()])
def test_a_search_whose_finds_need_checks_is_postponed_and_remembers_what_was_done(rest: Any) -> None:
    looks = {"b": need(CHECK), "c": need(OTHER), "d": refuse}
    search = ForEach(SEARCH, lambda name: Note(name, looks.get(name, lambda unit: None)))
    rig = Rig(search)
    expanded(rig, "a", "b", "c", "d")
    rig.batch.decide()
    postponed: list[Any] = []
    rig.batch.answer(lambda *told: postponed.append(told))
    assert rig.answers == []
    [(command, resolve, needed)] = postponed
    assert command is search
    assert needed.checks == (CHECK, OTHER)
    resolve(rest)
    assert rig.answers == [["a", *rest] if isinstance(rest, list) else ["a"]]


def test_what_waits_for_a_check_is_refused_with_its_batch() -> None:
    rig = Rig(Note("a", need(CHECK)))
    rig.batch.decide()
    rig.batch.fail(Unavailable())
    assert rig.answer() == [Unavailable]


def test_without_a_checker_long_checks_are_unavailable() -> None:
    rig = Rig(Note("a", need(CHECK)))
    rig.batch.decide()
    assert rig.answer() == [Unavailable]
