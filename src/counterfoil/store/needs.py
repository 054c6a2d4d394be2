"""What the commands of a batch need to see before they can decide."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any


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


@dataclass
class Needs:
    """Keys of what a batch must load, collected over its commands."""

    work: set[str] = field(default_factory=set)
    """Work items, each with its step and flow."""
    flows: set[str] = field(default_factory=set)
    open_flows: set[str] = field(default_factory=set)
    """Flows with all their open work and open steps."""
    inputs: set[str] = field(default_factory=set)
    """What flows were started with."""
    steps: set[str] = field(default_factory=set)
    """Registered steps, by id: which version is current."""
    versions: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    """Cancel calls."""
    active_counts: set[str] = field(default_factory=set)
    """Steps whose active work items must be counted, because they may only be so many."""
    finds: set[Find] = field(default_factory=set)

    def are_only(self, kinds: Collection[str]) -> bool:
        """Whether nothing is needed but things of these kinds."""
        return not any(keys for kind, keys in vars(self).items() if kind not in kinds)

    def include(self, others: Needs) -> None:
        """Need what others need, too."""
        for kind, keys in vars(others).items():
            getattr(self, kind).update(keys)


class NotLoaded(Exception):
    """A decision needs something that the batch has not loaded yet."""

    def __init__(self, kind: str, key: Hashable) -> None:
        self.kind = kind
        self.key = key
        super().__init__(f"{kind} {key}")
