"""Delivers a payload: to the hook that owns the token, or to the buffer of a hook whose step has not started.

One delivery has one outcome: recorded once, a duplicate of a recorded one, refused for its content (the hook goes on
waiting), or refused because no hook takes it. Nothing is written unless it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from counterfoil.domain.callbacks.inbox import ANSWERED
from counterfoil.domain.callbacks.mapping import Ignored
from counterfoil.domain.callbacks.reading import Unmapped
from counterfoil.domain.canonical import digest
from counterfoil.domain.errors import HookNotFound, InvalidPayload, PayloadTooLarge, Unavailable
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.hooks.completing import complete, payloads_of
from counterfoil.domain.hooks.expecting import hooks_known_from_start
from counterfoil.domain.hooks.ownership import register_owner
from counterfoil.domain.hooks.senders import KeptPayload, PayloadSender
from counterfoil.domain.hooks.tokens import Token, hook_id, run_of
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import Hook, HookDelivery, HookToken
from counterfoil.domain.states import OPEN_STEPS, FlowStatus, HookStatus
from counterfoil.domain.steps.checks import Findings, Inspection
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.domain.work.decisions import fail
from counterfoil.domain.work.results import StepResult

MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of payloads that one hook keeps."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A payload from outside. ``delivery_id``: the sender's name for it, which the same payload has again; None: none.

    ``sender``: is asked for the payload once the hook is known; None: ``payload`` is delivered as it is.
    ``origin``: what the journal says of where it comes from; empty: from the URL of the hook.
    """

    payload: Any
    delivery_id: str | None = None
    sender: PayloadSender | KeptPayload | None = None
    origin: Mapping[str, str] = field(default_factory=dict)

    def admit(self, definition: StepDefinition, now: int) -> None:
        """Raise unless it may be delivered to a hook of this step."""
        if self.sender is not None:
            self.sender.admit(definition, now)

    def read(self, definition: StepDefinition) -> Ignored | StepResult | Unmapped:
        """What it means for a hook of this step; raises InvalidPayload."""
        return Unmapped(self.payload) if self.sender is None else self.sender.read(definition)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Which hook has the payload."""

    flow_id: str
    step_id: str
    duplicate: bool = False
    buffered: bool = False
    ignored: bool = False
    """Whether the payload says nothing about what the step waits for: nothing was recorded."""
    challenge: str | None = None
    """What a vendor wants back that verifies the URL."""
    http_status: int = 200
    """The answer's status: another one only where the step asks for it, for a vendor."""
    received_at: int | None = field(default=None, compare=False)
    """When it was recorded; None: nothing was."""


def deliver(view: FlowView, token: Token, incoming: Incoming, now: int) -> Delivered:
    """Deliver a payload to whichever flow waits for it; raises HookNotFound, InvalidPayload or PayloadTooLarge."""
    owned = _registered_owner(view, token, now)
    if owned is not None:
        return _deliver_to_owner(view, token, owned, incoming, now)
    expected = view.expected_hooks(token.token_id)
    return _buffer(view, token, incoming, expected, now) or _duplicate_of_ended(view, token, incoming, now)


def deliver_to_flow(view: FlowView, flow_id: str, token: Token, incoming: Incoming, now: int) -> Delivered:
    """The same for the hook with this token in one flow or its sub-flows: raises HookNotFound if it has none."""
    owned = _registered_owner(view, token, now)
    if owned is not None and flow_id in _with_outer_flows(view, owned.flow_id):
        return _deliver_to_owner(view, token, owned, incoming, now)
    known = hooks_known_from_start(view, flow_id)
    expected = [hook_id(flow_id, each.step_id, each.item, 0) for each in known if each.token.token_id == token.token_id]
    delivered = _buffer(view, token, incoming, expected, now) or _duplicate_of_ended(view, token, incoming, now)
    if flow_id not in _with_outer_flows(view, delivered.flow_id):
        raise HookNotFound
    return delivered


def _with_outer_flows(view: FlowView, flow_id: str) -> Iterator[str]:
    """A flow, and the flows that it is a sub-flow of."""
    flow = view.find_flow(flow_id)
    while flow is not None:
        yield flow.flow_id
        flow = None if flow.parent is None else view.find_flow(flow.parent["flow_id"])


def _registered_owner(view: FlowView, token: Token, now: int) -> HookToken | None:
    """The hook that owns the token, registered by now if it had to wait for it; None: no hook owns it."""
    owned = view.find_hook_token(token.token_id)
    while owned is not None and owned.wake_at is not None:
        view.work(owned.work_id)  # with its step and flow
        register_owner(view, owned, now)
        settle(view, owned.flow_id, now)  # payloads of its buffer may have been enough for it
        owned = view.find_hook_token(token.token_id)
    return owned


def _deliver_to_owner(view: FlowView, token: Token, owned: HookToken, incoming: Incoming, now: int) -> Delivered:
    view.work(owned.work_id)  # with its step and flow
    hook = view.find_hook(owned.hook_id)
    assert hook is not None
    definition = _definition_of(view, hook.flow_id, hook.step_id)
    incoming.admit(definition, now)
    if _is_duplicate(view, hook, incoming):
        return _answered(definition, Delivered(hook.flow_id, hook.step_id, duplicate=True))
    reading = incoming.read(definition)
    if isinstance(reading, Ignored):
        return _ignored(definition, hook, reading)
    if isinstance(reading, StepResult) and not reading.success:
        message = reading.error or "the payload reports a failure without an error message"
        failure = fail(view.work(owned.work_id), now, "STEP_FAILED", message, "hook")
        failure.data.update(_origin(definition, incoming))
        view.record(failure)
        _remember(view, token, hook, incoming)
    else:
        payloads = _receive(view, token, hook, owned.work_id, incoming, _payload_of(reading), now)
        if payloads is not None:
            complete(view, view.work(owned.work_id), hook.collect, payloads, now)
    settle(view, hook.flow_id, now)
    return _answered(definition, Delivered(hook.flow_id, hook.step_id, received_at=now))


def _buffer(view: FlowView, token: Token, incoming: Incoming, expected: Iterable[str], now: int) -> Delivered | None:
    """Keep a payload for the first hook that will take it; None: there is no such hook."""
    for name in expected:
        hook = view.find_hook(name)
        if hook is None or hook.status is not HookStatus.EXPECTED or not _may_start(view, hook):
            continue
        definition = _definition_of(view, hook.flow_id, hook.step_id)
        incoming.admit(definition, now)
        if _is_duplicate(view, hook, incoming):
            return _answered(definition, Delivered(hook.flow_id, hook.step_id, duplicate=True, buffered=True))
        if hook.enough:
            continue
        reading = incoming.read(definition)
        if isinstance(reading, Ignored):
            return _ignored(definition, hook, reading)
        if isinstance(reading, StepResult) and not reading.success:
            raise Unavailable("the step has not started, and a failure cannot be kept for it; send it again later")
        _receive(view, token, hook, None, incoming, _payload_of(reading), now)
        return _answered(definition, Delivered(hook.flow_id, hook.step_id, buffered=True, received_at=now))
    return None


def _definition_of(view: FlowView, flow_id: str, step_id: str) -> StepDefinition:
    return view.version(view.step_run(flow_id, step_id).version).definition


def _payload_of(reading: StepResult | Unmapped) -> Any:
    return reading.payload if isinstance(reading, Unmapped) else reading.outputs


def _answered(definition: StepDefinition, delivered: Delivered) -> Delivered:
    """The same with the status that the step asks for, if it asks for one."""
    if definition.accept is None:
        return delivered
    verdict = "ignored" if delivered.ignored else "duplicate" if delivered.duplicate else "accepted"
    return replace(delivered, http_status=definition.accept.answer.status_of(verdict))


def _ignored(definition: StepDefinition, hook: Hook, reading: Ignored) -> Delivered:
    """The answer to a payload that says nothing. One with a challenge is an ordinary 200, for its body."""
    delivered = Delivered(hook.flow_id, hook.step_id, ignored=True, challenge=reading.challenge)
    return _answered(definition, delivered) if reading.challenge is None else delivered


def _origin(definition: StepDefinition, incoming: Incoming) -> Mapping[str, Any]:
    """What the journal says of where a payload comes from, and of the answer, if that is not an ordinary 200."""
    accept = definition.accept
    if incoming.origin or accept is None or accept.answer.accepted == 200:
        return incoming.origin
    return {ANSWERED: accept.answer.accepted}


def _may_start(view: FlowView, hook: Hook) -> bool:
    """Whether the step of an expected hook can still register it: a step or flow that has ended never will."""
    if view.flow(hook.flow_id).status is not FlowStatus.ACTIVE:
        return False
    return view.step_run(hook.flow_id, hook.step_id).status in OPEN_STEPS


def _receive(
    view: FlowView, token: Token, hook: Hook, work_id: str | None, incoming: Incoming, payload: Any, now: int
) -> list[Any] | None:
    """Check and record a payload; returns all payloads if no more are needed. It is kept unless it ends the hook."""
    definition = _definition_of(view, hook.flow_id, hook.step_id)
    assert definition.hook is not None
    wrong = payload_problems(definition, payload, view.findings)
    if wrong:
        raise InvalidPayload(errors=wrong)
    size = len(dump_json(payload)) if hook.collect > 1 or work_id is None else 0
    if hook.size + size > MOST_BYTES:
        raise PayloadTooLarge("the payloads of this hook have too many bytes together", limit_bytes=MOST_BYTES)
    last = hook.received + 1 >= hook.collect
    condition = definition.hook.condition
    payloads = [payload]
    if hook.collect > 1 and (last or condition is not None):
        payloads = [*payloads_of(view, hook), payload]
    enough = last or (condition is not None and condition.holds(payload, payloads))
    data: dict[str, Any] = {"item": hook.item, "received": hook.received + 1, "collect": hook.collect}
    data |= {"size": size, "enough": enough, **_origin(definition, incoming)}
    run = run_of(hook.hook_id)
    if run:
        data["run"] = run
    if incoming.delivery_id is not None:
        data["delivery_id"] = incoming.delivery_id
    if size:
        data["payload"] = payload
        view.keep_payload(hook, payload)
    if work_id is None:
        data["buffered"] = True
    attempt = None if work_id is None else view.work(work_id).attempt
    view.record(Event(EventType.HOOK_RECEIVED, now, hook.flow_id, hook.step_id, work_id, attempt, data))
    _remember(view, token, hook, incoming)
    return payloads if enough else None


def _remember(view: FlowView, token: Token, hook: Hook, incoming: Incoming) -> None:
    """The same delivery again is a duplicate."""
    if incoming.delivery_id is not None:
        for key in (_key(hook.hook_id, incoming.delivery_id), _key(token.token_id, incoming.delivery_id)):
            view.put_hook_delivery(HookDelivery(key, hook.flow_id, hook.step_id, hook.hook_id))


def payload_problems(definition: StepDefinition, payload: Any, findings: Findings) -> list[dict[str, str]]:
    """Why a hook does not accept a payload, with the places; raises CheckNeeded if that is not known yet."""
    hook, inspection, wrong = definition.hook, Inspection(findings), []
    assert hook is not None
    if hook.json_schema is not None and (problem := inspection.problem(hook.payload, payload)):
        wrong.append({"place": "payload", "message": problem})
    if hook.collect == 1:
        if not isinstance(payload, dict):
            return [{"place": "payload", "message": "must be an object"}]
        for name, attribute in definition.outputs.items():
            found = inspection.problem(attribute, payload[name]) if name in payload else "is required"
            if found:
                wrong.append({"place": f"payload.{name}", "message": found})
    inspection.close()
    return wrong


def _is_duplicate(view: FlowView, hook: Hook, incoming: Incoming) -> bool:
    if incoming.delivery_id is None:
        return False
    return view.find_hook_delivery(_key(hook.hook_id, incoming.delivery_id)) is not None


def _duplicate_of_ended(view: FlowView, token: Token, incoming: Incoming, now: int) -> Delivered:
    """The answer to a delivery that a hook had taken before it ended; raises HookNotFound if none had."""
    if incoming.delivery_id is not None:
        taken = view.find_hook_delivery(_key(token.token_id, incoming.delivery_id))
        if taken is not None:
            definition = _definition_of(view, taken.flow_id, taken.step_id)
            incoming.admit(definition, now)
            return _answered(definition, Delivered(taken.flow_id, taken.step_id, duplicate=True))
    raise HookNotFound


def _key(name: str, delivery_id: str) -> str:
    return digest([name, delivery_id])
