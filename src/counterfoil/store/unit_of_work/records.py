"""Records of one kind in a unit of work: as loaded, and as the commands of the batch leave them.

A command changes records in their place, and what was there before is remembered until the command is kept or
discarded. There is no other way to change a record, so there is one way to roll back.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from counterfoil.store.unit_of_work.read_set import NotLoaded

if TYPE_CHECKING:
    from counterfoil.store.kinds.kind import Kind
    from counterfoil.store.unit_of_work.changes import Changes

Key = TypeVar("Key")
R = TypeVar("R")


class NeverLoaded:
    """Stands for a record of which was not known whether it exists."""


NEVER_LOADED = NeverLoaded()


class Missing(Exception):
    """A record does not exist of which an event tells: a bug."""


class Records(Generic[Key, R]):
    """Records by key, where None is one that does not exist.

    Loaded records are never changed: ``draft`` gives a copy to change, ``put`` takes a record in the place of another.
    """

    __slots__ = ("_changed", "before", "current", "kind")

    def __init__(self, kind: Kind[Key, R], changed: list[Records[Any, Any]]) -> None:
        self.kind = kind
        self._changed = changed
        """The kinds that the present command has changed, over the whole unit of work."""
        self.current: dict[Key, R | None] = {}
        """As the present command sees them."""
        self.before: dict[Key, R | NeverLoaded | None] = {}
        """What the present command has changed, as it was before."""

    def add(self, key: Key, record: R | None) -> None:
        """A record as it was loaded. What is known already stays: the batch may have changed it meanwhile."""
        self.current.setdefault(key, record)

    def get(self, key: Key) -> R | None:
        """The record; raises NotLoaded."""
        try:
            return self.current[key]
        except KeyError:
            raise self.not_loaded(key) from None

    def existing(self, key: Key) -> R:
        """The record; raises NotLoaded, or what the kind declares if it does not exist."""
        record = self.get(key)
        if record is None:
            raise self.kind.unknown() if self.kind.unknown is not None else Missing(f"{self.kind.name} {key}")
        return record

    def peek(self, key: Key) -> R | None:
        """The record, if it was loaded at all."""
        return self.current.get(key)

    def not_loaded(self, key: Key) -> NotLoaded:
        return NotLoaded(self.kind.load_name, self.kind.wanted(key))

    def put(self, key: Key, record: R | None) -> None:
        """Make or replace a record; None: remove it."""
        before = self.before
        if key not in before:
            if not before:
                self._changed.append(self)
            before[key] = self.current.get(key, NEVER_LOADED)
        self.current[key] = record

    def draft(self, key: Key) -> R:
        """A record to be changed by the present command: a copy, unless the command has one already."""
        before = self.before
        record = self.current.get(key)
        if record is None:
            record = self.existing(key)
        if key in before:
            return record
        if not before:
            self._changed.append(self)
        before[key] = record
        recorded: Any = record  # only a Record is ever drafted; a cast would cost a call
        draft: R = recorded.draft()
        self.current[key] = draft
        return draft

    def is_new(self, key: Key) -> bool:
        """Whether the present command has made it."""
        return key in self.before and _did_not_exist(self.before[key])

    def keep(self, changes: Changes) -> None:
        """The command was decided: what it changed is part of what the batch changes."""
        changed, current = changes.of(self.kind), self.current
        for key, before in self.before.items():
            if before is None or before is NEVER_LOADED:
                changed.new.add(key)
            changed[key] = current[key]
        self.before.clear()

    def discard(self) -> None:
        """The command was refused: all records are again as they were."""
        current = self.current
        for key, before in self.before.items():
            if isinstance(before, NeverLoaded):
                del current[key]
            else:
                current[key] = before
        self.before.clear()

    def keys(self) -> KeysView[Key]:
        return self.current.keys()

    def values(self) -> Iterator[R]:
        """All records that exist, as far as they were loaded."""
        return (record for record in self.current.values() if record is not None)

    def __contains__(self, key: Key) -> bool:
        return key in self.current


def _did_not_exist(before: Any) -> bool:
    return before is None or before is NEVER_LOADED
