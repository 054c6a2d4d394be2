"""What a batch writes: the last state of each record that it changed, and the journal of how it came about."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.flows import PRUNED
from counterfoil.store.kinds.kind import Kind

Key = TypeVar("Key")
R = TypeVar("R")


class Changed(dict[Key, R | None]):
    """The changed records of one kind by key, as the batch leaves them; None: removed."""

    __slots__ = ("new",)

    def __init__(self, records: dict[Key, R | None] | None = None) -> None:
        super().__init__(records or {})
        self.new: set[Key] = set()
        """Those that did not exist before, and so are inserted instead of updated."""


class Changes:
    """All that a batch writes: what its commands change, one after the other."""

    def __init__(self, *, at: int = 0, events: Iterable[Event] = (), **records: dict[Any, Any]) -> None:
        """``records``: by the names of kinds."""
        self.at = at
        """The time of the batch."""
        self.events = list(events)
        """What brought it about."""
        self._changed: dict[Kind[Any, Any], Changed[Any, Any]] = {
            KINDS.by_name[name]: Changed(own) for name, own in records.items()
        }
        self._summed_up = 0
        self._event_types: AbstractSet[EventType] = frozenset()
        self._touched: AbstractSet[str] = frozenset()
        """What the first so many events are, and what they are about: asked for several times, and events only come."""

        self._journaled_as_of = 0
        self._journaled: AbstractSet[str] = frozenset()
        self._flows_as_of: tuple[int, ...] = ()
        self._flows: AbstractSet[str] = frozenset()

    def of(self, kind: Kind[Key, R]) -> Changed[Key, R]:
        """The changed records of a kind, to be added to."""
        changed = self._changed.get(kind)
        if changed is None:
            changed = self._changed[kind] = Changed()
        return changed

    def peek(self, kind: Kind[Key, R]) -> Changed[Key, R]:
        """The changed records of a kind, to be read."""
        return self._changed.get(kind, _NONE)

    def changed_kinds(self) -> list[Kind[Any, Any]]:
        """The kinds of which records were changed."""
        return [kind for kind, changed in self._changed.items() if changed]

    def __getattr__(self, name: str) -> dict[Any, Any]:
        """The same by the name of the kind."""
        kind = KINDS.by_name.get(name)
        if kind is None:
            raise AttributeError(name)
        return self.peek(kind)

    def any(self) -> bool:
        return bool(self.events) or any(self._changed.values())

    @property
    def is_optimistic(self) -> bool:
        """Whether a batch may write it that was decided without locks."""
        return all(kind.optimistic for kind in self.changed_kinds())

    @property
    def pruned_flows(self) -> AbstractSet[str]:
        return self.peek(PRUNED).keys()

    def kinds(self) -> AbstractSet[EventType]:
        """Which types of events there are."""
        self._sum_up()
        return self._event_types

    def touched(self) -> AbstractSet[str]:
        """The flows of which anything changes: nothing of a flow does without an event."""
        self._sum_up()
        return self._touched

    def journaled(self) -> AbstractSet[str]:
        """The flows of which the journal is told anything."""
        if self._journaled_as_of != len(self.events):
            self._journaled = {event.flow_id for event in self.events if event.journaled}
            self._journaled_as_of = len(self.events)
        return self._journaled

    def changes_flow(self, flow_id: str) -> bool:
        """Whether the batch changes anything of the flow, be it without an event."""
        held = [changed for kind, changed in self._changed.items() if kind.prune]
        seen = (len(self.events), *map(len, held))
        if seen != self._flows_as_of:
            records = (record for changed in held for record in changed.values() if record is not None)
            self._flows_as_of = seen
            self._flows = self.touched() | {getattr(record, "flow_id", "") for record in records}
        return flow_id in self._flows

    def _sum_up(self) -> None:
        if self._summed_up != len(self.events):
            self._event_types = {event.type for event in self.events}
            self._touched = {event.flow_id for event in self.events}
            self._summed_up = len(self.events)


class _Unchanged(Changed[Any, Any]):
    """What ``peek`` shows of a kind that was not changed: one for all, so nothing may be put into it."""

    __slots__ = ()

    def __setitem__(self, key: Any, record: Any) -> None:
        raise TypeError("only what Changes.of gives can be changed")

    def update(self, *records: Any, **named: Any) -> None:
        raise TypeError("only what Changes.of gives can be changed")


_NONE: Changed[Any, Any] = _Unchanged()
