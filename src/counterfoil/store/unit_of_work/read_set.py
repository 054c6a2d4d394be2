"""What the commands of a batch need to see before they can decide."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

_BETWEEN = "\n"
"""No id can hold it."""


@dataclass(frozen=True)
class Find:
    """A search inside the transaction: a named query with its parameters.

    What it finds is this transaction's until it ends: on a store that several nodes share, a search passes over what
    another one has in hand, and never waits.
    """

    query: str
    parameters: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, query: str, **parameters: Any) -> Find:
        return cls(query, tuple(parameters.items()))


def step_key(flow_id: str, step_id: str) -> str:
    """The key of a step in a flow."""
    return f"{flow_id}{_BETWEEN}{step_id}"


def flow_of(key: str) -> str:
    """The flow of the key of a step."""
    return key.partition(_BETWEEN)[0]


class ReadSet:
    """Keys of what a batch must load, collected over its commands. Of most kinds there are none, and no set is made."""

    work: set[str]
    """Work items, each with its step and flow."""
    flows: set[str]
    open_flows: set[str]
    """Flows with all their open work and open steps."""
    whole_flows: set[str]
    """Flows with all their steps and what these gave."""
    flow_steps: set[str]
    """Steps in flows with what they gave, by ``step_key``."""
    step_work: set[str]
    """Steps in flows with all items that they ever had, by ``step_key``."""
    inputs: set[str]
    """What flows were started with."""
    plans: set[str]
    steps: set[str]
    """Registered steps, by id: which version is current."""
    registers: set[str]
    """The whole register; the key is the revision that is known already."""
    versions: set[str]
    calls: set[str]
    """Cancel calls."""
    active_counts: set[str]
    """Steps whose active work items must be counted, because they may only be so many."""
    gates: set[str]
    """What the gate knows of steps, by ``step_key``, each with the work item that it is about."""
    approvals: set[str]
    """Whoever needs one needs its flow as well: that has the lock."""
    keys: set[str]
    """Whom callers' keys belong to."""
    controls: set[str]
    """All policies and subscriptions; the key is the revision that is known already."""
    policies: set[str]
    subscriptions: set[str]
    deliveries: set[str]
    schedules: set[str]
    rates: set[str]
    """Steps of which must be known when they were sent, because only so many may be in a time."""
    finds: set[Find]

    def __init__(self, **keys: set[Any]) -> None:
        vars(self).update(keys)

    def __getattr__(self, kind: str) -> set[Any]:
        """A kind of which nothing was needed until now."""
        if kind not in _KINDS:
            raise AttributeError(kind)
        keys: set[Any] = set()
        setattr(self, kind, keys)
        return keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadSet) and self._needed() == other._needed()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"ReadSet({', '.join(f'{kind}={keys}' for kind, keys in self._needed().items())})"

    def _needed(self) -> dict[str, set[Any]]:
        return {kind: keys for kind, keys in vars(self).items() if keys}

    def are_only(self, kinds: Collection[str]) -> bool:
        """Whether nothing is needed but things of these kinds."""
        return not any(keys for kind, keys in vars(self).items() if keys and kind not in kinds)

    def include(self, others: ReadSet) -> None:
        """Need what others need, too."""
        for kind, keys in vars(others).items():
            if keys:
                getattr(self, kind).update(keys)

    def with_work(self, work: set[str]) -> ReadSet:
        """The same needs, but for other work items."""
        return ReadSet(**{**vars(self), "work": work})

    def changing_flows(self) -> set[str]:
        """The flows of which something is needed that may change, as far as their ids are known."""
        found = self.flows | self.open_flows | self.whole_flows
        found.update(map(flow_of, self.flow_steps))
        found.update(map(flow_of, self.step_work))
        found.update(map(flow_of, self.gates))
        return found


_KINDS = frozenset(ReadSet.__annotations__)


class NotLoaded(Exception):
    """A decision needs something that the batch has not loaded yet."""

    def __init__(self, kind: str, *keys: Any) -> None:
        self.wanted = {(kind, key) for key in keys}
        super().__init__(f"{kind} {', '.join(map(str, keys))}")


def missing(kind: str, keys: Iterable[Any], also: Iterable[tuple[str, Any]] = ()) -> None:
    """Raise NotLoaded for all of these at once, and for what will be missed next; nothing if there are none."""
    wanted = tuple(keys)
    if wanted:
        not_loaded = NotLoaded(kind, *wanted)
        not_loaded.wanted.update(also)
        raise not_loaded
