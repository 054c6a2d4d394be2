"""What decisions about flows see and change: the batch's unit in the live engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.journal.events import Event
from counterfoil.domain.policies.policy_set import PolicySet
from counterfoil.domain.records import (
    Approval,
    CancelCall,
    Flow,
    FlowInputs,
    Gate,
    KeyOwner,
    StepRun,
    StepVersion,
    Work,
)
from counterfoil.domain.steps.checks import Findings
from counterfoil.domain.steps.register import Register
from counterfoil.domain.work.capacity import Capacity


@dataclass(frozen=True)
class FlowRules:
    """Limits of the house that a definition cannot exceed."""

    max_fan_out: int = 10_000
    gate_patience_ms: int = 3_600_000
    """How long an agent that claimed nothing may be silent about a step before that counts as not completed."""


class FlowView(Protocol):
    """Looking raises ``NotLoaded`` for what is not there yet, and the decision is made again. Changing is by events.

    So does a value that must be checked elsewhere first (``CheckNeeded``, domain/steps/checks.py).
    """

    rules: FlowRules
    capacity: Capacity
    node_id: str
    """The node that decides, and so sends what is claimed."""

    @property
    def findings(self) -> Findings:
        """Of values whose check takes long, as far as it was made."""
        ...

    def flow(self, flow_id: str) -> Flow: ...
    def find_flow(self, flow_id: str) -> Flow | None: ...
    def inputs(self, flow_id: str) -> FlowInputs: ...
    def plan_of(self, flow: Flow) -> Plan: ...
    def register(self) -> Register: ...
    def version(self, version: str) -> StepVersion: ...

    def step_run(self, flow_id: str, step_id: str) -> StepRun: ...
    def want_steps(self, flow_id: str, step_ids: Iterable[str]) -> None:
        """Have all of these at hand, in one go instead of one after the other."""
        ...

    def outputs(self, flow_id: str, step_id: str) -> dict[str, Any]:
        """What a completed step gave."""
        ...

    def steps_of(self, flow_id: str) -> list[StepRun]:
        """All steps of a flow, whatever has become of them."""
        ...

    def open_steps(self, flow_id: str) -> list[StepRun]: ...

    def work(self, work_id: str) -> Work: ...
    def touched_work(self, flow_id: str) -> list[Work]: ...
    def open_work(self, flow_id: str) -> list[Work]: ...
    def work_of_step(self, flow_id: str, step_id: str) -> list[Work]:
        """All items of a step that there ever were, the oldest first."""
        ...

    def find_gate(self, flow_id: str, step_id: str) -> Gate | None: ...
    def approval(self, approval_id: str) -> Approval: ...
    def find_key(self, key_id: str) -> KeyOwner | None: ...
    def give_key(self, owner: KeyOwner) -> None: ...
    def policies(self) -> PolicySet:
        """Those in force."""
        ...

    def waiting_items(self, step: StepRun) -> Iterable[Work]:
        """Items that are not released yet, in their order; at least as many as are looked at."""
        ...

    def new_id(self) -> str: ...
    def record(self, event: Event) -> None: ...
    def start_with(self, inputs: FlowInputs, plan: Plan) -> None: ...
    def call_later(self, call: CancelCall) -> None: ...
