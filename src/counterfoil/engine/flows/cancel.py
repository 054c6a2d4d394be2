"""Cancelling a flow, and recording the outcome of cancel calls to its workers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from counterfoil.domain.errors import FlowFinal
from counterfoil.domain.flows.ending import end_early
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import CancelCall
from counterfoil.domain.states import FINAL_FLOWS, FlowStatus
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass
class Cancel:
    """``POST /api/v1/flows/{id}/cancel``: open work becomes cancelled. Again on a cancelled flow changes nothing."""

    flow_id: str
    compensate: bool = False
    """Whether completed steps are compensated. With False, a flow that is compensating stops doing so."""

    def needs(self, needs: ReadSet) -> None:
        needs.open_flows.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        flow = unit.flow(self.flow_id)
        if flow.status is FlowStatus.CANCELLED or (flow.status is FlowStatus.COMPENSATING and self.compensate):
            return
        if flow.status in FINAL_FLOWS:
            raise FlowFinal(f"the flow has already {flow.status}", flow_id=flow.flow_id, status=flow.status)
        reason = "the flow was cancelled"
        end_early(unit, self.flow_id, now, "cancelled", reason, flow.error, compensate=self.compensate)
        settle(unit, self.flow_id, now)


@dataclass
class ClaimCancelCall:
    """Claim a due cancel call: no other node makes it until it is recorded or the claim expires."""

    call_id: str
    for_ms: int

    def needs(self, needs: ReadSet) -> None:
        needs.calls.add(self.call_id)

    def decide(self, unit: UnitOfWork, now: int) -> CancelCall | None:
        call = unit.call(self.call_id)
        if call is None or call.due_at > now:
            return None
        claimed = replace(call, due_at=now + self.for_ms)
        unit.call_later(claimed)
        return claimed


@dataclass
class RecordCancelCall:
    """A cancel call was made: delete it when it was delivered or given up, else try again at ``retry_at``.

    ``tries``: 0 for a call that this machine could not send.
    """

    call_id: str
    delivered: bool
    retry_at: int | None
    note: str
    tries: int = 1

    def needs(self, needs: ReadSet) -> None:
        needs.calls.add(self.call_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        call = unit.call(self.call_id)
        if call is None:
            return
        if self.retry_at is not None:
            unit.call_later(replace(call, attempt=call.attempt + self.tries, due_at=self.retry_at))
            return
        unit.flow(call.flow_id)  # locks the flow: the numbers of its journal stay in order
        kind = EventType.CANCEL_DELIVERED if self.delivered else EventType.CANCEL_UNDELIVERED
        data = {"calls": call.attempt + 1, "note": self.note}
        unit.record(Event(kind, now, call.flow_id, call.step_id, call.work_id, data=data))
        unit.forget_call(self.call_id)
