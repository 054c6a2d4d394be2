"""Idempotency keys across workflows: the first step to use a key owns it for a window, other steps are refused."""

from __future__ import annotations

from typing import Any, Literal

from counterfoil.domain.canonical import digest
from counterfoil.domain.errors import IdempotencyKeyInUse
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.calls import GateCall
from counterfoil.domain.gate.requests import DEFAULT_WINDOW_MS, GateRequest
from counterfoil.domain.gate.retry_context import recorded_output, retry_context
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.records import KeyOwner
from counterfoil.domain.states import Decision, WorkStatus


def key_id(kind: Literal["workflow", "step"], key: str) -> str:
    """The id of a key, unique among keys of its kind."""
    return f"{kind}:{digest(key)}"


def take_key(view: FlowView, call: GateCall, now: int) -> dict[str, Any] | None:
    """On the first gate call of a step, reserve its key across workflows, if the key has global scope.

    If another step owns the key, the call is refused, or answered with the recorded output, which is then returned.
    """
    request = call.request
    scope = view.inputs(call.flow_id).options.get("key_scope")
    is_global = scope is not None if request.idempotency_scope is None else request.idempotency_scope == "global"
    if not is_global or not request.key:
        return None
    own = key_id("step", request.key)
    owner = view.find_key(own)
    free = owner is None or (owner.expires_at is not None and owner.expires_at <= now)
    if owner is None or free or (owner.flow_id, owner.step_id) == (call.flow_id, call.step_id):
        window_ms = _window(request, scope)
        expires_at = None if window_ms is None else now + window_ms
        view.give_key(KeyOwner(own, call.flow_id, call.step_id, None, now, expires_at))
        return None
    return _replay(view, call, owner, now)


def _window(request: GateRequest, scope: dict[str, Any] | None) -> int | None:
    """How long a key stays reserved: as the call, its workflow or the default says; None: forever."""
    if "idempotency_window" in request.model_fields_set:
        return request.idempotency_window
    inherited: int | None = DEFAULT_WINDOW_MS if scope is None else scope["window_ms"]
    return inherited


def _replay(view: FlowView, call: GateCall, owner: KeyOwner, now: int) -> dict[str, Any]:
    """An answer with the recorded output of the step that owns the key, in place of running this step again."""
    ids: dict[str, Any] = {"workflow_id": owner.flow_id, "step_id": owner.step_id}
    gate = view.find_gate(owner.flow_id, owner.step_id or "")
    done = None if gate is None or gate.completed_work_id is None else view.work(gate.completed_work_id)
    if call.request.on_duplicate != "replay" or gate is None or done is None or (done.result or {}).get("pruned"):
        raise IdempotencyKeyInUse(**ids, completed=done is not None)
    view.record(Event(EventType.GATE_REPLAYED, now, call.flow_id, call.step_id, data={"owner": ids, "by": call.caller}))
    context = retry_context(gate, gate.decision, recorded_output(done), counted=False)
    return {
        "decision": Decision.ALLOW,  # the decision for the step that did it
        "workflow_id": call.flow_id,
        "step_id": call.step_id,
        "decision_id": gate.decision_id,
        "reason": "already completed by another workflow with the same idempotency_key",
        "policy_ids": [],
        "policies_matched": [],
        "cached": True,
        "decision_source": "cached",
        "work_id": done.work_id,
        "work_status": WorkStatus.SUCCEEDED,
        "attempt": 0,
        "claim": None,
        "approval_id": None,
        "approval_status": None,
        "replayed": True,
        "owner": ids,
        "retry_context": {**context, "gate_count": gate.gate_count + 1},
    }
