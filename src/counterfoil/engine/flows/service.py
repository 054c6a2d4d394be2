"""What callers ask of flows: start, plan, cancel and redrive."""

from __future__ import annotations

from counterfoil.domain.flows.requests import RedriveRequest, StartFlow
from counterfoil.engine.context import EngineContext
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.engine.flows.redrive import RedriveFlow, RedriveWork, redrive_matching
from counterfoil.engine.flows.start import Preview, Start
from counterfoil.engine.queries.queries import Queries
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.wire.flows import FlowDocument, FlowRedriven, FlowStarted, PlanDocument
from counterfoil.wire.work import WorkRedriven, WorkRedrivenByFilter


class Flows:
    """The use cases of flows."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: Queries) -> None:
        self._context = context
        self._commit = commit
        self._queries = queries

    async def start(self, request: StartFlow, started_by: str | None = None) -> FlowStarted:
        return await self._commit.submit(Start(request, self._context, started_by))

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
