"""Commands for unknown outcomes and for keys. Each is decided anew in its transaction: the first change wins."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.effects.dedup import wake
from counterfoil.domain.effects.probing import ProbeAnswer, claim_probe, take_answer
from counterfoil.domain.effects.reconciling import Settlement, settle_item
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.records import DedupWaiter, StepVersion, Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import RetryRules
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class SettleOutcome:
    """``POST /api/v1/reconciliations/{work_id}``."""

    work_id: str
    flow_id: str
    settlement: Settlement
    by: str
    retry: RetryRules

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)
        needs.reconciliations.add(self.work_id)
        needs.inputs.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> tuple[WorkStatus, str | None]:
        """The state of the item after it, and the approval that it waits for, if it does."""
        approval_id = settle_item(unit, self.work_id, self.settlement, self.by, self.retry, now)
        return unit.work(self.work_id).status, approval_id


@dataclass(frozen=True, slots=True)
class ClaimedProbe:
    """A question to a ``status_url``: the item as it was when the right to ask was claimed."""

    work: Work
    step: StepVersion
    until: int


@dataclass(slots=True)
class ClaimProbe:
    """Claim the right to ask about an item: no other node asks until the answer is recorded or the claim expires."""

    work_id: str
    for_ms: int

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)
        needs.reconciliations.add(self.work_id)

    def decide(self, unit: UnitOfWork, now: int) -> ClaimedProbe | None:
        work = unit.work(self.work_id)
        if not claim_probe(unit, self.work_id, now, self.for_ms):
            return None
        return ClaimedProbe(work, unit.version(work.version), now + self.for_ms)


@dataclass(slots=True)
class RecordProbe:
    """Record what ``status_url`` has answered."""

    work_id: str
    attempt: int
    answer: ProbeAnswer
    retry: RetryRules

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)
        needs.reconciliations.add(self.work_id)

    def decide(self, unit: UnitOfWork, now: int) -> str | None:
        return take_answer(unit, self.work_id, self.attempt, self.answer, self.retry, now)


@dataclass(slots=True)
class WakeWaiter:
    """Let a work item go on whose key has a result, or no owner any more."""

    work_id: str
    flow_id: str
    dedup_id: str
    since: int

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)
        needs.dedup.add(self.dedup_id)
        needs.inputs.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        went_on = wake(unit, DedupWaiter(self.work_id, self.flow_id, self.dedup_id, self.since), now)
        settle(unit, self.flow_id, now)
        return went_on


@dataclass(slots=True)
class ForgetKey:
    """Forget the result of a key whose window has passed."""

    dedup_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.dedup.add(self.dedup_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        record = unit.find_dedup(self.dedup_id)
        if record is None or record.expires_at is None or record.expires_at > now or record.waiting:
            return False
        unit.forget_dedup(self.dedup_id)
        return True
