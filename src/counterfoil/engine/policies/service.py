"""What administrators ask of policies."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.trials import PolicyTrial
from counterfoil.domain.states import Decision
from counterfoil.engine.approvals.warnings import approval_warnings
from counterfoil.engine.context import EngineContext
from counterfoil.engine.policies.commands import DeletePolicy, PutPolicy, TryPolicy
from counterfoil.engine.policies.files import SOURCE
from counterfoil.engine.queries.control_documents import policy_document
from counterfoil.engine.queries.control_queries import ControlQueries
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.wire.policies import EvaluatedCall, MatchedPolicy, PolicyPut, PolicyTested


class Policies:
    """The use cases of policies."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: ControlQueries) -> None:
        self._context = context
        self._commit = commit
        self._queries = queries

    async def put(
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

    async def delete(self, policy_id: str, changed_by: str) -> None:
        await self._commit.submit(DeletePolicy(policy_id, changed_by))

    async def put_file(self, definitions: dict[str, PolicyDefinition]) -> None:
        """Have exactly these policies in force that come from a file."""
        for policy_id, definition in definitions.items():
            await self.put(policy_id, definition, SOURCE, SOURCE)
        for policy_id in await self._queries.policies_from(SOURCE):
            if policy_id not in definitions:
                await self.delete(policy_id, SOURCE)

    async def test(self, trial: PolicyTrial) -> PolicyTested:
        """The decision of one policy, or of all that are in force."""
        ruling, subject = await self._commit.submit(TryPolicy(trial))
        return {
            "decision": ruling.decision,
            "matched": bool(ruling.matched),
            "reason": ruling.reason,
            "policies_matched": [cast(MatchedPolicy, matched.document()) for matched in ruling.matched],
            "subject": cast(EvaluatedCall, asdict(subject)),
        }
