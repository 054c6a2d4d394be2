"""A batch: commands that share a transaction. It knows what they need, and lets each decide.

Pure but for its log lines: a backend loads what it names, asks it to decide, and writes its unit's changes, in
whichever thread that backend works. Nothing of the engine that another thread may change is touched from here, except
through the unit's capacity, which is made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import structlog

from counterfoil.domain.errors import CounterfoilError, InternalError, Unavailable
from counterfoil.domain.steps.checks import CheckNeeded
from counterfoil.domain.subscriptions.notices import deliveries_of, filtered_by_labels, notices_of
from counterfoil.domain.time import Clock
from counterfoil.store.kinds.approvals import APPROVALS
from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.subscriptions import DELIVERIES
from counterfoil.store.unit_of_work.read_set import Find, NotLoaded, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork

Answer = TypeVar("Answer")
Answer_co = TypeVar("Answer_co", covariant=True)
Resolve = Callable[[Any], None]
"""Told what became of a command: its answer, or the error that refused it."""
Entry = tuple["Command[Any]", Resolve]
Postpone = Callable[["Command[Any]", Resolve, CheckNeeded], None]
"""Takes a command that cannot be decided before some values are checked."""

log = structlog.get_logger(__name__)


class Command(Protocol[Answer_co]):
    """Something that changes state: names what it needs, then decides. Deciding is pure but for the unit's drafts."""

    def needs(self, needs: ReadSet) -> None: ...

    def decide(self, unit: UnitOfWork, now: int) -> Answer_co: ...


def _refuse(_command: Command[Any], resolve: Resolve, _needed: CheckNeeded) -> None:
    resolve(Unavailable("a value cannot be checked against its schema now; retry later"))


class ReadOnlyCommand:
    """Marks commands that change nothing: what they wait for can wait until those that do have had theirs."""


class ForEach(Generic[Answer]):
    """A command that stands for many: one for each row that a search finds, decided and refused apart from each other.

    Its answer is the list of theirs, without those that were refused. ``only``: the rows that count, if not all do.
    """

    def __init__(
        self, find: Find, make: Callable[..., Command[Answer]], only: Sequence[tuple[Any, ...]] | None = None
    ) -> None:
        self._find = find
        self._make = make
        self._only = None if only is None else frozenset(only)

    def needs(self, needs: ReadSet) -> None:
        needs.finds.add(self._find)

    def decide(self, unit: UnitOfWork, now: int) -> list[Answer]:
        """The commands that it stands for: the batch puts their answers in their place."""
        return cast("list[Answer]", [self._make(*row) for row in self._rows(unit)])

    def halves(self, unit: UnitOfWork) -> list[ForEach[Answer]]:
        """The same search twice, each for one half of the rows that it found; none if there was one row at most."""
        rows = self._rows(unit)
        middle = len(rows) // 2
        return [ForEach(self._find, self._make, part) for part in (rows[:middle], rows[middle:])] if middle else []

    def _rows(self, unit: UnitOfWork) -> list[tuple[Any, ...]]:
        found = unit.found(self._find)
        return found if self._only is None else [row for row in found if row in self._only]


class Batch:
    """Commands in the order in which they came, their unit, and in the end their answers."""

    def __init__(self, entries: list[Entry], make_unit: Callable[[], UnitOfWork], clock: Clock) -> None:
        self._entries = entries
        self._make_unit = make_unit
        self._clock = clock
        self._missed = ReadSet()
        self.restarted = False
        """Whether this is not the first try."""
        self._begin()

    def _begin(self) -> None:
        self._commands = [command for command, _ in self._entries]
        self._standing_for: dict[int, range] = {}
        self._looked_for: set[tuple[str, Any]] = set()
        self._answers: list[Any] = [None] * len(self._commands)
        self._postpones = False
        """Whether some command cannot be decided yet."""
        self.unit = self._make_unit()
        self.needs = ReadSet()
        self.unit.want_controls(self.needs)
        self._undecided = self._collect_needs(range(len(self._commands)), self.needs)
        self.needs.include(self._missed)

    def _collect_needs(self, places: range, needs: ReadSet) -> list[int]:
        """Add what these commands need; returns those that can be decided. One that raises is answered, as a bug."""
        able = []
        for place in places:
            command = self._commands[place]
            try:
                command.needs(needs)
            except Exception:
                log.exception("command_failed", command=type(command).__name__)
                self._answers[place] = InternalError()
            else:
                able.append(place)
        return able

    def restart(self) -> None:
        """The transaction was rolled back and is tried again, in a new unit that loads at once what was missed."""
        self.unit.capacity.give_back()
        self.unit.capacity.retract()
        self.restarted = True
        # A search may not find again what it found, and so locked: then nothing locks the flows of the records that
        # were missed, and the batch would restart forever. A command that needs them misses them again.
        for load in KINDS.covered:
            getattr(self._missed, load).clear()
        self._begin()

    def __len__(self) -> int:
        return len(self._entries)

    def decide(self) -> ReadSet | None:
        """Decide every command; returns what some of them missed, to be loaded and decided again, or None."""
        now = self.unit.changes.at = self.unit.changes.at or self._clock()
        missed = ReadSet()
        again = [index for index in self._undecided if not self._decide(index, now, missed)]
        self._missed.include(missed)
        again += self._expand(missed)
        self._undecided = again
        if not again and not self._tell(missed):
            return None
        self._looked_for.update(missed.items())
        return missed

    def _tell(self, missed: ReadSet) -> bool:
        """Note what subscribers are told of what was decided; True: some labels are missed first, which is noted."""
        unit, changes = self.unit, self.unit.changes
        audience = unit.audience()
        if not audience:
            return False
        events, approvals, labels = changes.events, changes.peek(APPROVALS), unit.labels()
        needed = filtered_by_labels(notices_of(events, approvals, audience), audience) - labels.keys()
        unseen = {flow_id for flow_id in needed if ("inputs", flow_id) not in self._looked_for}
        if unseen:
            missed.inputs.update(unseen)
            self._missed.inputs.update(unseen)
            return True
        for delivery in deliveries_of(events, approvals, audience, labels, unit.new_id, changes.at):
            unit.records(DELIVERIES).put(delivery.delivery_id, delivery)
        unit.keep()
        return False

    def _decide(self, index: int, now: int, missed: ReadSet) -> bool:
        """Decide one command; False when it missed something, which is then noted."""
        command, unit = self._commands[index], self.unit
        try:
            self._answers[index] = command.decide(unit, now)
        except NotLoaded as missing:
            unit.discard()
            unseen = missing.wanted - self._looked_for
            for load, key in unseen:
                missed.add(load, key)
            if unseen:
                return False
            # it is not there: looking again would never end
            log.exception("record_missing", command=type(command).__name__, missing=str(missing))
            self._answers[index] = InternalError()
        except CounterfoilError as refusal:
            unit.discard()
            self._answers[index] = refusal
        except CheckNeeded as needed:
            unit.discard()
            self._answers[index] = needed
            self._postpones = True
        except Exception:
            unit.discard()
            log.exception("command_failed", command=type(command).__name__)
            self._answers[index] = InternalError()
        else:
            unit.keep()
        return True

    def _expand(self, missed: ReadSet) -> list[int]:
        """Put the commands that a ``ForEach`` stands for behind all others; returns their places."""
        added: list[int] = []
        for index, (command, _) in enumerate(self._entries):
            found = self._answers[index]
            if not isinstance(command, ForEach) or index in self._standing_for or not isinstance(found, list):
                continue
            first = len(self._commands)
            self._commands += found
            self._answers += [None] * len(found)
            self._standing_for[index] = range(first, len(self._commands))
            added += self._collect_needs(self._standing_for[index], missed)
        return added

    def fail(self, error: CounterfoilError) -> None:
        """The transaction was rolled back: every command in it fails."""
        self.unit.capacity.retract()
        self._standing_for = {}
        self._postpones = False
        self._answers = [error] * len(self._entries)

    def split(self) -> list[list[Entry]]:
        """Two parts of a batch that was rolled back, in the order of its commands; none if only one command is left.

        The parts are batches of their own, and this one is left without commands. A ``ForEach`` that is alone is split
        by the rows that it found.
        """
        entries = self._entries if len(self._entries) > 1 else _halves(self._entries[0], self.unit)
        middle = len(entries) // 2
        if not middle:
            return []
        self._entries = []
        self.fail(InternalError())
        return [entries[:middle], entries[middle:]]

    def refuse(self) -> str:
        """Fail the one command that is left, or the one that it stands for, as a bug; returns its name."""
        stands_for_another = 0 in self._standing_for
        self.fail(InternalError())
        if stands_for_another:  # which is left out of the answer, as if it had failed when it was decided
            self._answers = [[]]
        return type(self._commands[-1]).__name__

    def answer(self, postpone: Postpone = _refuse) -> None:
        """Resolve every command, or postpone it. A failing callback must not block the others."""
        for index, (command, resolve) in enumerate(self._entries):
            answer = self._answers[index]
            try:
                if index in self._standing_for:
                    answers = [self._answers[place] for place in self._standing_for[index]]
                    self._answer_each(command, resolve, answers, postpone)
                elif self._postpones and isinstance(answer, CheckNeeded):
                    postpone(command, resolve, answer)
                else:
                    resolve(answer)
            except Exception:
                log.exception("answer_lost")

    @staticmethod
    def _answer_each(command: Command[Any], resolve: Resolve, answers: list[Any], postpone: Postpone) -> None:
        """Resolve a ``ForEach``; if some of its commands cannot be decided yet it searches again for what is left."""
        done = [each for each in answers if not isinstance(each, CounterfoilError | CheckNeeded)]
        checks = tuple(check for each in answers if isinstance(each, CheckNeeded) for check in each.checks)
        if checks:
            postpone(command, partial(_resolve_rest, resolve, done), CheckNeeded(checks))
        else:
            resolve(done)


class _Joined:
    """Resolves a command whose halves are resolved apart, once both are: with all that came of them.

    Only if nothing was done at all, it is resolved with what prevented that.
    """

    def __init__(self, resolve: Resolve, halves: int) -> None:
        self._resolve = resolve
        self._left = halves
        self._done: list[Any] = []
        self._error: CounterfoilError | None = None

    def __call__(self, answer: list[Any] | CounterfoilError) -> None:
        if isinstance(answer, CounterfoilError):
            self._error = answer
        else:
            self._done += answer
        self._left -= 1
        if not self._left:
            self._resolve(self._error if self._error is not None and not self._done else self._done)


def _halves(entry: Entry, unit: UnitOfWork) -> list[Entry]:
    command, resolve = entry
    halves = command.halves(unit) if isinstance(command, ForEach) else []
    joined = _Joined(resolve, len(halves))
    return [(half, joined) for half in halves]


def answer_all(entries: Iterable[Entry], error: CounterfoilError) -> None:
    """Resolve commands that never came into a batch. A failing callback must not block the others."""
    for _, resolve in entries:
        try:
            resolve(error)
        except Exception:
            log.exception("answer_lost")


def _resolve_rest(resolve: Resolve, done: list[Any], rest: list[Any] | CounterfoilError) -> None:
    resolve(done if isinstance(rest, CounterfoilError) else done + rest)
