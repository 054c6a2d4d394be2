"""Reconciliation: what is known of a work item whose outcome is unknown, and how it is settled.

An item whose effect policy forbids to repeat it waits in the reconciliation queue until a late report, a heartbeat, its
``status_url`` or an operator settles it. An item that was cancelled meanwhile stays in the queue: its effect, if it had
one, is still to be dealt with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, model_validator

from counterfoil.domain.approvals.asking import Question, ask_people
from counterfoil.domain.approvals.terms import ApprovalTerms
from counterfoil.domain.canonical import digest
from counterfoil.domain.effects.policies import UNSAFE_ONCE
from counterfoil.domain.errors import InvalidInput, NotWaitingForReconciliation
from counterfoil.domain.flows.requests import arguments_for, invalid_outputs
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.policies.policy_set import Ruling, Terms
from counterfoil.domain.records import Reconciliation, StepVersion, Work
from counterfoil.domain.states import FINAL_WORK, Decision
from counterfoil.domain.work.decisions import RetryRules, report, work_event
from counterfoil.domain.work.results import MAX_ERROR, StepResult, cut

MAX_NOTE = 2_000
_NO_NUL = r"^[^\x00]*$"


class Settlement(BaseModel):
    """``POST /api/v1/reconciliations/{work_id}``: what was found out about the outcome."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    outcome: Literal["applied", "not_applied", "failed"]
    outputs: dict[str, Any] | None = None
    error: Annotated[StrictStr, Field(pattern=_NO_NUL)] | None = None
    note: Annotated[StrictStr, Field(max_length=MAX_NOTE, pattern=_NO_NUL)] | None = None

    @model_validator(mode="after")
    def _says_what_belongs_to_it(self) -> Settlement:
        if self.outputs is not None and self.outcome != "applied":
            raise ValueError("outputs: only with the outcome applied")
        if self.error is not None and self.outcome != "failed":
            raise ValueError("error: only with the outcome failed")
        return self


def opened(event: Event, earlier: Reconciliation | None) -> Reconciliation:
    """The record of an item whose outcome became unknown by this event."""
    data = event.data
    return Reconciliation(
        work_id=event.work_id or "",
        flow_id=event.flow_id,
        step_id=event.step_id or "",
        hold=data.get("hold"),
        cause=data["cause"],
        attempt=event.attempt or 0,
        since=event.at,
        due_at=data.get("probe_at"),
        granted=0 if earlier is None else earlier.granted,
    )


def closed(record: Reconciliation, event: Event) -> Reconciliation:
    """The record of an item whose outcome is known, or that goes on."""
    probing = event.type is EventType.WORK_RESUMED and event.data["via"] == "probe"
    asked_for = event.type is EventType.WORK_RECONCILED and event.data["outcome"] == "not_applied"
    return replace(
        record,
        hold=None,
        due_at=record.due_at if probing else None,
        granted=record.granted + (1 if asked_for else 0),
    )


def counting_granted(view: FlowView, work: Work, step: StepVersion, retry: RetryRules) -> RetryRules:
    """The retry rules with the number of attempts that a person asked for."""
    if work.attempt < 2 or not step.definition.effect.holds_unknown:
        return retry
    record = view.find_reconciliation(work.work_id)
    return retry if record is None or not record.granted else replace(retry, granted=record.granted)


def settle_item(
    view: FlowView, work_id: str, settlement: Settlement, by: str, retry: RetryRules, now: int
) -> str | None:
    """Settle an item that waits in the queue; returns the approval that must be given before it is sent again."""
    work = view.work(work_id)
    record = view.find_reconciliation(work_id)
    if record is None or record.hold is None:
        raise NotWaitingForReconciliation(work_id=work_id, status=work.status)
    step = view.version(work.version)
    wrong = invalid_outputs(step.definition, settlement.outputs or {}, view.findings)
    if settlement.outcome == "applied" and step.definition.attributes and wrong:
        places = [{"place": f"outputs.{each['attribute']}", "message": each["message"]} for each in wrong]
        raise InvalidInput("the outputs are not what the step declares", errors=places)
    approval_id = None
    is_open = work.status not in FINAL_WORK
    resend = is_open and settlement.outcome == "not_applied" and record.hold != UNSAFE_ONCE
    data: dict[str, Any] = {
        "outcome": settlement.outcome,
        "by": by,
        "note": settlement.note,
        "hold": record.hold,
        "next_attempt_at": now if resend else None,
    }
    if not is_open:
        data["cancelled"] = True
    outcome: list[Event] = []
    if is_open and settlement.outcome != "not_applied":
        _, outcome = report(work, _result(settlement), step, retry, now, view.findings, via="reconciliation")
    hold = record.hold
    for event in (work_event(work, EventType.WORK_RECONCILED, now, data), *outcome):
        view.record(event)
    if is_open and settlement.outcome == "not_applied" and hold == UNSAFE_ONCE:
        approval_id = _ask_to_repeat(view, view.work(work_id), step, now)
    if is_open:
        settle(view, work.flow_id, now)
    return approval_id


def _result(settlement: Settlement) -> StepResult:
    if settlement.outcome == "applied":
        return StepResult(success=True, outputs=settlement.outputs)
    error = settlement.error or "settled as failed by reconciliation"
    return StepResult(success=False, error=cut(error, MAX_ERROR))


def _ask_to_repeat(view: FlowView, work: Work, step: StepVersion, now: int) -> str:
    """An ``unsafe_once`` item is sent again only with an approval of its own, which is good for one attempt."""
    inputs = view.inputs(work.flow_id)
    arguments = work.arguments if work.arguments is not None else arguments_for(step.definition, inputs.init)
    asked = step.definition.control.approval or ApprovalTerms()
    terms = Terms(asked.approvals, asked.expires_in_ms, asked.separate_requester, asked.severity)
    reason = f"attempt {work.attempt} was not applied: approve to send it once more"
    ruling = Ruling(Decision.REQUIRE_APPROVAL, (), reason, terms)
    return ask_people(view, work, Question(digest(arguments), arguments, inputs.options.get("started_by")), ruling, now)
