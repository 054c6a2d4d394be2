"""Ends the item of a hook: with the payloads that it was to collect, or at its deadline."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.hooks.definitions import PAYLOADS
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.journal.evolving_hooks import hook_id_of_item
from counterfoil.domain.records import Hook, StepVersion, Work
from counterfoil.domain.work.decisions import fail_with, hook_succeeded, work_event


def hook_id_of_work(view: FlowView, work: Work) -> str:
    """The hook of an open item: an open item belongs to the present run of its step."""
    return hook_id_of_item(work, view.step_run(work.flow_id, work.step_id).redrives, view.find_hook)


def payloads_of(view: FlowView, hook: Hook) -> list[Any]:
    """The payloads that a hook keeps, in the order in which they came."""
    return view.hook_payloads(hook) if hook.received else []


def complete_if_enough(view: FlowView, work: Work, name: str, now: int) -> None:
    """Complete the item of a hook that has what it waits for. ``name``: the id of the hook."""
    hook = view.find_hook(name)
    assert hook is not None
    if hook.enough:
        complete(view, work, hook.collect, payloads_of(view, hook), now)


def complete(view: FlowView, work: Work, collect: int, payloads: list[Any], now: int) -> None:
    """Complete the item with its payloads. A single one is the outputs, and was checked when it came."""
    outputs = payloads[0] if collect == 1 else {PAYLOADS: payloads}
    checked = collect == 1
    view.record(hook_succeeded(work, view.version(work.version), outputs, now, None if checked else view.findings))


def time_out(view: FlowView, work: Work, step: StepVersion, now: int) -> None:
    """The deadline of a hook has passed: its item fails, or completes with what has come so far."""
    definition = step.definition.hook
    assert definition is not None
    hook = view.find_hook(hook_id_of_work(view, work))
    assert hook is not None
    payloads = payloads_of(view, hook)
    outputs: dict[str, Any] = {} if definition.collect == 1 else {PAYLOADS: payloads}
    data = {"received": hook.received, "collect": hook.collect, "on_timeout": definition.on_timeout}
    view.record(work_event(work, EventType.HOOK_TIMED_OUT, now, data))
    if definition.on_timeout == "complete":
        view.record(hook_succeeded(work, step, outputs, now, None, timed_out=True))
        return
    message = f"the deadline passed after {hook.received} of {hook.collect} payloads"
    error = {"code": "HOOK_TIMEOUT", "message": message, "details": {"received": hook.received}}
    view.record(fail_with(work, now, error, outputs if payloads else {}, "hook"))
