"""Evaluates the policies and the step's own control before every dispatch.

These are the same policies that the gate evaluates for agents. An item that they block fails with the reason; one that
requires an approval is held. Compensating items are not evaluated: a step that was allowed may be undone.
"""

from __future__ import annotations

from typing import Any

from counterfoil.domain.approvals.asking import Question, ask_people
from counterfoil.domain.canonical import digest
from counterfoil.domain.flows.requests import arguments_for
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event
from counterfoil.domain.policies.policy_set import Attempt, Ruling, Subject
from counterfoil.domain.policies.rulings import with_control
from counterfoil.domain.records import FlowInputs, StepVersion, Work
from counterfoil.domain.states import Decision
from counterfoil.domain.work.decisions import fail, prior_delivery


def may_be_sent(view: FlowView, work: Work, step: StepVersion, now: int) -> bool:
    """Whether the next attempt of an item may be sent. If not, the item is now held or failed: settle its flow."""
    control = step.definition.control.approval if work.attempt == 0 else None
    policies = view.policies()
    if work.undoes is not None or (control is None and not policies.concerns(work.step_id, step.definition.kind)):
        return True
    inputs = view.inputs(work.flow_id)
    arguments = work.arguments if work.arguments is not None else arguments_for(step.definition, inputs.init)
    ruling = policies.evaluate(_subject(work, step, inputs, arguments, now))
    if control is not None:
        ruling = with_control(ruling, control)
    if ruling.decision is Decision.BLOCK:
        view.record(blocked(work, ruling, now))
        return False
    if ruling.decision is Decision.ALLOW or work.hold is not None:  # this attempt was approved
        return True
    question = Question(digest(arguments), arguments, inputs.options.get("started_by"))
    ask_people(view, work, question, ruling, now)
    return False


def blocked(work: Work, ruling: Ruling, now: int) -> Event:
    """Fail an item that the policies block."""
    event = fail(work, now, "POLICY_BLOCKED", ruling.reason or "a policy blocks it", "policy")
    event.data["error"]["policies"] = [matched.policy_id for matched in ruling.matched]
    return event


def _subject(work: Work, step: StepVersion, inputs: FlowInputs, arguments: dict[str, Any], now: int) -> Subject:
    before = work.attempt
    first = now if work.first_sent_at is None else work.first_sent_at
    attempt = Attempt(
        gate_count=before + 1,
        completion_count=0,
        prior_completion_status="gated_not_completed" if before else "none",
        prior_output_available=False,
        last_decision=Decision.ALLOW.value if before else "",
        first_attempt_age_seconds=(now - first) / 1000,
        idempotency_key=work.idempotency_key,
        effect=step.definition.effect.policy,
        prior_delivery=prior_delivery(work),
    )
    return Subject(
        flow_id=work.flow_id,
        step_id=work.step_id,
        step_type=step.definition.kind,
        attempt=attempt,
        labels=inputs.labels,
        step_input=arguments,
        step_name=step.definition.name or "",
    )
