"""What operators ask about unknown outcomes, and the sweeps over keys."""

from __future__ import annotations

from counterfoil.domain.effects.reconciling import Settlement
from counterfoil.engine.context import EngineContext
from counterfoil.engine.effects.commands import ForgetKey, SettleOutcome, WakeWaiter
from counterfoil.engine.queries.effect_queries import EffectQueries
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.wire.effects import OutcomeSettled


class Reconciliations:
    """The use cases of the reconciliation queue."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: EffectQueries, metrics: Metrics) -> None:
        self._context = context
        self._commit = commit
        self._queries = queries
        self._metrics = metrics

    async def settle(self, work_id: str, settlement: Settlement, by: str) -> OutcomeSettled:
        """Settle an item that waits in the queue; the first reconciler wins."""
        flow_id = await self._queries.flow_of_work(work_id)
        command = SettleOutcome(work_id, flow_id, settlement, by, self._context.retry_rules())
        status, approval_id = await self._commit.submit(command)
        self._metrics.reconciled(settlement.outcome)
        answer: OutcomeSettled = {"work_id": work_id, "status": status.value}
        if approval_id is not None:
            answer["approval_id"] = approval_id
        return answer

    def waking(self, now: int, limit: int) -> ForEach[bool]:
        """The search for items whose key has a result or no owner, and the command for each."""
        return ForEach(Find.of("find_waking", limit=limit), WakeWaiter)

    def forgettable(self, now: int, limit: int) -> ForEach[bool]:
        """The search for keys whose window has passed, and the command for each."""
        return ForEach(Find.of("find_forgettable", now=now, limit=limit), ForgetKey)
