"""All kinds that are declared in this package, and what follows from their declarations.

A module of this package that declares a kind is found by being here: there is no list to add it to.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from counterfoil.store import kinds as package
from counterfoil.store.kinds.kind import Kind, Load, Lock, PruneStatement, Unlocked

AnyKind = Kind[Any, Any]


class Kinds:
    """The declared kinds. Everything that goes through kinds asks here, so that a kind declared later is not missed."""

    def __init__(self, kinds: Iterable[AnyKind]) -> None:
        self._kinds = list(kinds)
        self._derive()

    def declare(self, kind: AnyKind) -> None:
        """Add a kind from outside the package: a test's."""
        self._kinds.append(kind)
        self._derive()

    def withdraw(self, kind: AnyKind) -> None:
        self._kinds.remove(kind)
        self._derive()

    def _derive(self) -> None:
        kinds = sorted(self._kinds, key=lambda kind: (kind.written, kind.name))
        loads = [load for kind in kinds for load in kind.loads]
        self.by_name: dict[str, AnyKind] = {kind.name: kind for kind in kinds}
        """In the order in which they are written."""
        self._written = {kind: place for place, kind in enumerate(kinds)}
        self._following = [kind for kind in kinds if kind.follows_others]
        self.loads: dict[str, Load] = {load.name: load for load in sorted(loads, key=lambda load: load.order)}
        """By the names that read sets have, in the order in which they run."""
        self.places: dict[str, int] = {name: place for place, name in enumerate(self.loads)}
        """The place of each load in that order."""
        if len(self.by_name) < len(kinds) or len(self.loads) < len(loads):
            raise ValueError("two kinds of records, or two loads, have the same name")
        locks = {load.lock for load in loads if load.lock is not None}
        self.locks: list[tuple[Lock, list[Load]]] = [
            (lock, [load for load in loads if load.lock is lock]) for lock in sorted(locks, key=lambda lock: lock.order)
        ]
        """In the order in which they are taken, each with the loads whose keys it locks."""
        self.unlocked = frozenset(load.name for load in loads if load.unlocked is Unlocked.AT_FIRST)
        """Loads with which a batch may begin that takes no locks."""
        self.unlocked_later = self.unlocked | {load.name for load in loads if load.unlocked is Unlocked.LATER}
        """Loads that it may miss on the way."""
        self.covered = frozenset(
            load.name
            for load in loads
            if load.flow_column is not None and load.flow_of_key is None and load.name != "work"
        )
        """Loads of records that the lock of their flow covers, though their keys do not tell which flow that is.

        The ids of work items do: their flows are looked up before they are locked.
        """
        self.prune: list[PruneStatement] = sorted((each for kind in kinds for each in kind.prune), key=_order)
        self.empty: list[PruneStatement] = sorted((each for kind in kinds for each in kind.empty), key=_order)

    def __iter__(self) -> Iterator[AnyKind]:
        return iter(self._written)

    def to_write(self, changed: Iterable[AnyKind]) -> list[AnyKind]:
        """The kinds of which a batch with these changes writes rows, in the order in which they are written."""
        return sorted({*changed, *self._following}, key=self._written.__getitem__)


def _order(prune: PruneStatement) -> int:
    return prune.order


def _declarations() -> Iterator[AnyKind]:
    """Every kind that a module of this package declares, once, though others may import it."""
    found: set[AnyKind] = set()
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name != __name__:
            found.update(each for each in vars(import_module(module.name)).values() if isinstance(each, Kind))
    return iter(found)


KINDS = Kinds(_declarations())
