"""Calls of agents: workflows, gate calls, and reports of outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack, cast

from counterfoil.client.arguments import Label, label_text, mapping
from counterfoil.client.connection import ApiConnection, part
from counterfoil.client.documents import (
    ClaimProlonged,
    GateAnswer,
    PendingApproval,
    StepReviewed,
    Workflow,
    WorkflowEnded,
    WorkflowPage,
    WorkflowStepDetail,
)

Scope = Literal["step", "global"]


class GateOptions(TypedDict, total=False):
    """Options of a gate call; all are optional."""

    key: str | None
    """The idempotency key: the first call fixes it, and all later ones must give it."""
    input: Mapping[str, Any]
    """The arguments of the step: policies and reviewers see them."""
    retry_policy: Literal["idempotent", "reevaluate"]
    claim: float | None
    """Seconds for which no other agent may run the step."""
    holder: str | None
    """The holder of the claim; another call of the same holder prolongs it."""
    step_name: str
    step_type: str
    tool: Mapping[str, Any]
    """``tool_name``, ``tool_type`` and ``tool_input``."""
    model: str
    provider: str
    tokens_in: int
    tokens_out: int
    cost_usd: float
    key_scope: Scope
    key_window: str | int
    on_duplicate: Literal["refuse", "replay"]


_FIELDS = {
    "key": "idempotency_key",
    "input": "step_input",
    "tool": "tool_context",
    "key_scope": "idempotency_scope",
    "key_window": "idempotency_window",
}
"""Options that have another name on the wire."""
OBJECTS = frozenset({"input", "labels", "metadata", "output", "step_input", "tool", "tool_context"})
"""Arguments that are JSON objects."""


class WorkflowCalls(ApiConnection):
    """Workflows and their steps."""

    async def create_workflow(
        self,
        workflow_name: str,
        *,
        source: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        trace_id: str | None = None,
        total_steps: int | None = None,
        key: str | None = None,
        key_scope: Scope | None = None,
        key_window: str | int | None = None,
    ) -> Workflow:
        """Create a workflow. With a ``key``, a repeat of the request returns the same workflow.

        ``key_scope="global"`` makes the keys of its steps unique across workflows, for ``key_window`` (24h).
        """
        given = {
            "workflow_name": workflow_name,
            "source": source,
            "metadata": metadata,
            "labels": labels,
            "trace_id": trace_id,
            "total_steps": total_steps,
            "idempotency_key": key,
            "idempotency_scope": key_scope,
            "idempotency_window": key_window,
        }
        return cast(Workflow, await self._call("POST", "/api/v1/workflows", body=_said(given)))

    async def get_workflow(self, workflow_id: str) -> Workflow:
        """A workflow with its steps."""
        return cast(Workflow, await self._call("GET", f"/api/v1/workflows/{part(workflow_id)}"))

    async def list_workflows(
        self,
        *,
        status: str | None = None,
        source: str | None = None,
        trace_id: str | None = None,
        label: Label | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> WorkflowPage:
        """One page of workflows, newest first; pass ``next_cursor`` as ``cursor`` for the next one."""
        wanted = {"status": status, "source": source, "trace_id": trace_id, "cursor": cursor, "limit": limit}
        if label is not None:
            wanted["label"] = label_text(label)
        return cast(WorkflowPage, await self._call("GET", "/api/v1/workflows", query=wanted))

    async def workflow_step(self, workflow_id: str, step_id: str) -> WorkflowStepDetail:
        """A step with the history of all its decisions and attempts."""
        return cast(WorkflowStepDetail, await self._call("GET", _step(workflow_id, step_id)))

    async def complete_workflow(self, workflow_id: str) -> WorkflowEnded:
        """It is done. Steps that were allowed and never reported are cancelled."""
        return await self._end(workflow_id, "complete", None)

    async def fail_workflow(self, workflow_id: str, reason: str | None = None) -> WorkflowEnded:
        return await self._end(workflow_id, "fail", reason)

    async def abort_workflow(self, workflow_id: str, reason: str | None = None) -> WorkflowEnded:
        """Give it up; what is open of it is cancelled."""
        return await self._end(workflow_id, "abort", reason)

    async def resume_workflow(self, workflow_id: str) -> WorkflowEnded:
        """Check that the workflow can continue: refused if it has ended, has a pending approval or a rejected step."""
        return await self._end(workflow_id, "resume", None)

    async def _end(self, workflow_id: str, verb: str, reason: str | None) -> WorkflowEnded:
        body = None if reason is None else {"reason": reason}
        return cast(WorkflowEnded, await self._call("POST", f"/api/v1/workflows/{part(workflow_id)}/{verb}", body=body))

    # -- steps of a workflow -------------------------------------------------------------------

    async def gate(
        self,
        workflow_id: str,
        step_id: str,
        *,
        include_prior_output: bool = False,
        **options: Unpack[GateOptions],
    ) -> GateAnswer:
        """Ask whether a step may be run: ``decision`` is allow, block or require_approval.

        A retry gets the recorded decision, unless ``retry_policy="reevaluate"`` evaluates the policies again.
        """
        query = {"include_prior_output": "true"} if include_prior_output else None
        path = f"{_step(workflow_id, step_id)}/gate"
        return cast(GateAnswer, await self._call("POST", path, body=_question(**options), query=query))

    async def complete_step(
        self,
        workflow_id: str,
        step_id: str,
        output: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        tokens_in: int | None = None,
        tokens_out: int | None = None,
        cost_usd: float | None = None,
    ) -> bool:
        """Record the output of a step; True: the same outcome was recorded before, and nothing has changed.

        The first outcome is final: another one is refused (``CompletionConflictError``).
        """
        usage = {"tokens_in": tokens_in, "tokens_out": tokens_out, "cost_usd": cost_usd}
        return await self._report(workflow_id, step_id, {"output": output, "idempotency_key": key, **usage})

    async def fail_step(
        self,
        workflow_id: str,
        step_id: str,
        error: str,
        *,
        retriable: bool | None = None,
        key: str | None = None,
        holder: str | None = None,
    ) -> bool:
        """Report a failed attempt; the step stays open. True: the same failure was recorded before.

        ``holder``: the holder of the claim; if another agent has claimed the step meanwhile, the report is refused.
        """
        failure = {"success": False, "error": error, "retriable": retriable, "idempotency_key": key, "holder": holder}
        return await self._report(workflow_id, step_id, failure)

    async def prolong_claim(
        self,
        workflow_id: str,
        step_id: str,
        holder: str,
        lease_seconds: float = 60.0,
        *,
        progress: float | None = None,
        message: str | None = None,
    ) -> ClaimProlonged:
        """Prolong a claim to so many seconds from now. It does not count as a gate call."""
        sign = {"holder": holder, "lease_seconds": lease_seconds, "progress": progress, "message": message}
        path = f"{_step(workflow_id, step_id)}/heartbeat"
        return cast(ClaimProlonged, await self._call("POST", path, body=_said(sign)))

    async def _report(self, workflow_id: str, step_id: str, said: Mapping[str, Any]) -> bool:
        answer = await self._exchange("POST", f"{_step(workflow_id, step_id)}/complete", body=_said(said))
        return answer.headers.get("Idempotent-Replayed") == "true"

    # -- reviews -------------------------------------------------------------------------------

    async def approve_step(self, workflow_id: str, step_id: str, comment: str | None = None) -> StepReviewed:
        """Approve a step of a workflow."""
        body = _said({"comment": comment})
        return cast(StepReviewed, await self._call("POST", f"{_step(workflow_id, step_id)}/approve", body=body))

    async def reject_step(self, workflow_id: str, step_id: str, reason: str | None = None) -> StepReviewed:
        """Reject a step of a workflow. One rejection is enough."""
        body = _said({"reason": reason})
        return cast(StepReviewed, await self._call("POST", f"{_step(workflow_id, step_id)}/reject", body=body))

    async def pending_approvals(self, *, limit: int | None = None) -> list[PendingApproval]:
        """Pending approvals, oldest first."""
        document = await self._call("GET", "/api/v1/workflows/approvals/pending", query={"limit": limit})
        return cast("list[PendingApproval]", document["pending_approvals"])


def _step(workflow_id: str, step_id: str) -> str:
    return f"/api/v1/workflows/{part(workflow_id)}/steps/{part(step_id)}"


def check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that the gate does not have, or that is no JSON object where one is needed."""
    unknown = options.keys() - GateOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}; the options are {', '.join(GateOptions.__annotations__)}")
    _objects(options)


def _question(**options: Unpack[GateOptions]) -> dict[str, Any]:
    """The options as the body of a call of the gate."""
    check_options(options)
    body = _said({_FIELDS.get(name, name): value for name, value in options.items()})
    lease, holder = body.pop("claim", None), body.pop("holder", None)
    if lease is not None:
        body["claim"] = _said({"lease_seconds": lease, "holder": holder})
    return body


def _objects(given: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument that must be a JSON object and is none."""
    for name in OBJECTS & given.keys():
        if given[name] is not None:
            mapping(name, given[name])


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given."""
    _objects(given)
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in given.items() if value is not None
    }
