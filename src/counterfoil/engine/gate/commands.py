"""Commands of agents: workflows, gate calls, reports, claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from counterfoil.domain.gate import workflows
from counterfoil.domain.gate.calls import WORKFLOW_STATUS, GateCall
from counterfoil.domain.gate.checkpoints import resume_from
from counterfoil.domain.gate.claims import prolong
from counterfoil.domain.gate.completion import complete
from counterfoil.domain.gate.decisions import ask
from counterfoil.domain.gate.key_scopes import key_id
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, ProlongClaim
from counterfoil.domain.time import rfc3339
from counterfoil.store.unit_of_work.read_set import ReadSet, step_key
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.gate.calls import ClaimProlonged, GateAnswer
from counterfoil.wire.gate.workflows import WorkflowEnded


@dataclass(slots=True)
class BeginWorkflow:
    """``POST /api/v1/workflows``. The id is made before the decision, so that deciding again gives the same one."""

    flow_id: str
    request: CreateWorkflow
    caller: str

    def needs(self, needs: ReadSet) -> None:
        if self.request.idempotency_key:
            needs.keys.add(key_id("workflow", self.request.idempotency_key))

    def decide(self, unit: UnitOfWork, now: int) -> tuple[str, bool]:
        """The workflow, and whether it is new."""
        return workflows.create(unit, self.flow_id, self.request, self.caller, now)


@dataclass(slots=True)
class AskGate:
    """``POST .../steps/{step_id}/gate``."""

    call: GateCall

    def needs(self, needs: ReadSet) -> None:
        call = self.call
        needs.flows.add(call.flow_id)
        needs.gates.add(step_key(call.flow_id, call.step_id))
        needs.inputs.add(call.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> GateAnswer:
        return cast(GateAnswer, ask(unit, self.call, now))


@dataclass(slots=True)
class ReportStep:
    """``POST .../steps/{step_id}/complete``."""

    flow_id: str
    step_id: str
    report: CompleteStep

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self.flow_id)
        needs.gates.add(step_key(self.flow_id, self.step_id))

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        """Whether the same was recorded already."""
        return complete(unit, self.flow_id, self.step_id, self.report, now)


@dataclass(slots=True)
class Prolong:
    """``POST .../steps/{step_id}/heartbeat``."""

    flow_id: str
    step_id: str
    sign: ProlongClaim

    def needs(self, needs: ReadSet) -> None:
        needs.flows.add(self.flow_id)
        needs.gates.add(step_key(self.flow_id, self.step_id))

    def decide(self, unit: UnitOfWork, now: int) -> ClaimProlonged:
        return cast(ClaimProlonged, prolong(unit, self.flow_id, self.step_id, self.sign, now))


@dataclass(slots=True)
class FinishWorkflow:
    """``POST .../complete``, ``/fail`` and ``/abort``."""

    flow_id: str
    ending: workflows.Ending
    reason: str | None = None

    def needs(self, needs: ReadSet) -> None:
        needs.open_flows.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> WorkflowEnded:
        workflows.end(unit, self.flow_id, self.ending, self.reason, now)
        status = WORKFLOW_STATUS[unit.flow(self.flow_id).status]
        return {
            "workflow_id": self.flow_id,
            "status": status,
            "reason": self.reason,
            "message": f"Workflow {status}",
            "finished_at": rfc3339(now),
        }


@dataclass(slots=True)
class ResumeWorkflow:
    """``POST .../resume``: changes nothing, and is refused for a workflow that cannot go on."""

    flow_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.open_flows.add(self.flow_id)
        needs.whole_flows.add(self.flow_id)

    def decide(self, unit: UnitOfWork, now: int) -> WorkflowEnded:
        workflows.resume(unit, self.flow_id)
        return {"workflow_id": self.flow_id, "status": "in_progress", "message": "Workflow resumed"}


@dataclass(slots=True)
class ResumeFromCheckpoint:
    """``POST .../checkpoints/resume`` and ``.../checkpoints/{checkpoint_id}/resume``."""

    flow_id: str
    step_id: str
    work_id: str
    caller: str

    def needs(self, needs: ReadSet) -> None:
        needs.open_flows.add(self.flow_id)
        needs.whole_flows.add(self.flow_id)
        needs.gates.add(step_key(self.flow_id, self.step_id))

    def decide(self, unit: UnitOfWork, now: int) -> tuple[int, bool]:
        """How often the run was resumed from there, and whether the workflow was reopened."""
        return resume_from(unit, self.flow_id, self.step_id, self.work_id, self.caller, now)
