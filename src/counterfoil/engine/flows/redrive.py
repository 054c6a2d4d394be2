"""Redriving: a failed flow continues from the steps that failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from counterfoil.domain.errors import Conflict
from counterfoil.domain.flows.redrive import redrive_flow, redrive_work
from counterfoil.domain.flows.requests import RedriveRequest
from counterfoil.engine.queries.queries import Queries
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.flows import FlowRedriven
from counterfoil.wire.work import WorkRedriven, WorkRedrivenByFilter


@dataclass(slots=True)
class RedriveFlow:
    """``POST /api/v1/flows/{id}/redrive``."""

    flow_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.whole_flows.add(self.flow_id)
        needs.inputs.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> FlowRedriven:
        work = redrive_flow(unit, self.flow_id, now)
        return {"flow_id": self.flow_id, "status": unit.flow(self.flow_id).status, "work": work}


@dataclass(slots=True)
class RedriveWork:
    """``POST /api/v1/work/{work_id}/redrive``."""

    work_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.work.add(self.work_id)

    def decide(self, unit: UnitOfWork, now: int) -> WorkRedriven:
        flow_id = unit.work(self.work_id).flow_id
        new = redrive_work(unit, self.work_id, now)
        return {"work_id": new, "redrive_of": self.work_id, "flow_id": flow_id}


async def redrive_matching(commit: GroupCommit, queries: Queries, request: RedriveRequest) -> WorkRedrivenByFilter:
    """Redrive all failed work that matches, step by step; work that has been redriven meanwhile is left out."""
    found = await queries.failed_work(request)
    flows = list(dict.fromkeys(flow_id for _, flow_id, _ in found))
    redriven = 0
    if not request.dry_run:
        by_flow: dict[str, list[tuple[str, str]]] = {}
        for work_id, flow_id, step_id in found:
            by_flow.setdefault(flow_id, []).append((work_id, step_id))
        redriven = sum(await asyncio.gather(*(_redrive_in_flow(commit, work) for work in by_flow.values())))
    return {"matched": len(found), "redriven": redriven, "flows": flows}


async def _redrive_in_flow(commit: GroupCommit, work: list[tuple[str, str]]) -> int:
    """Redriving one item redrives its whole step, and in a failed flow all failed steps."""
    done = False
    for work_id in {step_id: work_id for work_id, step_id in work}.values():
        try:
            await commit.submit(RedriveWork(work_id))
        except Conflict:
            continue
        done = True
    return len(work) if done else 0
