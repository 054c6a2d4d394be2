"""Registering steps and taking them out of the register."""

from __future__ import annotations

from dataclasses import dataclass

from counterfoil.domain.errors import InvalidStep, UnknownStep
from counterfoil.domain.flows.requests import invalid_own_values
from counterfoil.domain.records import StepVersion
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork


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
