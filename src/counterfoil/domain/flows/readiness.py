"""Whether a step can begin: a pure function of the states of the steps that it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.records import StepRun
from counterfoil.domain.states import OPEN_STEPS, StepStatus


class Ready:
    """Every input that the step waits for is available or will never be."""


@dataclass(frozen=True)
class Waiting:
    """An open step may still provide a missing input. ``until``: when the step begins without its optional inputs."""

    ready_at: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Skipped:
    """A required input will never be available, although no step failed."""

    reason: str


@dataclass(frozen=True)
class Blocked:
    """A required input will never be available, because a step failed."""

    reason: str
    error: dict[str, Any] | None


Situation = Ready | Waiting | Skipped | Blocked


def readiness(view: FlowView, plan: Plan, step: StepRun, now: int) -> Situation:
    """The situation of a pending step."""
    sources = plan.sources.get(step.step_id, ())
    if not sources:
        return Ready()
    view.want_steps(step.flow_id, sources)
    states = {source: view.step_run(step.flow_id, source) for source in sources}
    situations = [
        _enough(1, [states[source] for source in bringers], f"no value for {name} can be produced")
        for name, bringers in plan.requires.get(step.step_id, {}).items()
    ]
    wait = plan.waits.get(step.step_id)
    if wait is not None:
        text = f"fewer than {wait['any']} of the steps in wait_for can complete"
        situations.append(_enough(wait["any"], [states[source] for source in wait["of"]], text))
    for kind in (Blocked, Skipped, Waiting):
        for situation in situations:
            if isinstance(situation, kind):
                return situation
    return _optional(plan.options.get(step.step_id, {}), states, step, now)


def _enough(wanted: int, steps: list[StepRun], text: str) -> Situation:
    completed = sum(step.status is StepStatus.COMPLETED for step in steps)
    if completed >= wanted:
        return Ready()
    if completed + sum(step.status in OPEN_STEPS for step in steps) >= wanted:
        return Waiting()
    for step in steps:
        if step.error is not None:
            return Blocked(f"{text}: {step.step_id} is {step.status}", step.error)
    return Skipped(f"{text}: {', '.join(f'{step.step_id} is {step.status}' for step in steps)}")


def _optional(options: dict[str, dict[str, Any]], states: dict[str, StepRun], step: StepRun, now: int) -> Situation:
    """All required inputs are available. Each optional one is waited for up to its timeout, if it can still come."""
    ready_at = step.ready_at if step.ready_at is not None else now
    ends = [
        ready_at + option["timeout_ms"]
        for option in options.values()
        if option["timeout_ms"]
        and not any(states[source].status is StepStatus.COMPLETED for source in option["of"])
        and any(states[source].status in OPEN_STEPS for source in option["of"])
    ]
    left = [end for end in ends if end > now]
    return Waiting(ready_at, max(left)) if left else Ready()
