"""Starts a flow: plans it, checks its inputs and records it. ``settle`` then begins its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from counterfoil.domain.errors import InvalidInput
from counterfoil.domain.flows.fan_out import FanOutError, count_items
from counterfoil.domain.flows.planning import Plan, make_plan
from counterfoil.domain.flows.requests import arguments_for, invalid_inputs
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import FlowInputs
from counterfoil.domain.steps.checks import Findings, Inspection
from counterfoil.domain.steps.register import Register

LINKS = "hooks"
"""In the options of a flow: the hook steps with made tokens whose links its dispatches carry, its own and those of the
flows that it is a sub-flow of, each with its flow and whether it fans out."""


@dataclass(frozen=True)
class Launch:
    """A flow to start."""

    flow_id: str
    goals: list[str]
    init: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    parent: dict[str, Any] | None = None


def launch(view: FlowView, wanted: Launch, now: int) -> Plan:
    """Record the flow with all its steps, all pending. If it cannot be planned, raises and records nothing."""
    plan = plan_launch(view, wanted.goals, wanted.init)
    _refuse_unknown_keys(plan, wanted.options.get("init_keys", {}))
    data: dict[str, Any] = {
        "goals": plan.goals,
        "plan": plan.plan_id,
        "steps": plan.versions,
        "init": wanted.init,
        "metadata": wanted.metadata,
        "labels": wanted.labels,
    }
    options = wanted.options
    if plan.hooks:
        links = {step_id: {"flow_id": wanted.flow_id, "for_each": each} for step_id, each in plan.hooks.items()}
        options = {**options, LINKS: {**options.get(LINKS, {}), **links}}
    if options:
        data["options"] = options
        if "deadline_ms" in wanted.options:
            data["deadline_at"] = now + wanted.options["deadline_ms"]
    if wanted.parent is not None:
        data["parent"] = wanted.parent
    view.record(Event(EventType.FLOW_STARTED, now, wanted.flow_id, data=data))
    inputs = FlowInputs(wanted.flow_id, plan.goals, wanted.init, wanted.metadata, wanted.labels, options)
    view.start_with(inputs, plan)
    return plan


def _refuse_unknown_keys(plan: Plan, init_keys: Iterable[str]) -> None:
    unknown = sorted(set(init_keys) - set(plan.steps))
    if unknown:
        places = [{"place": "init_keys", "message": "names a step that is not in the plan"} for _ in unknown]
        raise InvalidInput("a key is given for a step that the flow does not have", errors=places)


def plan_launch(view: FlowView, goals: list[str], init: dict[str, Any]) -> Plan:
    """The plan of a flow with these goals and inputs; raises the error that refuses such a start."""
    register = view.register()
    plan = make_plan(register, goals, init)
    check_inputs(register, plan, init, view.rules.max_fan_out, view.findings)
    return plan


def check_inputs(register: Register, plan: Plan, init: dict[str, Any], most_items: int, findings: Findings) -> None:
    """Refuse inputs that a planned step does not accept, as far as they come from the start request."""
    inspection = Inspection(findings)
    wrong = list(_wrong_inputs(register, plan, init, most_items, inspection))
    inspection.close()
    if wrong:
        raise InvalidInput("a value is not what a step accepts", errors=wrong)


def _wrong_inputs(
    register: Register, plan: Plan, init: dict[str, Any], most_items: int, inspection: Inspection
) -> Iterable[dict[str, str]]:
    for step_id in plan.steps:
        definition = register.steps[step_id].definition
        problems = invalid_inputs(definition, init, inspection)
        for name, problem in problems:
            yield {"place": f"init.{name}", "message": f"{problem}, for step {step_id}"}
        if problems or not definition.fans_out or step_id in plan.requires or step_id in plan.options:
            continue
        try:
            count_items(definition, arguments_for(definition, init), most_items)
        except FanOutError as error:
            yield {"place": f"init.{definition.fanned_out[0]}", "message": f"{error}, for step {step_id}"}
