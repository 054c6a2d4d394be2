"""Flows that ended long ago, as one batch takes them out of the store: wholly, or only what they carried.

The tables and columns that it is about stand in one place of each ``queries.sql``, and in ``pruning_writes``. A flow
that was changed in the same batch is left alone, and one that is pruned takes no change any more: so no row is written
by two parts of one statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterfoil.store.unit_of_work.changes import Changes

Rows = list[tuple[Any, ...]]


@dataclass
class Pruned:
    """What a batch prunes."""

    flows: dict[str, dict[str, str]] = field(default_factory=dict)
    """Flows that go wholly, each with its labels, which are keys of a table."""
    payloads: set[str] = field(default_factory=set)
    """Flows that stay, without what they carried."""
    ids: set[str] = field(default_factory=set)
    """All of them."""

    def include(self, others: Pruned) -> None:
        self.flows |= others.flows
        self.payloads |= others.payloads
        self.ids |= others.ids


class Pruning:
    """What the present command of a batch wants pruned, until it is kept; and what must not be."""

    def __init__(self) -> None:
        self._draft = Pruned()
        self._changed: set[str] = set()
        self._seen = 0

    def is_changed(self, flow_id: str, changes: Changes) -> bool:
        """Whether the batch changes anything of the flow already. Looks at each event once, however often asked."""
        self._changed.update(event.flow_id for event in changes.events[self._seen :])
        self._seen = len(changes.events)
        kept = (*changes.calls.values(), *changes.deliveries.values())
        return flow_id in self._changed or any(each is not None and each.flow_id == flow_id for each in kept)

    def take_out(self, flow_id: str, labels: dict[str, str]) -> None:
        """The flow goes, with everything of it."""
        self._draft.flows[flow_id] = labels
        self._draft.ids.add(flow_id)

    def empty(self, flow_id: str) -> None:
        """The flow stays, without what it carried."""
        self._draft.payloads.add(flow_id)
        self._draft.ids.add(flow_id)

    def keep(self, pruned: Pruned) -> None:
        if self._draft.ids:
            pruned.include(self._draft)
            self._draft = Pruned()

    def discard(self) -> None:
        if self._draft.ids:
            self._draft = Pruned()


def pruning_writes(pruned: Pruned, at: int) -> Iterator[tuple[str, Rows, bool]]:
    """Statements, their rows, and whether each row must count. What names a flow goes before the flow itself."""
    gone: Rows = [(flow_id,) for flow_id in sorted(pruned.flows)]
    emptied: Rows = [(flow_id,) for flow_id in sorted(pruned.payloads)]
    labels: Rows = [(f"{k}:{v}", flow_id) for flow_id, own in sorted(pruned.flows.items()) for k, v in own.items()]
    yield "prune_calls", gone, False
    yield "prune_labels", labels, False
    yield "prune_gates", gone, False
    yield "prune_approvals", gone, False
    yield "prune_keys", [(flow_id, at) for (flow_id,) in gone], False
    yield "prune_deliveries", gone, False
    yield "prune_work", gone, False
    yield "prune_steps", gone, False
    yield "prune_inputs", gone, False
    yield "prune_journal", [*gone, *emptied], False
    yield "prune_flows", gone, True
    yield "empty_work", emptied, False
    yield "empty_steps", emptied, False
    yield "empty_inputs", emptied, False
    yield "empty_approvals", emptied, False
    yield "empty_deliveries", emptied, False
    yield "empty_flows", [(flow_id, at) for (flow_id,) in emptied], True
