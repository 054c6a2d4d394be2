"""Work past its deadline, and work whose sender is gone: the outcome is unknown, and the step's effect policy decides.

Both are decided again from the state in the transaction: the outcome that was recorded first wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.effects.policies import Cause
from counterfoil.domain.effects.reconciling import counting_granted
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.hooks.completing import time_out
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import RetryRules, give_back
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class ExpireOverdue:
    """No report or response arrived before the deadline."""

    work_id: str
    retry: RetryRules

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        work = unit.work(self.work_id)
        if work.status is not WorkStatus.ACTIVE or work.due_at is None or work.due_at > now:
            return False
        step = unit.version(work.version)
        if step.definition.kind == "hook":
            time_out(unit, work, step, now)
            settle(unit, work.flow_id, now)
            return True
        if step.is_gated:
            code, message = "NOT_REPORTED", "the agent did not report before its deadline"
        else:
            awaited = "callback" if step.definition.kind == "async" else "answer"
            code, message = "DEADLINE_EXCEEDED", f"no {awaited} came before the deadline"
        _give_back_unknown(unit, self.work_id, self.retry, now, code, message, Cause.DEADLINE_PASSED)
        return True


@dataclass(slots=True)
class ReclaimOrphan:
    """An attempt whose sender died before the reply was recorded: it may have been sent, so it counts.

    ``owner``: the id of the dead node. That id is never used again, so work that it still owns is an orphan whenever
    this is decided; work that has another owner by now is not.
    """

    work_id: str
    owner: str
    retry: RetryRules

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        work = unit.work(self.work_id)
        if work.status is not WorkStatus.ACTIVE or work.owner != self.owner:
            return False
        message = "the engine stopped while this attempt was being sent"
        _give_back_unknown(unit, self.work_id, self.retry, now, "INTERRUPTED", message, Cause.NODE_LOST)
        return True


def _give_back_unknown(
    unit: UnitOfWork, work_id: str, retry: RetryRules, now: int, code: str, message: str, cause: Cause
) -> None:
    work = unit.work(work_id)
    step = unit.version(work.version)
    delivery = "unknown" if work.acknowledged_at is None else "answered"
    retry = counting_granted(unit, work, step, retry)
    unit.record(give_back(work, step, retry, now, code=code, message=message, delivery=delivery, cause=cause))
    settle(unit, work.flow_id, now)
