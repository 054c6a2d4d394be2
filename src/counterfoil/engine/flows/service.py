"""What callers ask of flows: start, plan, cancel and redrive."""

from __future__ import annotations

from typing import cast

from counterfoil.domain.errors import RunKeyConflict, RunKeyReused, UnknownFlow
from counterfoil.domain.flows.requests import RedriveRequest, StartFlow
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.flows.redrive import RedriveFlow, RedriveWork, redrive_matching
from counterfoil.engine.flows.start import Preview, Reuse, Start
from counterfoil.engine.queries.queries import Queries
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.wire.flows import FlowDocument, FlowRedriven, FlowReused, FlowStarted, PlanDocument
from counterfoil.wire.work import WorkRedriven, WorkRedrivenByFilter


class Flows:
    """The use cases of flows."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: Queries, metrics: Metrics) -> None:
        self._context = context
        self._commit = commit
        self._queries = queries
        self._metrics = metrics

    async def start(self, request: StartFlow, started_by: str | None = None) -> FlowStarted | FlowReused:
        """Start a flow. With a run key that another flow owns: what the request says of that."""
        if request.idempotency_key is None:
            return cast(FlowStarted, await self._commit.submit(Start(request, self._context, started_by)))
        while True:
            answer = await self._start_with_key(request, started_by)
            if not isinstance(answer, Reuse):
                return answer
            try:
                document = await self._queries.flow(answer.flow_id)
            except UnknownFlow:
                if answer.outcome != "retained":
                    raise  # it has ended meanwhile, and was pruned at once: another flow would do its work again
                continue  # pruned: its key is free
            reused = cast(FlowReused, {**document, "reused": True})
            if request.on_conflict == "signal":
                reused["signalled"] = answer.outcome == "signalled"
            return reused

    async def _start_with_key(self, request: StartFlow, started_by: str | None) -> FlowStarted | Reuse:
        """Decide about one start, and count it if another flow owned its key."""
        try:
            answer = await self._commit.submit(Start(request, self._context, started_by))
        except RunKeyConflict:
            self._metrics.run_key_conflict(request.on_conflict, "rejected")
            raise
        except RunKeyReused:
            self._metrics.run_key_conflict(request.on_conflict, "mismatched")
            raise
        if isinstance(answer, Reuse):
            self._metrics.run_key_conflict(request.on_conflict, answer.outcome)
        elif "superseded" in answer:
            self._metrics.run_key_conflict(request.on_conflict, "superseded")
        return answer

    async def plan(self, request: StartFlow) -> PlanDocument:
        return await self._commit.submit(Preview(request, self._context))

    async def cancel(self, flow_id: str, *, compensate: bool = False) -> FlowDocument:
        await self._commit.submit(Cancel(flow_id, compensate))
        return await self._queries.flow(flow_id)

    async def redrive(self, flow_id: str) -> FlowRedriven:
        return await self._commit.submit(RedriveFlow(flow_id))

    async def redrive_work(self, work_id: str) -> WorkRedriven:
        return await self._commit.submit(RedriveWork(work_id))

    async def redrive_matching(self, request: RedriveRequest) -> WorkRedrivenByFilter:
        return await redrive_matching(self._commit, self._queries, request)
