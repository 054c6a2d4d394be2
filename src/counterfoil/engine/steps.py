"""Registering steps, and deleting them from the register."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from counterfoil.domain.effects.clearing import NO_CONTROL, is_controlled
from counterfoil.domain.effects.policies import UNSAFE_ONCE
from counterfoil.domain.errors import InvalidStep, UnknownStep, UnsafeOnceRequiresControl
from counterfoil.domain.flows.requests import invalid_own_values
from counterfoil.domain.records import StepVersion
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.engine.approvals.warnings import approval_warnings
from counterfoil.engine.context import EngineContext
from counterfoil.engine.queries.queries import Queries
from counterfoil.store.group_commit.commit import GroupCommit
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from counterfoil.wire.steps import StepPut


@dataclass
class PutStep:
    """Make a definition the current one of its step; flows under way keep the one that they were started with."""

    version: StepVersion

    def needs(self, needs: ReadSet) -> None:
        needs.steps.add(self.version.step_id)

    def decide(self, unit: UnitOfWork, now: int) -> bool:
        """True when the step is new."""
        wrong = invalid_own_values(self.version.definition, unit.findings)
        if wrong:
            raise InvalidStep(errors=wrong)
        definition = self.version.definition
        if definition.effect.policy == UNSAFE_ONCE and not is_controlled(
            self.version.step_id, definition, unit.policies()
        ):
            raise UnsafeOnceRequiresControl(errors=[{"place": "effect.policy", "message": NO_CONTROL}])
        current = unit.current_version(self.version.step_id)
        if current is None or current.version != self.version.version:
            unit.put_current(self.version.step_id, self.version)
        return current is None


@dataclass
class DeleteStep:
    """Take a step out of the register; flows under way are not touched."""

    step_id: str

    def needs(self, needs: ReadSet) -> None:
        needs.steps.add(self.step_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        if unit.current_version(self.step_id) is None:
            raise UnknownStep
        unit.put_current(self.step_id, None)


class Steps:
    """The use cases of steps."""

    def __init__(self, context: EngineContext, commit: GroupCommit, queries: Queries, *, can_verify: bool) -> None:
        """``can_verify``: whether the engine has a secret to check signatures with."""
        self._context = context
        self._commit = commit
        self._queries = queries
        self._can_verify = can_verify

    async def put(self, step_id: str, definition: StepDefinition) -> tuple[StepPut, bool]:
        """Register a step; returns it and whether it is new."""
        if definition.require_signature and not self._can_verify:
            place = {"place": "require_signature", "message": "the engine has no signing secret to check with"}
            raise InvalidStep(errors=[place])
        if definition.accept is not None and definition.accept.signature is not None:
            problem = definition.accept.signature.check.problem_of_secret(self._context.secrets)
            if problem is not None:
                raise InvalidStep(errors=[{"place": "accept.signature.secret", "message": problem}])
        version = StepVersion.of(step_id, definition, self._context.defaults)
        created = await self._commit.submit(PutStep(version))
        terms = definition.control.approval
        warnings = approval_warnings(terms, self._context.reviewers, kind="step_id", name=step_id)
        document = cast(StepPut, await self._queries.step(step_id))
        if warnings:
            document["warnings"] = warnings
        return document, created

    async def delete(self, step_id: str) -> None:
        await self._commit.submit(DeleteStep(step_id))
