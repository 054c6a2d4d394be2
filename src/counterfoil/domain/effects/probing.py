"""Probes: what ``status_url`` says of an attempt whose outcome is unknown, and what follows from it.

Only a 200 with one of the four states counts as an answer. ``done`` is recorded, ``not_found`` proves that nothing was
applied, ``running`` makes the item active with a new deadline. Everything else leaves it to the effect policy: a held
item stays held, any other is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from counterfoil.domain.effects.reconciling import counting_granted
from counterfoil.domain.errors import CounterfoilError
from counterfoil.domain.flows.settle import settle
from counterfoil.domain.flows.view import FlowView
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.jsontext import JsonError, accept_json
from counterfoil.domain.records import Reconciliation, StepVersion, Work
from counterfoil.domain.states import WorkStatus
from counterfoil.domain.work.decisions import RetryRules, clocks_of, give_back, repeat, report, resume, work_event
from counterfoil.domain.work.replies import Reply, SendOutcome
from counterfoil.domain.work.results import StepResult
from counterfoil.domain.work.retry import backoff_ms

ProbeState = Literal["running", "done", "not_found", "unknown", "error"]
"""``error``: no answer, or none that can be read; it counts as ``unknown``."""


class _Running(BaseModel):
    model_config = ConfigDict(extra="ignore")
    state: Literal["running", "not_found", "unknown"]


class _Done(BaseModel):
    model_config = ConfigDict(extra="ignore")
    state: Literal["done"]
    result: StepResult


class _StatusBody(BaseModel):
    answer: Annotated[_Running | _Done, Field(discriminator="state")]


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What was found out about the outcome of an attempt."""

    state: ProbeState
    result: StepResult | None = None
    note: str | None = None


def read_answer(reply: Reply) -> ProbeAnswer:
    """The answer of a ``status_url``. Its text is never repeated: it may hold anything."""
    if reply.delivery is not SendOutcome.ANSWERED:
        return ProbeAnswer("error", note=reply.error)
    if reply.status != 200:
        return ProbeAnswer("error", note=f"answered {reply.status}")
    if reply.truncated:
        return ProbeAnswer("error", note="the answer is too long")
    try:
        answer = _StatusBody.model_validate({"answer": accept_json(reply.body)}).answer
    except (JsonError, ValidationError):
        return ProbeAnswer("error", note="the answer is not one of the documented states")
    if isinstance(answer, _Done):
        return ProbeAnswer("done", answer.result)
    return ProbeAnswer(answer.state)


def is_asked_about(work: Work | None, record: Reconciliation | None) -> bool:
    """Whether ``status_url`` has anything to say about an item: the attempt that the record is of is still undecided.

    The next attempt is planned once an attempt is known to be over: then nothing is left to ask.
    """
    if record is None or work is None or work.attempt != record.attempt:
        return False
    return work.status is WorkStatus.ACTIVE or (work.status is WorkStatus.NOT_COMPLETED and work.due_at is None)


def claim_probe(view: FlowView, work_id: str, now: int, for_ms: int) -> bool:
    """Reserve the right to ask now; a record that is no longer about an open attempt is never asked again."""
    record = view.find_reconciliation(work_id)
    if record is None or record.due_at is None or record.due_at > now:
        return False
    wanted = is_asked_about(view.work(work_id), record)
    view.put_reconciliation(replace(record, due_at=now + for_ms if wanted else None))
    return wanted


def take_answer(
    view: FlowView, work_id: str, attempt: int, answer: ProbeAnswer, retry: RetryRules, now: int
) -> str | None:
    """Record what a probe has found; returns the state of the item after it, None if the probe came too late."""
    work, record = view.work(work_id), view.find_reconciliation(work_id)
    if record is None or record.due_at is None or not is_asked_about(work, record) or work.attempt != attempt:
        return None
    step = view.version(work.version)
    delay = backoff_ms(step.work, record.probes + 1, retry.draw, None, retry.retry_after_limit_ms)
    view.put_reconciliation(
        replace(record, probes=record.probes + 1, probed_at=now, probe_state=answer.state, due_at=now + delay)
    )
    data: dict[str, Any] = {"state": answer.state}
    if answer.note is not None:
        data["note"] = answer.note
    if answer.state == "running" and work.status is WorkStatus.ACTIVE:
        data |= clocks_of(step, now)
    view.record(work_event(work, EventType.WORK_PROBED, now, data))
    _follow(view, work, step, record, answer, counting_granted(view, work, step, retry), now)
    settle(view, work.flow_id, now)
    return str(view.work(work_id).status)


def _follow(
    view: FlowView,
    work: Work,
    step: StepVersion,
    record: Reconciliation,
    answer: ProbeAnswer,
    retry: RetryRules,
    now: int,
) -> None:
    if answer.state == "done" and answer.result is not None:
        _record_result(view, work, step, answer.result, retry, now)
    elif answer.state == "running":
        if work.status is WorkStatus.NOT_COMPLETED:
            view.record(resume(work, step, now, "probe"))
    elif answer.state == "not_found":
        _repeat(view, work, step, retry, now)
    elif work.status is WorkStatus.NOT_COMPLETED and record.hold is None:
        _stop_asking(view, work)
        view.record(repeat(work, step, retry, now, work.error or {}, via="probe"))


def _record_result(
    view: FlowView, work: Work, step: StepVersion, result: StepResult, retry: RetryRules, now: int
) -> None:
    try:
        _, events = report(work, result, step, retry, now, view.findings, via="probe")
    except CounterfoilError:  # its outcome is known by now
        return
    for event in events:
        view.record(event)
    _stop_asking(view, work)


def _repeat(view: FlowView, work: Work, step: StepVersion, retry: RetryRules, now: int) -> None:
    """Nothing was applied: every effect policy repeats the attempt, as the work config says."""
    message = "status_url does not know the attempt: it was not applied"
    if work.status is WorkStatus.NOT_COMPLETED:
        view.record(repeat(work, step, retry, now, {"code": "NOT_APPLIED", "message": message}, via="probe"))
    else:  # it was said to be running
        view.record(
            give_back(work, step, retry, now, code="NOT_APPLIED", message=message, delivery="answered", via="probe")
        )
    _stop_asking(view, work)


def _stop_asking(view: FlowView, work: Work) -> None:
    record = view.find_reconciliation(work.work_id)
    if record is not None:
        view.put_reconciliation(replace(record, due_at=None, hold=None))
