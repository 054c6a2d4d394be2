"""A batch: commands that share a transaction. It knows what they need, and lets each decide.

Pure but for its log lines: a backend loads what it names, asks it to decide, and writes its world's changes, in
whichever thread that backend works. Nothing of the engine that another thread may change is touched from here, except
through the world's capacity, which is made for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import structlog

from counterfoil.domain.errors import CounterfoilError, InternalError
from counterfoil.domain.time import Clock
from counterfoil.store.world import Needs, NotLoaded, World

Answer_co = TypeVar("Answer_co", covariant=True)
Resolve = Callable[[Any], None]
"""Told what became of a command: its answer, or the error that refused it."""

log = structlog.get_logger(__name__)


class Command(Protocol[Answer_co]):
    """Something that changes state: names what it needs, then decides. Deciding is pure but for the world's drafts."""

    def needs(self, needs: Needs) -> None: ...

    def decide(self, world: World, now: int) -> Answer_co: ...


class Batch:
    """Commands in the order in which they came, their world, and in the end their answers."""

    def __init__(self, entries: list[tuple[Command[Any], Resolve]], world: World, clock: Clock) -> None:
        self._entries = entries
        self._clock = clock
        self._undecided = list(range(len(entries)))
        self._looked_for: set[tuple[str, str]] = set()
        self._answers: list[Any] = [None] * len(entries)
        self.world = world
        self.needs = Needs()
        for command, _ in entries:
            command.needs(self.needs)

    def __len__(self) -> int:
        return len(self._entries)

    def decide(self) -> Needs | None:
        """Decide every command; returns what some of them missed, to be loaded and decided again, or None."""
        now = self.world.changes.at = self.world.changes.at or self._clock()
        missed = Needs()
        again = [index for index in self._undecided if not self._decide(index, now, missed)]
        self._undecided = again
        if not again:
            return None
        self._looked_for.update((kind, key) for kind, keys in vars(missed).items() for key in keys)
        return missed

    def _decide(self, index: int, now: int, missed: Needs) -> bool:
        """Decide one command; False when it missed something, which is then noted."""
        command, world = self._entries[index][0], self.world
        try:
            self._answers[index] = command.decide(world, now)
        except NotLoaded as missing:
            world.discard()
            if (missing.kind, missing.key) not in self._looked_for:
                getattr(missed, missing.kind).add(missing.key)
                return False
            # it is not there: looking again would never end
            log.exception("record_missing", command=type(command).__name__, missing=str(missing))
            self._answers[index] = InternalError()
        except CounterfoilError as refusal:
            world.discard()
            self._answers[index] = refusal
        except Exception:
            world.discard()
            log.exception("command_failed", command=type(command).__name__)
            self._answers[index] = InternalError()
        else:
            world.keep()
        return True

    def fail(self, error: CounterfoilError) -> None:
        """The transaction came to nothing: so did every command in it."""
        self._answers = [error] * len(self._entries)

    def answer(self) -> None:
        """Tell everybody what became of his command. Who cannot be told must not keep others from being told."""
        for (_, resolve), answer in zip(self._entries, self._answers, strict=True):
            try:
                resolve(answer)
            except Exception:
                log.exception("answer_lost")
