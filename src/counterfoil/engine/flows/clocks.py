"""Clocks of flows: deadlines that have passed, and steps whose wait for an optional input is over."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.flows.ending import end_early
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class LookAtFlow:
    """Decided again from the state in the transaction: a flow that was found due may no longer be."""

    flow_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.open_flows.add(self.flow_id)
        needs.inputs.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        flow = unit.flow(self.flow_id)
        if flow.status in FINAL_FLOWS or flow.status is FlowStatus.COMPENSATING:
            return False
        if flow.deadline_at is not None and flow.deadline_at <= now:
            self._end(unit, now)
            return True
        due = [step.step_id for step in unit.open_steps(self.flow_id) if (step.due_at or now + 1) <= now]
        settle(unit, self.flow_id, now, look_at=due)
        return bool(due)

    def _end(self, unit: UnitOfWork, now: int) -> None:
        options = unit.inputs(self.flow_id).options
        reason = "the flow's deadline has passed"
        if options.get("on_deadline") == "cancel":
            end_early(unit, self.flow_id, now, "cancelled", reason, compensate=False)
        else:
            error = {"code": "DEADLINE_EXCEEDED", "message": reason}
            compensate = options.get("compensate", True)
            end_early(unit, self.flow_id, now, "failed", reason, error, compensate=compensate)
        settle(unit, self.flow_id, now)
