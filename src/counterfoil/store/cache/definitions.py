"""Definitions, plans and findings, which are named by their content, and the last revision of the register.

None of that changes under its name, so it cannot be out of date. Policies and subscriptions can: every batch that
writes proves that they have not changed since. The cache is shared by all batches of a node.
"""

from __future__ import annotations

from collections.abc import Iterable

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.policies.controls import Controls
from counterfoil.domain.records import GATED, GATED_STEP, UNDOING, StepVersion
from counterfoil.domain.steps.checks import Findings
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.steps.register import Register

MOST_PLANS = 10_000
"""Plans that are kept at hand; those that were met first are forgotten first, and loaded again when they are needed."""

MOST_FINDINGS = 10_000
"""The same of findings: a decision needs one only until it is made."""

NO_REGISTER = Register(-1, ())


class DefinitionCache:
    """Definitions by version, plans by id, and the register."""

    def __init__(self, versions: dict[str, StepVersion] | None = None, defaults: WorkDefaults | None = None) -> None:
        self.versions: dict[str, StepVersion] = {} if versions is None else versions
        self.versions[GATED] = GATED_STEP
        self.plans: dict[str, Plan] = {}
        """Only what is durable: a flow may name it without writing it again."""
        self.register = NO_REGISTER
        self.controls: Controls | None = None
        """Policies and subscriptions as they were seen last. A batch that has seen older ones than the store has writes
        nothing; None: they have changed, or were never loaded."""
        self.findings: dict[bytes, str | None] = {}
        """What was found out about values whose check takes long."""
        self._defaults = defaults or WorkDefaults()

    @property
    def controls_revision(self) -> int:
        return -1 if self.controls is None else self.controls.revision

    def version(self, name: str) -> StepVersion | None:
        found = self.versions.get(name)
        if found is None and name.endswith(UNDOING):
            undone = self.versions.get(name.removesuffix(UNDOING))
            if undone is not None:
                found = self.versions[name] = undone.undoing(self._defaults)
        return found

    def learn_plans(self, plans: Iterable[Plan]) -> None:
        for plan in plans:
            self.plans[plan.plan_id] = plan
        while len(self.plans) > MOST_PLANS:
            del self.plans[next(iter(self.plans))]

    def learn_findings(self, findings: Findings) -> None:
        self.findings.update(findings)
        while len(self.findings) > MOST_FINDINGS:
            del self.findings[next(iter(self.findings))]
