"""Who owns a token: at most one hook over all flows. Others fail, wait in a queue, or supersede the owner.

The protocol. The record of a token has a lock of its own, taken after the locks of flows. A hook becomes the owner in
the transaction that starts its step. When the item of the owner ends, in whichever way, the first hook of the queue is
the owner in that same transaction; because it belongs to another flow, a command of its own records its registration,
or the first payload that arrives does. So there is one owner at every moment, and no payload in between is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from counterfoil.domain.flows.requests import arguments_for
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.hooks.completing import complete_if_enough, hook_id_of_work, payloads_of
from counterfoil.domain.hooks.tokens import Token, TokenRefused, made, run_of
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.journal.evolving_hooks import evolve_hook
from counterfoil.domain.records import HookToken, StepVersion, Work
from counterfoil.domain.states import HookStatus
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.decisions import fail, fail_with, work_event

MOST_QUEUED = 1_000
"""The most hooks that wait for one token; another one fails with HOOK_CONFLICT."""


def token_of(definition: StepDefinition, flow_id: str, step_id: str, item: int, arguments: dict[str, Any]) -> Token:
    """The token of an item; raises TokenRefused if the template gives none with these arguments."""
    assert definition.hook is not None
    template = definition.hook.template
    return made(flow_id, step_id, item) if template is None else template.token(arguments)


def open_hook(view: FlowView, work: Work, version: StepVersion, now: int) -> list[str]:
    """Begin the item of a hook step: it owns its token, waits for it, or fails. Returns the flow that it superseded."""
    definition = version.definition
    assert definition.hook is not None
    arguments = work.arguments
    if arguments is None:
        arguments = arguments_for(definition, view.inputs(work.flow_id).init)
    try:
        token = token_of(definition, work.flow_id, work.step_id, work.item, arguments)
    except TokenRefused as refusal:
        view.record(fail(work, now, "INVALID_INPUT", str(refusal), "hook"))
        return []
    opened = _opened(view, work, version, token, now)
    owned = view.find_hook_token(token.token_id)
    if owned is None:
        view.put_hook_token(_owned_by(view, opened, token))
        _register(view, opened, now)
        return []
    if definition.hook.on_conflict == "supersede":
        view.put_hook_token(replace(_owned_by(view, opened, token), queue=owned.queue))
        _supersede(view, owned, work, now)
        _register(view, opened, now)
        return [owned.flow_id]
    if definition.hook.on_conflict == "wait" and len(owned.queue) < MOST_QUEUED:
        view.record(replace(opened, type=EventType.HOOK_QUEUED))
        entry = [hook_id_of_work(view, work), work.flow_id, work.step_id, work.work_id]
        view.put_hook_token(replace(owned, queue=[*owned.queue, entry]))
        return []
    _fail_conflict(view, work, owned, now)
    return []


def _opened(view: FlowView, work: Work, version: StepVersion, token: Token, now: int) -> Event:
    """The event that opens the hook of an item."""
    assert version.definition.hook is not None
    data: dict[str, Any] = {
        "item": work.item,
        "token_id": token.token_id,
        "collect": version.definition.hook.collect,
        "deadline_at": now + version.work.deadline_ms,
    }
    run = run_of(hook_id_of_work(view, work))
    if run:
        data["run"] = run
    if token.text is not None:
        data["token"] = token.text
    return work_event(work, EventType.HOOK_REGISTERED, now, data)


def _owned_by(view: FlowView, opened: Event, token: Token) -> HookToken:
    assert opened.work_id is not None
    assert opened.step_id is not None
    work = view.work(opened.work_id)
    return HookToken(token.token_id, hook_id_of_work(view, work), work.flow_id, work.step_id, work.work_id)


def _register(view: FlowView, opened: Event, now: int) -> None:
    view.record(opened)
    assert opened.work_id is not None
    complete_if_enough(view, view.work(opened.work_id), hook_id_of_work(view, view.work(opened.work_id)), now)


def _supersede(view: FlowView, owned: HookToken, by: Work, now: int) -> None:
    """The owner keeps the payloads that it has, and fails. The token has its new owner by now."""
    loser, hook = view.work(owned.work_id), view.find_hook(owned.hook_id)
    assert hook is not None
    error = {
        "code": "HOOK_SUPERSEDED",
        "message": f"another hook took over the token, after {hook.received} payloads",
        "details": {"flow_id": by.flow_id, "step_id": by.step_id, "received": hook.received},
    }
    view.record(fail_with(loser, now, error, {"payloads": payloads_of(view, hook)} if hook.received else {}, "hook"))


def _fail_conflict(view: FlowView, work: Work, owned: HookToken, now: int) -> None:
    error = {
        "code": "HOOK_CONFLICT",
        "message": "another hook owns the token" + ("" if len(owned.queue) < MOST_QUEUED else ", and too many wait"),
        "details": {"flow_id": owned.flow_id, "step_id": owned.step_id},
    }
    view.record(fail_with(work, now, error, {}, "hook"))


def register_owner(view: FlowView, owned: HookToken, now: int) -> None:
    """Record that the owner of a token, which had to wait for it, is registered; nothing if it is already."""
    hook = view.find_hook(owned.hook_id)
    assert hook is not None
    if owned.wake_at is not None:
        view.put_hook_token(replace(owned, wake_at=None))
    if hook.status is not HookStatus.QUEUED:
        return
    work = view.work(owned.work_id)
    run = run_of(hook.hook_id)
    data: dict[str, Any] = {
        "item": work.item,
        "token_id": hook.token_id,
        "collect": hook.collect,
        "deadline_at": hook.deadline_at,
        "waited": True,
    }
    if run:
        data["run"] = run
    if hook.token is not None:
        data["token"] = hook.token
    view.record(work_event(work, EventType.HOOK_REGISTERED, now, data))
    complete_if_enough(view, view.work(work.work_id), hook.hook_id, now)


def hook_item_ended(view: FlowView, work: Work, event: Event) -> None:
    """An item of a hook step ends: its hook ends with it, and the token goes to the next hook of the queue."""
    name = hook_id_of_work(view, work)
    hook = view.find_hook(name)
    if hook is None or hook.status is HookStatus.ENDED:
        return
    opened = hook.status is not HookStatus.EXPECTED
    evolve_hook(view.draft_hook(name), event)
    owned = view.find_hook_token(hook.token_id) if opened else None
    if owned is None:
        return
    if owned.hook_id != name:
        view.put_hook_token(replace(owned, queue=[entry for entry in owned.queue if entry[0] != name]))
    elif owned.queue:
        (successor, flow_id, step_id, work_id), *rest = owned.queue
        view.put_hook_token(HookToken(owned.token_id, successor, flow_id, step_id, work_id, rest, wake_at=event.at))
    else:
        view.forget_hook_token(owned.token_id)
