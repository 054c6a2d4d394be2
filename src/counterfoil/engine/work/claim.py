"""Claiming due work for dispatch: the intent is committed before any byte is sent."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.effects.clearing import cleared
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import dispatch
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork

CLAIMABLE = (WorkStatus.PENDING, WorkStatus.NOT_COMPLETED)


@dataclass(slots=True)
class ClaimDue:
    """Claim one due item if the node's places, the step's ``parallelism`` and its rate limit allow it."""

    work_id: str
    flow_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)
        needs.inputs.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        """Whether it was claimed. An item that was found due may have ended or been claimed since."""
        work = unit.work(self.work_id)
        if work.status not in CLAIMABLE or work.due_at is None or work.due_at > now:
            return False
        step = unit.version(work.version)
        limit, rate = step.work.parallelism, step.work.rate_limit
        if limit is not None and unit.active_count(work.step_id) >= limit:
            unit.capacity.note_full(work.lane)
            return False
        if rate is not None and (until := unit.sent_times(work.step_id).rests_until(rate, now)) is not None:
            unit.capacity.note_rest(work.lane, work.version, until)
            return False
        if not cleared(unit, work, step, now):
            settle(unit, work.flow_id, now)
            return False
        if not unit.capacity.take(work.lane):
            return False
        if limit is not None:
            unit.count_active(work.step_id)
        if rate is not None:
            unit.count_sent(work.step_id, rate, now)
        unit.record(dispatch(work, step, unit.node_id, now))
        return True
