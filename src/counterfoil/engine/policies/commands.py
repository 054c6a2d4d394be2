"""Commands for policies; each change is a version that is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from counterfoil.domain.errors import UnknownPolicy, UnknownStep
from counterfoil.domain.gate.calls import workflow
from counterfoil.domain.gate.retry_context import attempt_of
from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.policies.policy_set import Policy, PolicySet, Ruling, Subject
from counterfoil.domain.policies.trials import PolicyTrial, RecordedCall
from counterfoil.store.kinds.policies import POLICIES
from counterfoil.store.unit_of_work.read_set import ReadSet, step_key
from counterfoil.store.unit_of_work.unit import UnitOfWork


@dataclass(slots=True)
class PutPolicy:
    """``PUT /api/v1/policies/{policy_id}``. The same definition again changes nothing."""

    policy_id: str
    definition: PolicyDefinition
    changed_by: str
    source: str = "api"

    def needs(self, needs: ReadSet) -> None:
        needs.policies.add(self.policy_id)

    def decide(self, unit: UnitOfWork, now: int) -> tuple[KeptPolicy, bool]:
        """The policy, and whether it is new."""
        found = unit.records(POLICIES).get(self.policy_id)
        if found is not None and found.definition == self.definition and found.source == self.source:
            return found, False
        version, created_at = (1, now) if found is None else (found.version + 1, found.created_at)
        policy = KeptPolicy(self.policy_id, version, self.definition, self.source, self.changed_by, created_at, now)
        unit.put_policy(policy)
        return policy, found is None or found.definition is None


@dataclass(slots=True)
class DeletePolicy:
    """The policy applies to nothing from now on; its versions stay."""

    policy_id: str
    changed_by: str

    def needs(self, needs: ReadSet) -> None:
        needs.policies.add(self.policy_id)

    def decide(self, unit: UnitOfWork, now: int) -> None:
        found = unit.records(POLICIES).get(self.policy_id)
        if found is None or found.definition is None:
            raise UnknownPolicy
        version = found.version + 1
        unit.put_policy(replace(found, definition=None, version=version, changed_by=self.changed_by, updated_at=now))


@dataclass(slots=True)
class TryPolicy:
    """``POST /api/v1/policies/test``: the decision, without recording anything."""

    trial: PolicyTrial

    def needs(self, needs: ReadSet) -> None:
        recorded = self.trial.recorded
        if recorded is not None:
            needs.flows.add(recorded.workflow_id)
            needs.inputs.add(recorded.workflow_id)
            needs.gates.add(step_key(recorded.workflow_id, recorded.step_id))

    def decide(self, unit: UnitOfWork, now: int) -> tuple[Ruling, Subject]:
        trial = self.trial
        if trial.recorded is not None:
            subject = _recorded_subject(unit, trial.recorded, now)
        else:
            assert trial.call is not None
            subject = trial.call.subject()
        policies = unit.policies() if trial.policy is None else PolicySet([Policy("tested", 0, trial.policy)])
        return policies.evaluate(subject), subject


def _recorded_subject(unit: UnitOfWork, call: RecordedCall, now: int) -> Subject:
    workflow(unit, call.workflow_id)
    gate = unit.find_gate(call.workflow_id, call.step_id)
    if gate is None:
        raise UnknownStep("no gate call was made for this step")
    arguments = dict(unit.work(gate.work_id).arguments or {})
    tool = arguments.pop("tool_context", None)
    if tool is not None:
        tool = {name.removeprefix("tool_"): value for name, value in tool.items()}
    usage = gate.facts.get("usage", {})
    return Subject(
        flow_id=call.workflow_id,
        step_id=call.step_id,
        step_type=gate.facts["step_type"],
        attempt=attempt_of(gate, gate.idempotency_key, now),
        labels=unit.inputs(call.workflow_id).labels,
        step_input=arguments,
        step_name=gate.facts["step_name"],
        tool=tool,
        model=usage.get("model"),
        provider=usage.get("provider"),
        cost_usd=usage.get("cost_usd"),
    )
