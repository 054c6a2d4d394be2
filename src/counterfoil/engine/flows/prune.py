"""Prunes one flow that ended long ago: found by the retention sweep, and decided again in its transaction."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.states import FINAL_FLOWS
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class Prune:
    """Delete a flow from the store, or only its payloads, if it ended at the cutoff or before."""

    flow_id: str
    labels: str | None
    """As the store has them: JSON."""
    cutoff: int
    payloads: bool
    """Delete only its payloads."""

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        """Whether it was pruned: it may have been redriven since it was found, or be changed in this very batch."""
        flow = unit.find_flow(self.flow_id)
        if flow is None or flow.status not in FINAL_FLOWS or flow.finished_at is None:
            return False
        if flow.finished_at > self.cutoff or unit.changes.changes_flow(self.flow_id):
            return False
        if self.payloads:
            unit.prune(self.flow_id, None)
        else:
            unit.prune(self.flow_id, parse_json(self.labels) if self.labels else {})
        return True
