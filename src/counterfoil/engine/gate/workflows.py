"""What agents ask of the engine: a workflow, the gate in front of each step, reports, claims and the ending."""

from __future__ import annotations

from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, ProlongClaim
from counterfoil.domain.gate.workflows import Ending
from counterfoil.domain.states import Decision
from counterfoil.engine.context import EngineContext
from counterfoil.engine.gate.commands import (
    AskGate,
    BeginWorkflow,
    FinishWorkflow,
    Prolong,
    ReportStep,
    ResumeFromCheckpoint,
    ResumeWorkflow,
)
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.wire.gate.calls import ClaimProlonged, GateAnswer
from counterfoil.wire.gate.workflows import CheckpointResumed, WorkflowDocument, WorkflowEnded


class Workflows:
    """The use cases of the gate."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: ControlQueries, metrics: Metrics) -> None:
        self._context = context
        self._commit = commit
        self._queries = queries
        self._metrics = metrics

    async def create(self, request: CreateWorkflow, caller: str) -> tuple[WorkflowDocument, bool]:
        """The workflow, and whether it is new."""
        begin = BeginWorkflow(f"wf_{self._context.new_id()}", request, caller)
        workflow_id, created = await self._commit.submit(begin)
        return await self._queries.workflow(workflow_id), created

    async def gate(self, call: GateCall) -> GateAnswer:
        answer = await self._commit.submit(AskGate(call))
        self._metrics.gated(answer["decision"], answer["decision_source"])
        return answer

    async def complete_step(self, workflow_id: str, step_id: str, report: CompleteStep) -> bool:
        """Whether the same report was recorded already."""
        return await self._commit.submit(ReportStep(workflow_id, step_id, report))

    async def prolong_claim(self, workflow_id: str, step_id: str, sign: ProlongClaim) -> ClaimProlonged:
        return await self._commit.submit(Prolong(workflow_id, step_id, sign))

    async def end(self, workflow_id: str, ending: Ending, reason: str | None = None) -> WorkflowEnded:
        return await self._commit.submit(FinishWorkflow(workflow_id, ending, reason))

    async def resume(self, workflow_id: str) -> WorkflowEnded:
        return await self._commit.submit(ResumeWorkflow(workflow_id))

    async def resume_from(self, workflow_id: str, checkpoint_id: int | None, caller: str) -> CheckpointResumed:
        """Resume a run behind a completed step. ``checkpoint_id`` None: behind the last one that allows it."""
        checkpoint, work_id = await self._queries.checkpoint(workflow_id, checkpoint_id)
        step_id = checkpoint["step_id"]
        count, reopened = await self._commit.submit(ResumeFromCheckpoint(workflow_id, step_id, work_id, caller))
        message = "Workflow reopened: continue" if reopened else "Continue"
        return {
            "workflow_id": workflow_id,
            "status": "in_progress",
            "checkpoint_id": checkpoint["id"],
            "resumed_from_checkpoint": step_id,
            "resumed_from_index": checkpoint["step_index"],
            "new_decision": Decision.ALLOW,
            "decision_source": "cached",
            "resume_count": count,
            "reopened": reopened,
            "message": f"{message} with the step that follows {step_id}",
        }
