"""What operators ask of the engine: whether it works, and its gauges."""

from __future__ import annotations

from counterfoil.domain.errors import Unavailable
from counterfoil.engine.cluster.lease import Lease
from counterfoil.engine.context import EngineContext
from counterfoil.engine.probe import Readiness
from counterfoil.engine.queries.documents import Document
from counterfoil.engine.queries.effect_queries import EffectQueries
from counterfoil.engine.queries.hook_queries import HookQueries
from counterfoil.engine.queries.queries import Queries
from counterfoil.engine.queries.results import Results
from counterfoil.engine.sweeps.progress import SweepProgress
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit


class Operations:
    """The use cases of operators."""

    def __init__(
        self,
        context: EngineContext,
        commit: GroupCommit,
        queries: Queries,
        effect_queries: EffectQueries,
        hook_queries: HookQueries,
        results: Results,
        metrics: Metrics,
        readiness: Readiness,
        lease: Lease,
        sweeps: SweepProgress,
    ) -> None:
        self._context = context
        self._commit = commit
        self._queries = queries
        self._effect_queries = effect_queries
        self._hook_queries = hook_queries
        self._results = results
        self._metrics = metrics
        self._readiness = readiness
        self._lease = lease
        self._sweeps = sweeps

    async def health(self) -> Document:
        """Whether the engine can read and write; raises Unavailable when it cannot."""
        await self._readiness.check()
        try:
            seq = await self._queries.last_seq()
        except Unavailable as unavailable:
            raise Unavailable(unavailable.message, failed="store") from None
        sweeps = self._sweeps.document(self._context.clock())
        health: Document = {"store": {"last_seq": seq, "backlog": self._commit.backlog}, "sweeps": sweeps}
        if self._lease.keep_every_ms is not None:
            health["node"] = {
                "id": self._context.node_id,
                "lease_held": self._lease.held,
                "other_nodes": self._lease.others,
            }
        return health

    async def refresh_metrics(self) -> None:
        """Bring the gauges up to date that are read when they are asked for."""
        self._metrics.set_work_by_state(await self._queries.open_work_by_state())
        self._metrics.set_oldest_waiting(await self._queries.oldest_waiting_seconds())
        self._metrics.set_reconciliations(await self._effect_queries.by_hold())
        self._metrics.set_hooks_waiting(await self._hook_queries.waiting())
        self._metrics.set_backlog(self._commit.backlog)
        self._metrics.set_waiting_polls(len(self._results))
