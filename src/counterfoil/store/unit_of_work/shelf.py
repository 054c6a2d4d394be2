"""Records of one kind in the unit of work: those that were loaded, and the drafts of the present command."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from counterfoil.store.unit_of_work.read_set import NotLoaded

R = TypeVar("R")


class Shelf(Generic[R]):
    """Records by id, where None is one that does not exist. Records are never changed, only replaced."""

    def __init__(self, kind: str, touched: set[Shelf[Any]]) -> None:
        self._kind = kind
        """What they are called, among the needs as among the changes."""
        self._touched = touched
        """The shelves of a unit on which the present command has put something."""
        self._records: dict[str, R | None] = {}
        self.drafts: dict[str, R | None] = {}

    def add(self, key: str, record: R | None) -> None:
        """What was loaded; what the batch knows already stays."""
        self._records.setdefault(key, record)

    def get(self, key: str) -> R | None:
        """The record as the command sees it; raises NotLoaded."""
        if key in self.drafts:
            return self.drafts[key]
        try:
            return self._records[key]
        except KeyError:
            raise NotLoaded(self._kind, key) from None

    def put(self, key: str, record: R | None) -> None:
        """Change a record, or remove it, as far as the present command is concerned."""
        self.drafts[key] = record
        self._touched.add(self)

    def keep(self, changes: Any) -> None:
        """The command was decided: its drafts are what the batch knows, and writes."""
        self._records.update(self.drafts)
        changes.note(self._kind, self.drafts)
