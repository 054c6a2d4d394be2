"""The register of steps as planning sees it: every current definition, and the providers of each value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from counterfoil.domain.errors import UnknownStep
from counterfoil.domain.records import StepVersion

if TYPE_CHECKING:
    from counterfoil.domain.flows.planning import Plan

MOST_PLANS = 1_000
"""The most plans that are cached with the register that they were made from."""


class Register:
    """All current steps at one revision. Immutable: another revision is another register."""

    def __init__(self, revision: int, versions: Iterable[StepVersion]) -> None:
        self.revision = revision
        self.steps: dict[str, StepVersion] = {version.step_id: version for version in versions}
        self._providers: dict[str, list[str]] = {}
        for step_id, version in self.steps.items():
            for name in version.definition.outputs:
                self._providers.setdefault(name, []).append(step_id)
        for name, providers in self._providers.items():
            providers.sort(key=lambda step_id: (-self.priority(step_id, name), step_id))
        self.plans: dict[tuple[tuple[str, ...], frozenset[str]], Plan] = {}

    def refuse_unknown(self, goals: Sequence[str]) -> None:
        """Raise UnknownStep if a goal is not a step. It names places, because the ids are values that a caller sent."""
        unknown = [f"goals.{place}" for place, step_id in enumerate(goals) if step_id not in self.steps]
        if unknown:
            errors = [{"place": place, "message": "no step is registered with this id"} for place in unknown]
            raise UnknownStep("a goal is not a registered step", errors=errors)

    def providers(self, name: str) -> list[str]:
        """The steps that provide a value: highest priority first, then by step id."""
        return self._providers.get(name, [])

    def priority(self, step_id: str, name: str) -> int:
        """The priority of the step as the provider of a value."""
        return self.steps[step_id].definition.outputs[name].priority

    def with_changes(self, changes: Mapping[str, StepVersion | None]) -> Register:
        """The register after steps were put or deleted, as the commands of the same batch see it."""
        if not changes:
            return self
        steps = {**self.steps, **changes}
        return Register(-1, (version for version in steps.values() if version is not None))

    def keep(self, key: tuple[tuple[str, ...], frozenset[str]], plan: Plan) -> None:
        if len(self.plans) >= MOST_PLANS:
            self.plans.clear()
        self.plans[key] = plan
