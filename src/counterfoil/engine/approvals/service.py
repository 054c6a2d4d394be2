"""What reviewers ask of the engine, and approvals that expire."""

from __future__ import annotations

from typing import cast

from counterfoil.domain.gate.retry_context import retry_context
from counterfoil.engine.approvals.commands import ExpireApproval, Review, ReviewStep, Verdict
from counterfoil.engine.queries.control_documents import reviewed_step
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.wire.approvals import ApprovalDocument, StepReviewed
from counterfoil.wire.gate.calls import RetryContext


class Approvals:
    """The use cases of approvals."""

    def __init__(self, commit: GroupCommit, queries: ControlQueries, metrics: Metrics) -> None:
        self._commit = commit
        self._queries = queries
        self._metrics = metrics

    async def review(self, approval_id: str, reviewer: str, verdict: Verdict, comment: str | None) -> ApprovalDocument:
        flow_id = await self._queries.approval_flow(approval_id)
        approval = await self._commit.submit(Review(approval_id, flow_id, reviewer, verdict, comment))
        self._metrics.reviewed(approval.status)
        return await self._queries.approval(approval_id)

    async def review_step(
        self, workflow_id: str, step_id: str, reviewer: str, verdict: Verdict, comment: str | None
    ) -> StepReviewed:
        command = ReviewStep(workflow_id, step_id, reviewer, verdict, comment)
        gate, approval = await self._commit.submit(command)
        self._metrics.reviewed(approval.status)
        return reviewed_step(gate, approval, cast(RetryContext, retry_context(gate, gate.decision)))

    async def expire(self, now: int, limit: int) -> int:
        """Expire approvals that were not decided in time, at most so many; returns how many."""
        return await self.count_expired(await self._commit.submit(self.expired(now, limit)))

    def expired(self, now: int, limit: int) -> ForEach[bool]:
        """The search for approvals that were not decided in time, and the command for each."""
        return ForEach(Find.of("find_expired_approvals", now=now, limit=limit), ExpireApproval)

    async def count_expired(self, answers: list[bool]) -> int:
        """Count the approvals that expired in the metrics; returns how many."""
        expired = sum(answers)
        for _ in range(expired):
            self._metrics.reviewed("expired")
        return expired
