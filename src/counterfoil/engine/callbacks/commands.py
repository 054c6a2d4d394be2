"""Commands that write and remove callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterfoil.domain.callbacks.inbox import Callback
from counterfoil.store.kinds.work import CALLBACKS
from counterfoil.store.unit_of_work.read_set import Find, ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork

SURPLUS_AT_LEAST = 256
"""Surplus callbacks that one command may remove, at least: so a lower limit takes effect soon."""


class RecordCallbacks:
    """Write callbacks, and remove as many of the oldest as are too many then.

    So the limit holds after every commit of a node; what another node adds at the same time goes with the next one.
    """

    __slots__ = ("_callbacks", "_surplus")

    def __init__(self, callbacks: Sequence[Callback], most_rows: int) -> None:
        self._callbacks = callbacks[-most_rows:]
        left = most_rows - len(self._callbacks)
        limit = max(len(self._callbacks), SURPLUS_AT_LEAST)
        self._surplus = Find.of("find_surplus_callbacks", most=left, limit=limit)

    def needs(self, needs: ReadSet) -> None:
        needs.finds.add(self._surplus)

    def decide(self, unit: UnitOfWork, now: int) -> int:
        """How many were written."""
        records = unit.records(CALLBACKS)
        for (callback_id,) in unit.found(self._surplus):
            records.put(callback_id, None)
        for callback in self._callbacks:
            records.put(callback.callback_id, callback)
        return len(self._callbacks)


@dataclass(slots=True)
class ForgetCallback:
    """Remove a callback that was kept long enough."""

    callback_id: str

    def needs(self, needs: ReadSet) -> None:
        """Nothing: what the search has found is there."""

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        unit.records(CALLBACKS).put(self.callback_id, None)
        return True
