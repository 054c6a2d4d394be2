"""Commands for approvals: reviews, and the expiry of those that were not decided in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from counterfoil.domain.approvals.decisions import approve, expire, reject
from counterfoil.domain.errors import NoApprovalNeeded, UnknownStep
from counterfoil.domain.gate.calls import workflow
from counterfoil.domain.records import Approval, Gate
from counterfoil.store.unit_of_work.read_set import ReadSet, step_key
from counterfoil.store.unit_of_work.unit import UnitOfWork

Verdict = Literal["approve", "reject"]


@dataclass(slots=True)
class Review:
    """``POST /api/v1/approvals/{approval_id}/approve`` and ``/reject``. Which flow it is of never changes."""

    approval_id: str
    flow_id: str
    reviewer: str
    verdict: Verdict
    comment: str | None

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self.flow_id)
        needs.inputs.add(self.flow_id)
        needs.approvals.add(self.approval_id)

    def decide(self, unit: UnitOfWork, now: int) -> Approval:
        unit.flow(self.flow_id)
        decide = approve if self.verdict == "approve" else reject
        return decide(unit, unit.approval(self.approval_id), self.reviewer, self.comment, now)


@dataclass(slots=True)
class ReviewStep:
    """``POST .../steps/{step_id}/approve`` and ``/reject``: the approval that a step of a workflow waits for."""

    flow_id: str
    step_id: str
    reviewer: str
    verdict: Verdict
    comment: str | None

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self.flow_id)
        needs.inputs.add(self.flow_id)
        needs.gates.add(step_key(self.flow_id, self.step_id))

    def decide(self, unit: UnitOfWork, now: int) -> tuple[Gate, Approval]:
        workflow(unit, self.flow_id)
        gate = unit.find_gate(self.flow_id, self.step_id)
        if gate is None:
            raise UnknownStep("no gate call was made for this step")
        if gate.approval_id is None:
            raise NoApprovalNeeded(workflow_id=self.flow_id, step_id=self.step_id, decision=gate.standing)
        review = Review(gate.approval_id, self.flow_id, self.reviewer, self.verdict, self.comment)
        approval = review.decide(unit, now)
        gate = unit.find_gate(self.flow_id, self.step_id)
        assert gate is not None
        return gate, approval


@dataclass(slots=True)
class ExpireApproval:
    """No reviewer decided in time. Decided again in its transaction: the first recorded decision wins."""

    approval_id: str
    flow_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self.flow_id)
        needs.approvals.add(self.approval_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        return expire(unit, unit.approval(self.approval_id), now)
