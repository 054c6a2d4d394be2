"""Checkpoints: the completed steps of a workflow, from which its run can continue.

Every gated step is a checkpoint. A run can be resumed from one whose completion is recorded: it continues behind that
step, which is not run again, so no policy is evaluated for it. The gate of the next step evaluates them.

Resuming makes an aborted workflow active again. What the abort cancelled stays cancelled: the next gate call of such a
step is evaluated like its first one.
"""

from __future__ import annotations

from collections.abc import Collection

from counterfoil.domain.errors import NotResumable, UnknownCheckpoint
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.calls import WORKFLOW_STATUS, workflow
from counterfoil.domain.gate.workflows import refuse_unapproved
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.journal.evolving_gate import RESUMES
from counterfoil.domain.records import Gate
from counterfoil.domain.states import ApprovalStatus, FlowStatus
from counterfoil.domain.work.decisions import work_event

RESUMABLE = frozenset({FlowStatus.ACTIVE, FlowStatus.CANCELLED})
"""What has completed or failed has an outcome, which does not change."""
NO_COMPLETED_STEP = "no step of the workflow is completed, so there is nothing to resume from; create a new workflow"


def resume_from(view: FlowView, flow_id: str, step_id: str, work_id: str, caller: str, now: int) -> tuple[int, bool]:
    """Resume a run behind a completed step; returns how often that was done, and whether the workflow was reopened.

    ``work_id``: the completion that the checkpoint stands for.
    """
    flow, gate = workflow(view, flow_id), view.find_gate(flow_id, step_id)
    if gate is None or work_id not in (gate.completed_work_id, gate.work_id):
        raise UnknownCheckpoint(workflow_id=flow_id)
    details = {"workflow_id": flow_id, "step_id": step_id, "status": WORKFLOW_STATUS[flow.status]}
    if flow.status not in RESUMABLE:
        raise NotResumable(f"the workflow is {details['status']}, and that is final", **details)
    if gate.completed_work_id is None:
        raise NotResumable("the step of this checkpoint is not completed", **details)
    done = view.work(gate.completed_work_id)
    if (done.result or {}).get("pruned"):
        raise NotResumable("the outputs of the workflow have been pruned", **details)
    refuse_unapproved(view, flow_id)
    reopened = flow.status is FlowStatus.CANCELLED
    if reopened:
        view.record(Event(EventType.FLOW_REDRIVEN, now, flow_id, data={}))
    data = {"by": caller, "reopened": reopened}
    view.record(work_event(done, EventType.CHECKPOINT_RESUMED, now, data))
    return resume_count(gate) + 1, reopened


def resume_count(gate: Gate) -> int:
    count: int = gate.facts.get(RESUMES, 0)
    return count


def is_resumable(gate: Gate, status: FlowStatus, approvals: Collection[str | None], *, pruned: bool) -> bool:
    """Whether a run can be resumed from a step. ``approvals``: the states of those of all steps of the workflow."""
    undecided = {ApprovalStatus.PENDING, ApprovalStatus.REJECTED} & {*approvals}
    return gate.completed_work_id is not None and status in RESUMABLE and not pruned and not undecided
