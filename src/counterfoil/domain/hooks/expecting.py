"""Hooks that are known when a flow starts: payloads that come before their steps start are kept for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from counterfoil.domain.flows.fan_out import FanOutError, fanned_out
from counterfoil.domain.flows.requests import arguments_for
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.hooks.ownership import token_of
from counterfoil.domain.hooks.tokens import Token, TokenRefused
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.states import StepStatus


class KnownHook(NamedTuple):
    """A hook of a flow whose token follows from what the flow was started with."""

    step_id: str
    item: int
    token: Token
    collect: int


def expect_hooks(view: FlowView, flow_id: str, now: int) -> None:
    """Note the hooks of a flow that has just begun, and whose steps have not started: their payloads are buffered."""
    for known in hooks_known_from_start(view, flow_id):
        if view.step_run(flow_id, known.step_id).status is StepStatus.PENDING:
            data = {"item": known.item, "token_id": known.token.token_id, "collect": known.collect}
            if known.token.text is not None:
                data["token"] = known.token.text
            view.record(Event(EventType.HOOK_EXPECTED, now, flow_id, known.step_id, data=data))


def hooks_known_from_start(view: FlowView, flow_id: str) -> Iterator[KnownHook]:
    """The hooks whose tokens are made, or whose templates name only inputs that come with the start of the flow."""
    plan, init = view.plan_of(view.flow(flow_id)), view.inputs(flow_id).init
    for step_id in plan.steps:
        definition = view.version(plan.versions[step_id]).definition
        if definition.hook is None:
            continue
        later = plan.requires.get(step_id, {}).keys() | plan.options.get(step_id, {}).keys()
        template = definition.hook.template
        needed = set(definition.fanned_out) | set(() if template is None else template.names)
        if not needed.isdisjoint(later):
            continue
        values = {name: init.get(name) for name in definition.inputs if name in init or name in later}
        try:
            arguments = arguments_for(definition, values)
            items = fanned_out(definition, arguments, view.rules.max_fan_out) if definition.fans_out else [arguments]
            for item, own in enumerate(items):
                yield KnownHook(
                    step_id, item, token_of(definition, flow_id, step_id, item, own), definition.hook.collect
                )
        except (TokenRefused, FanOutError):
            continue  # the step will fail when it starts
