"""The gate: decides whether an agent may run a step, and answers its calls.

A step that an agent runs is a step of its workflow like any other. It has a work item for each time that it may be done
once: ``active`` if allowed, ``held`` if an approval is required, ``failed`` if blocked. The agent's report is the
outcome of the item, and the first one is final; only a new evaluation that allows the step creates another item. The
gate's own record counts the calls.

A refused call changes nothing, and is not counted.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.approvals.asking import Question, ask_people
from counterfoil.domain.errors import (
    ApprovalHold,
    IdempotencyKeyMismatch,
    StepInFlight,
    StepInputMismatch,
    WorkflowTerminal,
)
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.gate.calls import WORKFLOW_STATUS, GateCall, workflow
from counterfoil.domain.gate.key_scopes import take_key
from counterfoil.domain.gate.requests import GateRequest
from counterfoil.domain.gate.retry_context import attempt_of, recorded_output, retry_context
from counterfoil.domain.journal.events import Event, EventType, step_event
from counterfoil.domain.policies.guarding import blocked
from counterfoil.domain.policies.policy_set import Ruling, Subject
from counterfoil.domain.policies.rulings import after_people
from counterfoil.domain.records import GATED, Approval, Flow, Gate, Work
from counterfoil.domain.states import FINAL_FLOWS, FINAL_WORK, ApprovalStatus, Decision, WorkStatus
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.domain.work.decisions import cancel, work_event


def check_key(gate: Gate, key: str) -> None:
    """The first call fixes the key of a step, or that it has none."""
    if gate.idempotency_key != key:
        raise IdempotencyKeyMismatch(
            workflow_id=gate.flow_id,
            step_id=gate.step_id,
            expected_idempotency_key=gate.idempotency_key,
            received_idempotency_key=key,
        )


def ask(view: FlowView, call: GateCall, now: int) -> dict[str, Any]:
    """Decide one call; returns its answer."""
    flow, gate = workflow(view, call.flow_id), view.find_gate(call.flow_id, call.step_id)
    if flow.status in FINAL_FLOWS:
        _refuse_ended(view, call, flow, gate)
    if gate is None:
        done = take_key(view, call, now)
        if done is not None:
            return done
        before, cached = None, False
    else:
        check_key(gate, call.request.key)
        _refuse_claimed(view, call, gate, now)
        if call.request.retry_policy == "idempotent":
            _refuse_other_input(call, gate)
        before, cached = gate.decision, _can_repeat(view, call, gate)
    if gate is not None and cached:
        _repeat(view, call, gate, now)
    else:
        _evaluate(view, call, gate, now)
    settle(view, call.flow_id, now)
    return _answer(view, call, before, cached=cached)


# Refusals -------------------------------------------------------------------------------------------------------------


def _refuse_ended(view: FlowView, call: GateCall, flow: Flow, gate: Gate | None) -> None:
    known = same_input = None
    if gate is not None:
        same_input = gate.input_digest == call.request.content()
        known = retry_context(gate, gate.decision, _prior_output(view, call, gate), counted=False)
    status = WORKFLOW_STATUS[flow.status]
    raise WorkflowTerminal(
        f"the workflow has ended: it is {status}",
        workflow_id=call.flow_id,
        step_id=call.step_id,
        status=status,
        same_input=same_input,
        retry_context=known,
    )


def is_claimed(gate: Gate, work: Work, now: int) -> bool:
    """Whether an agent holds a claim on the step that has not expired."""
    return (
        gate.holder is not None
        and work.status is WorkStatus.ACTIVE
        and work.deadline_at is not None
        and now < work.deadline_at
    )


def _refuse_claimed(view: FlowView, call: GateCall, gate: Gate, now: int) -> None:
    work = view.work(gate.work_id)
    claim = call.request.claim
    if is_claimed(gate, work, now) and (claim is None or claim.holder != gate.holder):
        raise StepInFlight(
            workflow_id=call.flow_id, step_id=call.step_id, lease_expires_at=optional_rfc3339(work.deadline_at)
        )


def _refuse_held(gate: Gate, approval: Approval, digest: str) -> None:
    """A new evaluation of the same input must not bypass a pending or rejected approval."""
    if approval.digest != digest or approval.status not in (ApprovalStatus.PENDING, ApprovalStatus.REJECTED):
        return
    raise ApprovalHold(
        workflow_id=gate.flow_id,
        step_id=gate.step_id,
        approval_id=approval.approval_id,
        approval_status=approval.status,
        expires_at=rfc3339(approval.expires_at),
    )


def _refuse_other_input(call: GateCall, gate: Gate) -> None:
    digest = call.request.content()
    if digest != gate.input_digest:
        raise StepInputMismatch(
            workflow_id=call.flow_id,
            step_id=call.step_id,
            expected_input_digest=gate.input_digest,
            received_input_digest=digest,
        )


# Repeating the recorded decision --------------------------------------------------------------------------------------


def _can_repeat(view: FlowView, call: GateCall, gate: Gate) -> bool:
    """Whether the call is answered with the recorded decision.

    The item of a decision is cancelled only where a workflow was aborted and resumed since: then the policies decide
    anew, and reviewers are asked anew, because what was asked before became void.
    """
    return call.request.retry_policy == "idempotent" and view.work(gate.work_id).status is not WorkStatus.CANCELLED


def _repeat(view: FlowView, call: GateCall, gate: Gate, now: int) -> None:
    work, holder = view.work(gate.work_id), None
    if gate.standing is Decision.ALLOW and work.status is not WorkStatus.SUCCEEDED:
        holder = _grant(view, call, work, now)
    data = {
        "first": False,
        "cached": True,
        "decision": gate.standing,
        "decision_id": gate.decision_id,
        "holder": holder,
        "by": call.caller,
    }
    view.record(work_event(work, EventType.GATE_DECIDED, now, data))


def _grant(view: FlowView, call: GateCall, work: Work, now: int) -> str | None:
    """Let the agent run an item until its lease or the gate's patience expires; returns the holder of the claim."""
    claim = call.request.claim
    patience_ms = view.rules.gate_patience_ms if claim is None else round(claim.lease_seconds * 1000)
    if work.status is WorkStatus.ACTIVE and (work.deadline_at or 0) <= now:  # the sweep has not run since
        view.record(given_up(work, now, "NOT_REPORTED", "the agent did not report before its deadline"))
        work = view.work(work.work_id)
    if work.status is WorkStatus.ACTIVE:
        alive = {"progress": None, "message": None, "deadline_at": now + patience_ms}
        view.record(work_event(work, EventType.WORK_HEARTBEAT, now, alive))
    else:
        event = work_event(work, EventType.WORK_GRANTED, now, {"deadline_at": now + patience_ms})
        event.attempt = work.attempt + 1
        view.record(event)
    return None if claim is None else claim.holder or f"{call.caller}.{view.new_id()}"


# A new decision -------------------------------------------------------------------------------------------------------


def _evaluate(view: FlowView, call: GateCall, gate: Gate | None, now: int) -> None:
    request = call.request
    digest = request.content()
    ruling = view.policies().evaluate(_subject(view, call, gate, now))
    holder = approval_id = None
    if gate is not None and gate.approval_id is not None:
        approval = view.approval(gate.approval_id)
        _refuse_held(gate, approval, digest)
        if approval.digest == digest:
            unused = view.work(gate.work_id).hold == approval.approval_id
            approval_id = approval.approval_id if unused and ruling.decision is Decision.REQUIRE_APPROVAL else None
            ruling = after_people(ruling, approval, unused=unused)
    work = _item_for(view, call, gate, digest, ruling, now)
    if ruling.decision is Decision.BLOCK:
        if work.status not in FINAL_WORK:
            view.record(blocked(work, ruling, now))
    elif ruling.decision is Decision.ALLOW:
        holder = _grant(view, call, work, now)
    else:
        if work.status is WorkStatus.ACTIVE:
            view.record(given_up(work, now, "NOT_REPORTED", "the gate was called again before a result was reported"))
            work = view.work(work.work_id)
        question = Question(digest, request.arguments(), call.caller)
        approval_id = ask_people(view, work, question, ruling, now)
    data = {
        "first": gate is None,
        "cached": False,
        "decision": ruling.decision,
        "decision_id": f"dec_{view.new_id()}",
        "idempotency_key": request.key,
        "input_digest": digest,
        "approval_id": approval_id,
        "holder": holder,
        "facts": _facts(request, ruling),
        "retry_policy": request.retry_policy,
        "by": call.caller,
    }
    view.record(work_event(view.work(work.work_id), EventType.GATE_DECIDED, now, data))


def given_up(work: Work, now: int, code: str, message: str) -> Event:
    """The agent's attempt ended without an outcome; the agent decides whether there is another one."""
    data = {"error": {"code": code, "message": message}, "delivery": "unknown", "next_attempt_at": None, "via": "gate"}
    return work_event(work, EventType.WORK_NOT_COMPLETED, now, data)


def _facts(request: GateRequest, ruling: Ruling) -> dict[str, Any]:
    facts: dict[str, Any] = {"step_name": request.step_name or "", "step_type": request.step_type}
    if ruling.reason is not None:
        facts["reason"] = ruling.reason
    if usage := request.usage():
        facts["usage"] = usage
    if ruling.matched:
        facts["policies"] = [matched.document() for matched in ruling.matched]
    return facts


def _subject(view: FlowView, call: GateCall, gate: Gate | None, now: int) -> Subject:
    request, tool = call.request, call.request.tool_context
    return Subject(
        flow_id=call.flow_id,
        step_id=call.step_id,
        step_type=request.step_type,
        attempt=attempt_of(gate, request.key, now),
        labels=view.inputs(call.flow_id).labels,
        step_input=request.step_input,
        step_name=request.step_name or "",
        tool=None if tool is None else {"name": tool.tool_name, "type": tool.tool_type, "input": tool.tool_input},
        model=request.model,
        provider=request.provider,
        cost_usd=request.cost_usd,
    )


def _item_for(view: FlowView, call: GateCall, gate: Gate | None, digest: str, ruling: Ruling, now: int) -> Work:
    """The work item that a decision concerns: the open one, or a new one if that has ended or had another input.

    A block creates no new item, except on the first call: there is nothing to do.
    """
    flow_id, step_id = call.flow_id, call.step_id
    if gate is None:
        view.record(Event(EventType.STEP_ADDED, now, flow_id, step_id))
        return _new_item(view, call, None, now)
    work = view.work(gate.work_id)
    ended = work.status in FINAL_WORK
    if ruling.decision is Decision.BLOCK or (not ended and digest == gate.input_digest):
        return work
    if not ended:
        view.record(cancel(work, now, "the gate was called again with a different input"))
        step = view.step_run(flow_id, step_id)
        view.record(
            step_event(
                step, EventType.STEP_CANCELLED, now, {"reason": "the gate was called again with a different input"}
            )
        )
    view.record(step_event(view.step_run(flow_id, step_id), EventType.STEP_REDRIVEN, now, {}))
    return _new_item(view, call, work.work_id, now)


def _new_item(view: FlowView, call: GateCall, earlier: str | None, now: int) -> Work:
    data: dict[str, Any] = {
        "item": 0,
        "version": GATED,
        "lane": GATED,
        "idempotency_key": call.request.key,
        "arguments": call.request.arguments(),
        "waits": True,
    }
    if earlier is not None:
        data["redrive_of"] = earlier
    work_id = view.new_id()
    view.record(Event(EventType.WORK_CREATED, now, call.flow_id, call.step_id, work_id, 0, data))
    step = view.step_run(call.flow_id, call.step_id)
    view.record(step_event(step, EventType.STEP_STARTED, now, {"items": 1}))
    return view.work(work_id)


# The answer -----------------------------------------------------------------------------------------------------------


def _prior_output(view: FlowView, call: GateCall, gate: Gate) -> dict[str, Any] | None:
    """The output of the last completion, if the call requested it."""
    if not call.include_prior_output or gate.completed_work_id is None:
        return None
    return recorded_output(view.work(gate.completed_work_id))


def _answer(view: FlowView, call: GateCall, before: Decision | None, *, cached: bool) -> dict[str, Any]:
    gate = view.find_gate(call.flow_id, call.step_id)
    assert gate is not None
    work = view.work(gate.work_id)
    policies = gate.facts.get("policies", [])
    answer: dict[str, Any] = {
        "decision": gate.decision,
        "workflow_id": gate.flow_id,
        "step_id": gate.step_id,
        "decision_id": gate.decision_id,
        "reason": gate.facts.get("reason"),
        "policy_ids": [policy["policy_id"] for policy in policies],
        "policies_matched": policies,
        "cached": cached,
        "decision_source": "cached" if cached else "fresh",
        "work_id": work.work_id,
        "work_status": work.status,
        "attempt": work.attempt,
        "claim": None,
        "approval_id": gate.approval_id,
        "approval_status": None,
        "retry_context": retry_context(gate, before or gate.decision, _prior_output(view, call, gate)),
    }
    if gate.holder is not None and work.status is WorkStatus.ACTIVE:
        answer["claim"] = {"holder": gate.holder, "lease_expires_at": optional_rfc3339(work.deadline_at)}
    if gate.approval_id is not None:
        approval = view.approval(gate.approval_id)
        answer["approval_status"] = approval.status
        answer["approval_expires_at"] = rfc3339(approval.expires_at)
        answer["reason"] = told(approval) or answer["reason"]
    return answer


def told(approval: Approval) -> str | None:
    """The decision on an approval as text; None: it is not decided."""
    return review_reason(approval.status, approval.expires_at, approval.reviews[-1] if approval.reviews else None)


def review_reason(status: ApprovalStatus, expires_at: int, last_review: dict[str, Any] | None) -> str | None:
    """The same, of an approval in this state."""
    if status is ApprovalStatus.EXPIRED:
        return f"Expired: not approved before {rfc3339(expires_at)}"
    if status not in (ApprovalStatus.APPROVED, ApprovalStatus.REJECTED) or last_review is None:
        return None
    comment = f": {last_review['comment']}" if last_review["comment"] else ""
    return f"{status.capitalize()} by {last_review['by']}{comment}"
