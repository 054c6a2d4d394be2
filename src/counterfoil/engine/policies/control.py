"""The control side of the engine: workflows and their gate, approvals, policies."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, cast

from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import CompleteStep, CreateWorkflow, ProlongClaim
from counterfoil.domain.gate.retry_context import retry_context
from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.trials import PolicyTrial
from counterfoil.domain.states import Decision
from counterfoil.engine.approvals.commands import ExpireApproval, Review, ReviewStep, Verdict
from counterfoil.engine.approvals.warnings import approval_warnings
from counterfoil.engine.context import EngineContext
from counterfoil.engine.gate import AskGate, BeginWorkflow, EndWorkflow, Prolong, ReportStep, ResumeWorkflow
from counterfoil.engine.policies.commands import DeletePolicy, PutPolicy, TryPolicy
from counterfoil.engine.policies.files import SOURCE
from counterfoil.engine.queries.control_documents import policy_document, reviewed_step
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.observability.metrics import Metrics
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.wire.approvals import ApprovalDocument, StepReviewed
from counterfoil.wire.gate import ClaimProlonged, GateAnswer, RetryContext
from counterfoil.wire.policies import EvaluatedCall, MatchedPolicy, PolicyPut, PolicyTested
from counterfoil.wire.workflows import WorkflowDocument, WorkflowEnded

Ending = Literal["completed", "failed", "cancelled"]


class Control:
    """What agents, reviewers and administrators ask of the engine."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: ControlQueries, metrics: Metrics) -> None:
        self._context = context
        self._commit = commit
        self._metrics = metrics
        self.queries = queries

    # Workflows ----------------------------------------------------------------------------------------------------

    async def create_workflow(self, request: CreateWorkflow, caller: str) -> tuple[WorkflowDocument, bool]:
        """The workflow, and whether it is new."""
        begin = BeginWorkflow(f"wf_{self._context.new_id()}", request, caller)
        workflow_id, created = await self._commit.submit(begin)
        return await self.queries.workflow(workflow_id), created

    async def gate(self, call: GateCall) -> GateAnswer:
        answer = await self._commit.submit(AskGate(call))
        self._metrics.gated(answer["decision"], answer["decision_source"])
        return answer

    async def complete_step(self, workflow_id: str, step_id: str, report: CompleteStep) -> bool:
        """Whether the same was recorded already."""
        return await self._commit.submit(ReportStep(workflow_id, step_id, report))

    async def prolong_claim(self, workflow_id: str, step_id: str, sign: ProlongClaim) -> ClaimProlonged:
        return await self._commit.submit(Prolong(workflow_id, step_id, sign))

    async def end_workflow(self, workflow_id: str, ending: Ending, reason: str | None = None) -> WorkflowEnded:
        return await self._commit.submit(EndWorkflow(workflow_id, ending, reason))

    async def resume_workflow(self, workflow_id: str) -> WorkflowEnded:
        return await self._commit.submit(ResumeWorkflow(workflow_id))

    # Approvals ----------------------------------------------------------------------------------------------------

    async def review(self, approval_id: str, reviewer: str, verdict: Verdict, comment: str | None) -> ApprovalDocument:
        flow_id = await self.queries.approval_flow(approval_id)
        approval = await self._commit.submit(Review(approval_id, flow_id, reviewer, verdict, comment))
        self._metrics.reviewed(approval.status)
        return await self.queries.approval(approval_id)

    async def review_step(
        self, workflow_id: str, step_id: str, reviewer: str, verdict: Verdict, comment: str | None
    ) -> StepReviewed:
        command = ReviewStep(workflow_id, step_id, reviewer, verdict, comment)
        gate, approval = await self._commit.submit(command)
        self._metrics.reviewed(approval.status)
        return reviewed_step(gate, approval, cast(RetryContext, retry_context(gate, gate.decision)))

    async def expire_approvals(self, now: int, limit: int) -> int:
        """Those that nobody gave in time, at most so many; how many they were."""
        find = Find.of("find_expired_approvals", now=now, limit=limit)
        expired = sum(await self._commit.submit(ForEach(find, ExpireApproval)))
        for _ in range(expired):
            self._metrics.reviewed("expired")
        return expired

    # Policies -----------------------------------------------------------------------------------------------------

    async def put_policy(
        self, policy_id: str, definition: PolicyDefinition, changed_by: str, source: str = "api"
    ) -> tuple[PolicyPut, bool]:
        """The policy as it is now, and whether it is new."""
        policy: KeptPolicy
        policy, created = await self._commit.submit(PutPolicy(policy_id, definition, changed_by, source))
        asks = definition.enabled and definition.action.type is Decision.REQUIRE_APPROVAL
        terms = definition.action if asks else None
        warnings = approval_warnings(terms, self._context.reviewers, kind="policy_id", name=policy_id)
        document = cast(PolicyPut, policy_document(policy))
        if warnings:
            document["warnings"] = warnings
        return document, created

    async def delete_policy(self, policy_id: str, changed_by: str) -> None:
        await self._commit.submit(DeletePolicy(policy_id, changed_by))

    async def put_policies(self, definitions: dict[str, PolicyDefinition]) -> None:
        """Have exactly these policies in force that come from a file."""
        for policy_id, definition in definitions.items():
            await self.put_policy(policy_id, definition, SOURCE, SOURCE)
        for policy_id in await self.queries.policies_from(SOURCE):
            if policy_id not in definitions:
                await self.delete_policy(policy_id, SOURCE)

    async def try_policy(self, trial: PolicyTrial) -> PolicyTested:
        """What a policy would say, or all that are in force."""
        ruling, subject = await self._commit.submit(TryPolicy(trial))
        return {
            "decision": ruling.decision,
            "matched": bool(ruling.matched),
            "reason": ruling.reason,
            "policies_matched": [cast(MatchedPolicy, matched.document()) for matched in ruling.matched],
            "subject": cast(EvaluatedCall, asdict(subject)),
        }
