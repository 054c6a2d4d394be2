"""What the commands of a batch need to see before they can decide."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from counterfoil.store.kinds.declared import KINDS
from counterfoil.store.kinds.kind import Load, flow_of, step_key

__all__ = ["Find", "NotLoaded", "ReadSet", "flow_of", "missing", "step_key"]

FINDS = "finds"


@dataclass(frozen=True)
class Find:
    """A search inside the transaction: a named query with its parameters.

    What it finds is locked by this transaction until it ends: on a store that several nodes share, a search passes over
    what another node has locked, and never waits.
    """

    query: str
    parameters: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, query: str, **parameters: Any) -> Find:
        return cls(query, tuple(parameters.items()))


class ReadSet:
    """Keys of what a batch must load, collected over its commands: a set for each load that a kind of record declares.

    ``read_set.work`` and so on, by the names of loads (store/kinds); ``finds`` are searches. Of most loads there are no
    keys, and no set is made.
    """

    finds: set[Find]

    def __init__(self, **keys: set[Any]) -> None:
        vars(self).update(keys)

    def __getattr__(self, load: str) -> set[Any]:
        """A load of which no key was needed until now."""
        if load not in KINDS.loads and load != FINDS:
            raise AttributeError(load)
        keys: set[Any] = set()
        setattr(self, load, keys)
        return keys

    def add(self, load: str, key: Any) -> None:
        getattr(self, load).add(key)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Every key, with the name of its load."""
        return ((load, key) for load, keys in vars(self).items() for key in keys)

    def loads(self) -> list[tuple[Load, set[Any]]]:
        """What is to be loaded, in its order, with its keys."""
        names = [name for name, keys in vars(self).items() if keys and name != FINDS]
        if len(names) > 1:
            names.sort(key=KINDS.places.__getitem__)
        return [(KINDS.loads[name], vars(self)[name]) for name in names]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadSet) and self._needed() == other._needed()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"ReadSet({', '.join(f'{load}={keys}' for load, keys in self._needed().items())})"

    def _needed(self) -> dict[str, set[Any]]:
        return {load: keys for load, keys in vars(self).items() if keys}

    def are_only(self, loads: Collection[str]) -> bool:
        """Whether nothing is needed but by these loads."""
        return not any(keys for load, keys in vars(self).items() if keys and load not in loads)

    def include(self, others: ReadSet) -> None:
        """Need what others need, too."""
        for load, keys in vars(others).items():
            if keys:
                getattr(self, load).update(keys)

    def with_work(self, work: set[str]) -> ReadSet:
        """The same needs, but for other work items."""
        return ReadSet(**{**vars(self), "work": work})

    def changing_flows(self) -> set[str]:
        """The flows of which something is needed that may change, as far as keys tell their ids."""
        found: set[str] = set()
        for load, keys in self.loads():
            if load.flow_of_key is not None:
                found.update(map(load.flow_of_key, keys))
        return found


class NotLoaded(Exception):
    """A decision needs something that the batch has not loaded yet."""

    def __init__(self, load: str, *keys: Any) -> None:
        self.wanted = {(load, key) for key in keys}
        super().__init__(f"{load} {', '.join(map(str, keys))}")


def missing(load: str, keys: Iterable[Any], also: Iterable[tuple[str, Any]] = ()) -> None:
    """Raise NotLoaded for all of these at once, and for what will be missed next; nothing if there are none."""
    wanted = tuple(keys)
    if wanted:
        not_loaded = NotLoaded(load, *wanted)
        not_loaded.wanted.update(also)
        raise not_loaded
