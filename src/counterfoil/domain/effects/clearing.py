"""The last questions before an attempt is sent: its effect policy, its key, the policies and the reviewers."""

from __future__ import annotations

from counterfoil.domain.effects.dedup import has_key
from counterfoil.domain.effects.policies import UNSAFE_ONCE
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.policies.guarding import may_be_sent
from counterfoil.domain.policies.policy_set import PolicySet
from counterfoil.domain.records import StepVersion, Work
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.decisions import fail

REQUIRES_CONTROL = "UNSAFE_ONCE_REQUIRES_CONTROL"
NO_CONTROL = (
    "an unsafe_once step needs a control: an approval of its own, or an enabled policy that names it "
    "and blocks or requires an approval"
)


def is_controlled(step_id: str, definition: StepDefinition, policies: PolicySet) -> bool:
    """Whether an ``unsafe_once`` step has something in front of it that can stop a dispatch."""
    return definition.control.approval is not None or policies.controls(step_id, definition.kind)


def cleared(view: FlowView, work: Work, step: StepVersion, now: int) -> bool:
    """Whether the next attempt of an item may go out. If not, it waits or has ended by now: settle its flow then."""
    effect = step.definition.effect
    if effect.policy == UNSAFE_ONCE and not is_controlled(work.step_id, step.definition, view.policies()):
        view.record(fail(work, now, REQUIRES_CONTROL, NO_CONTROL, "policy"))
        return False
    if effect.dedupes and not has_key(view, work, step, now):
        return False
    return may_be_sent(view, work, step, now)
