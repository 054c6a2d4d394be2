"""Reading workflows, approvals and policies. Readers never wait for the writer."""

from __future__ import annotations

import re
from typing import Any

import orjson

from counterfoil.domain.errors import (
    NotResumable,
    UnknownApproval,
    UnknownCheckpoint,
    UnknownPolicy,
    UnknownStep,
    UnknownWorkflow,
)
from counterfoil.domain.gate.checkpoints import NO_COMPLETED_STEP
from counterfoil.domain.policies.definitions import POLICY_ID_PATTERN
from counterfoil.domain.states import FlowStatus
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.control_documents import (
    GatedStep,
    approval_fields,
    checkpoint_documents,
    gated_step,
    listed_workflow,
    pending_approval,
    policy_document,
    policy_version_document,
)
from counterfoil.engine.queries.documents import event_document
from counterfoil.engine.queries.reading import Listed, converted, not_a_cursor, numeric_cursor, read, read_list
from counterfoil.store.kinds.approvals import read_approval
from counterfoil.store.kinds.policies import read_policy
from counterfoil.store.protocol import Store
from counterfoil.wire.approvals import (
    ApprovalDocument,
    ApprovalFields,
    ApprovalsPage,
    PendingApprovals,
)
from counterfoil.wire.gate.workflows import (
    CheckpointDocument,
    CheckpointsPage,
    WorkflowDocument,
    WorkflowsPage,
    WorkflowStep,
    WorkflowStepDetail,
)
from counterfoil.wire.journal import JournalEvent
from counterfoil.wire.policies import PoliciesPage, PolicyDocument, PolicyVersions

_FLOW_STATUS = {"in_progress": "active", "completed": "completed", "failed": "failed", "aborted": "cancelled"}
MOST_VERSIONS = 100
MOST_POLICIES = 100_000


class ControlQueries:
    """Every read of workflows, approvals and policies."""

    def __init__(self, store: Store, context: EngineContext) -> None:
        self._store = store
        self._context = context

    async def workflow(self, workflow_id: str) -> WorkflowDocument:
        rows = await self._read("get_workflow", flow_id=workflow_id)
        if not rows:
            raise UnknownWorkflow
        steps = await self._steps(workflow_id)
        document = listed_workflow(rows[0])
        return {**document, "current_step_index": max(len(steps) - 1, 0), "steps": steps}

    async def workflows(
        self,
        *,
        status: str | None,
        source: str | None,
        trace_id: str | None,
        label: tuple[str, str] | None,
        cursor: str | None,
        limit: int,
        offset: int,
    ) -> WorkflowsPage:
        filters = {
            "status": None if status is None else _FLOW_STATUS[status],
            "source": None if source is None else f"source:{source}",
            "trace_id": None if trace_id is None else f"trace_id:{trace_id}",
            "label": None if label is None else f"{label[0]}:{label[1]}",
        }
        before = numeric_cursor(cursor)
        rows, following = await self._list("list_workflows", limit, before=before, offset=offset, **filters)
        return {
            "workflows": await converted(listed_workflow, rows),
            "total": await self._count_workflows(**filters),
            "limit": limit,
            "offset": offset,
            "has_more": following is not None,
            "next_cursor": following,
        }

    async def _count_workflows(self, *, status: str | None, **labels: str | None) -> int:
        """How many workflows match, counted along an index: that of the rarest label, or that of all workflows."""
        given = [labels[name] for name in ("trace_id", "label", "source") if labels[name] is not None]
        if given:
            first, second, third = [*given, None, None][:3]
            rows = await self._read("count_labelled_workflows", status=status, label=first, second=second, third=third)
        else:
            rows = await self._read("count_workflows", status=status)
        return int(rows[0][0]) if rows else 0  # no row: a label that no database can hold

    async def checkpoints(self, workflow_id: str) -> CheckpointsPage:
        documents, _ = await self._checkpoints(workflow_id)
        return {"workflow_id": workflow_id, "checkpoints": documents}

    async def checkpoint(self, workflow_id: str, checkpoint_id: int | None) -> tuple[CheckpointDocument, str]:
        """One checkpoint, and the work item that it stands for; without an id the last one of a completed step."""
        documents, steps = await self._checkpoints(workflow_id)
        pairs = list(zip(documents, steps, strict=True))
        for document, step in reversed(pairs):
            if document["id"] == checkpoint_id or (checkpoint_id is None and step.gate.completed_work_id is not None):
                return document, step.work_id
        if checkpoint_id is None:
            raise NotResumable(NO_COMPLETED_STEP, workflow_id=workflow_id)
        raise UnknownCheckpoint(workflow_id=workflow_id)

    async def _checkpoints(self, workflow_id: str) -> tuple[list[CheckpointDocument], list[GatedStep]]:
        rows = await self._read("get_workflow", flow_id=workflow_id)
        if not rows:
            raise UnknownWorkflow
        _, _, status, *_, pruned_at = rows[0]
        steps = [GatedStep.of(row) for row in await self._read("get_gates", flow_id=workflow_id)]
        return checkpoint_documents(steps, FlowStatus(status), pruned=pruned_at is not None), steps

    async def workflow_step(self, workflow_id: str, step_id: str) -> WorkflowStepDetail:
        """A step with the history of all its decisions, approvals, attempts and reports."""
        document = await self.workflow(workflow_id)
        step = next((step for step in document["steps"] if step["step_id"] == step_id), None)
        if step is None:
            raise UnknownStep("no gate call was made for this step")
        rows = await self._read("work_of_flow", flow_id=workflow_id)
        work = [work_id for _, work_id, _, of_step, *_ in rows if of_step == step_id]
        history = await self._history([(workflow_id, work_id) for work_id in work])
        return {"workflow_id": workflow_id, **step, "history": history}

    async def _steps(self, workflow_id: str) -> list[WorkflowStep]:
        now = self._context.clock()
        rows = await self._read("get_gates", flow_id=workflow_id)
        return [gated_step(row, index, now) for index, row in enumerate(rows)]

    async def approval_flow(self, approval_id: str) -> str:
        """The flow of an approval."""
        rows = await self._read("get_approval", approval_id=approval_id)
        if not rows:
            raise UnknownApproval
        return read_approval(rows[0][1:]).flow_id

    async def approval(self, approval_id: str) -> ApprovalDocument:
        """An approval with the attempts of its work item so far."""
        rows = await self._read("get_approval", approval_id=approval_id)
        if not rows:
            raise UnknownApproval
        return (await self._with_history([approval_fields(read_approval(rows[0][1:]))]))[0]

    async def approvals(
        self, *, status: str | None, flow_id: str | None, cursor: str | None, limit: int
    ) -> ApprovalsPage:
        approvals, following = await self._approvals(status=status, flow_id=flow_id, cursor=cursor, limit=limit)
        return {"approvals": await self._with_history(approvals), "next_cursor": following}

    async def _approvals(
        self, *, status: str | None, flow_id: str | None, cursor: str | None, limit: int
    ) -> tuple[list[ApprovalFields], str | None]:
        """One page of approvals, and the cursor of the next page."""
        rows, following = await self._list(
            "list_approvals", limit, status=status, flow_id=flow_id, after=numeric_cursor(cursor)
        )
        return await converted(lambda row: approval_fields(read_approval(row[1:])), rows), following

    async def _with_history(self, approvals: list[ApprovalFields]) -> list[ApprovalDocument]:
        """Each approval with every event of its work item."""
        items = sorted({(approval["flow_id"], approval["work_id"]) for approval in approvals})
        histories: dict[str | None, list[JournalEvent]] = {work_id: [] for _, work_id in items}
        for event in await self._history(items):
            histories[event["work_id"]].append(event)
        return [{**approval, "history": histories[approval["work_id"]]} for approval in approvals]

    async def _history(self, items: list[tuple[str, str]]) -> list[JournalEvent]:
        """The events of some work items (pairs of flow id and work id), oldest first."""
        rows = await self._read("journal_of_works", work=orjson.dumps(items).decode())
        return await converted(event_document, rows)

    async def pending_approvals(self, *, limit: int, offset: int) -> PendingApprovals:
        """Pending approvals, oldest first, with the field names that agents use."""
        rows, following = await self._list("list_pending_approvals", limit, offset=offset)
        pending = await converted(pending_approval, rows)
        [[total]] = await self._read("count_pending_approvals")
        return {
            "pending_approvals": pending,
            "count": len(pending),
            "total": total,
            "limit": limit,
            "offset": offset,
            "has_more": following is not None,
        }

    async def policy(self, policy_id: str) -> PolicyDocument:
        rows = await self._read("get_policy", policy_id=policy_id)
        if not rows:
            raise UnknownPolicy
        return policy_document(read_policy(rows[0]))

    async def policies(self, *, cursor: str | None, limit: int) -> PoliciesPage:
        """By id; a cursor is the last id of the page before."""
        if cursor is not None and not re.fullmatch(POLICY_ID_PATTERN, cursor):
            raise not_a_cursor()
        rows, following = await self._list("list_policies", limit, after=cursor)
        return {"policies": [policy_document(read_policy(row)) for row in rows], "next_cursor": following}

    async def policies_from(self, source: str) -> list[str]:
        """The ids of all policies in force that come from there."""
        rows = await self._read("list_policies", after=None, limit=MOST_POLICIES)
        return [policy_id for policy_id, _, _, own_source, *_ in rows if own_source == source]

    async def policy_versions(self, policy_id: str) -> PolicyVersions:
        rows = await self._read("policy_versions", policy_id=policy_id, limit=MOST_VERSIONS)
        if not rows:
            raise UnknownPolicy
        return {"policy_id": policy_id, "versions": [policy_version_document(row) for row in rows]}

    async def _read(self, query: str, **parameters: Any) -> list[Any]:
        return await read(self._store, query, **parameters)

    async def _list(self, query: str, limit: int, **parameters: Any) -> Listed:
        return await read_list(self._store, query, self._context.page_bytes, limit, **parameters)
