"""Records as tests want them: complete, with only what matters spelt out."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.records import (
    Approval,
    DedupRecord,
    DedupWaiter,
    Flow,
    FlowInputs,
    Gate,
    Reconciliation,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.states import ApprovalStatus, Decision, FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps.definitions import StepDefinition, WorkDefaults
from counterfoil.domain.work.decisions import RetryRules
from counterfoil.store.kinds.approvals import APPROVALS
from counterfoil.store.kinds.effects import DEDUP, RECONCILIATIONS, WAITERS
from counterfoil.store.kinds.flows import FLOWS, INPUTS
from counterfoil.store.kinds.gate import GATES
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.kinds.work import WORK
from counterfoil.store.unit_of_work.changes import Changes

NOW = 1_800_000_000_000
ENDPOINT = "http://worker.test/step"
RETRY = RetryRules(draw=0.0, retry_after_limit_ms=3_600_000)
DEFAULTS = WorkDefaults(
    max_retries=2,
    backoff_type="fixed",
    init_backoff_ms=1_000,
    max_backoff_ms=60_000,
    jitter=False,
    ack_timeout_ms=2_000,
    deadline_ms=60_000,
)


def definition(**fields: Any) -> StepDefinition:
    return StepDefinition.model_validate({"endpoint": ENDPOINT, **fields})


def step_version(step_id: str = "step", **fields: Any) -> StepVersion:
    return StepVersion.of(step_id, definition(**fields), DEFAULTS)


def work_item(status: WorkStatus = WorkStatus.ACTIVE, **fields: Any) -> Work:
    """A work item in some state, as far as a decision looks at it: by default in its first attempt, acknowledged."""
    known: dict[str, Any] = {
        "work_id": "work",
        "flow_id": "flow",
        "step_id": "step",
        "item": 0,
        "version": "version",
        "status": status,
        "attempt": 0 if status is WorkStatus.PENDING else 1,
        "idempotency_key": "key",
        "lane": "step@worker.test",
        "created_at": NOW,
    }
    if status is WorkStatus.ACTIVE:
        known |= {"due_at": NOW + 60_000, "deadline_at": NOW + 60_000, "sent_at": NOW, "first_sent_at": NOW}
    elif status in (WorkStatus.PENDING, WorkStatus.NOT_COMPLETED):
        known["due_at"] = NOW
    elif status is not WorkStatus.HELD:
        known["recorded_at"] = NOW
    return Work(**{**known, **fields})


def step_run(status: StepStatus = StepStatus.ACTIVE, **fields: Any) -> StepRun:
    known: dict[str, Any] = {
        "flow_id": "flow",
        "step_id": "step",
        "version": "version",
        "status": status,
        "goal": True,
        "items": 1,
        "open_items": 1,
        "started_at": NOW,
    }
    return StepRun(**{**known, **fields})


def flow_record(status: FlowStatus = FlowStatus.ACTIVE, **fields: Any) -> Flow:
    known: dict[str, Any] = {"flow_id": "flow", "status": status, "created_at": NOW, "open_steps": 1}
    return Flow(**{**known, **fields})


def flow_inputs(flow_id: str = "flow", **fields: Any) -> FlowInputs:
    known: dict[str, Any] = {"flow_id": flow_id, "goals": ["step"], "init": {}, "metadata": {}, "labels": {}}
    return FlowInputs(**{**known, **fields})


def gate_record(**fields: Any) -> Gate:
    """What the gate knows after one call, which was allowed."""
    known: dict[str, Any] = {
        "flow_id": "flow",
        "step_id": "step",
        "work_id": "work",
        "idempotency_key": "key",
        "gate_count": 1,
        "completion_count": 0,
        "first_at": NOW,
        "last_at": NOW,
        "decision": Decision.ALLOW,
        "standing": Decision.ALLOW,
        "decision_id": "dec_1",
        "input_digest": "digest",
    }
    return Gate(**{**known, **fields})


def approval_record(status: ApprovalStatus = ApprovalStatus.PENDING, **fields: Any) -> Approval:
    known: dict[str, Any] = {
        "approval_id": "approval",
        "flow_id": "flow",
        "step_id": "step",
        "work_id": "work",
        "attempt": 1,
        "digest": "digest",
        "status": status,
        "requested_at": NOW,
        "expires_at": NOW + 60_000,
        "approvals": 1,
        "separate_requester": False,
        "severity": "medium",
    }
    return Approval(**{**known, **fields})


def reconciliation_record(**fields: Any) -> Reconciliation:
    """What is known of a work item that waits to be settled."""
    known: dict[str, Any] = {
        "work_id": "work",
        "flow_id": "flow",
        "step_id": "step",
        "hold": "reconcile",
        "cause": "ack_timeout",
        "attempt": 1,
        "since": NOW,
        "due_at": None,
    }
    return Reconciliation(**{**known, **fields})


KIND_OF: dict[type, Any] = {
    Reconciliation: RECONCILIATIONS,
    DedupRecord: DEDUP,
    DedupWaiter: WAITERS,
    Flow: FLOWS,
    StepRun: STEPS,
    Work: WORK,
    FlowInputs: INPUTS,
    Gate: GATES,
    Approval: APPROVALS,
}


class Written(Changes):
    """Changes that are written though no event tells of them: how a test puts records where it wants them."""

    def any(self) -> bool:
        return True


Recorded = Flow | StepRun | Work | FlowInputs | Gate | Approval | Reconciliation | DedupRecord | DedupWaiter


def new_records(*records: Recorded) -> Changes:
    """Changes that bring records into being, in whatever state they are."""
    changes = Written(at=NOW)
    for record in records:
        kind = KIND_OF[type(record)]
        changed, key = changes.of(kind), kind.key(record)
        changed[key] = record
        changed.new.add(key)
    return changes


def changed_records(*records: Recorded) -> Changes:
    """Changes that move existing records to the state they are in here."""
    changes = new_records(*records)
    for kind in KIND_OF.values():
        changes.of(kind).new.clear()
    return changes
