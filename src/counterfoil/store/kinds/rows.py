"""Between records and rows: what a batch load's JSON means, and what the bulk statements are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import orjson

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.domain.policies.controls import KeptPolicy
from counterfoil.domain.policies.definitions import PolicyDefinition
from counterfoil.domain.records import Approval, CancelCall, Flow, FlowInputs, Gate, StepRun, Work
from counterfoil.domain.schedules import Schedule
from counterfoil.domain.states import ApprovalStatus, Decision, FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.subscriptions.definitions import Subscription, SubscriptionDefinition

_WORK_STATUS = {str(status): status for status in WorkStatus}
_STEP_STATUS = {str(status): status for status in StepStatus}
_FLOW_STATUS = {str(status): status for status in FlowStatus}

WORK_COLUMNS = 26
STEP_COLUMNS = 14
"""Of a step in a flow, without its ids; what it gave comes behind them, where it is asked for."""


def text(value: Any) -> str | None:
    """A value as JSON text for a column; None stays null."""
    return None if value is None else written(value)


def written(value: Any) -> str:
    """A value as JSON text. orjson takes a third of the time, but no integer that is longer than 64 bits."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return dump_json(value).decode()


def value(column: str | None) -> Any:
    """What JSON text in a column means; null is None."""
    return None if column is None else parse_json(column)


def read_work(row: Sequence[Any]) -> tuple[Work, StepRun, Flow]:
    """One row of ``load_work``: the item, its step in the flow, its flow."""
    work = Work(*row[:WORK_COLUMNS])
    work.status = _WORK_STATUS[work.status]
    if row[16] is not None:
        work.progress = parse_json(row[16])
    if row[19] is not None:
        work.result = parse_json(row[19])
    if row[20] is not None:
        work.error = parse_json(row[20])
    if row[22] is not None:
        work.arguments = parse_json(row[22])
    end = WORK_COLUMNS + STEP_COLUMNS
    step = read_step((work.flow_id, work.step_id, *row[WORK_COLUMNS:end]))
    return work, step, read_flow((work.flow_id, *row[end : end + 10]))


def read_step(row: Sequence[Any]) -> StepRun:
    """Without what it gave: see ``StepRun.outputs``."""
    step = StepRun(*row[: STEP_COLUMNS + 2])
    step.status = _STEP_STATUS[step.status]
    step.goal = bool(step.goal)
    if row[10] is not None:
        step.error = parse_json(row[10])
    return step


def read_outputs(row: Sequence[Any]) -> dict[str, Any] | None:
    """What the step of a row gave that also holds this."""
    outputs: dict[str, Any] | None = value(row[STEP_COLUMNS + 2])
    return outputs


def read_flow(row: Sequence[Any]) -> Flow:
    flow = Flow(*row[:11])
    flow.status = _FLOW_STATUS[flow.status]
    if flow.error is not None:
        flow.error = parse_json(row[4])
    if flow.parent is not None:
        flow.parent = parse_json(row[7])
    if flow.compensation is not None:
        flow.compensation = parse_json(row[9])
    return flow


def read_plan(document: str) -> Plan:
    return Plan(**parse_json(document))


def read_inputs(row: Sequence[Any]) -> FlowInputs:
    flow_id, *texts = row
    return FlowInputs(flow_id, *map(parse_json, texts))


def read_call(row: Any) -> CancelCall:
    call_id, flow_id, step_id, work_id, url, body, attempt, due_at = row
    return CancelCall(call_id, flow_id, step_id, work_id, url, parse_json(body), attempt, due_at)


# Statuses are given as plain strings: SQLite's adapter looks up a conversion for every subclass.


def inserted_work(work: Work) -> tuple[Any, ...]:
    return (
        work.work_id,
        work.flow_id,
        work.step_id,
        work.item,
        work.version,
        work.status._value_,
        work.attempt,
        work.idempotency_key,
        work.lane,
        work.created_at,
        *_changing_work(work),
        text(work.arguments),
        work.redrive_of,
        work.undoes,
    )


def updated_work(work: Work) -> tuple[Any, ...]:
    return (work.work_id, work.status._value_, work.attempt, *_changing_work(work))


def ended_work(work: Work) -> tuple[Any, ...]:
    return (work.work_id, work.status._value_, text(work.result), work.recorded_at)


def _changing_work(work: Work) -> tuple[Any, ...]:
    return (
        work.due_at,
        work.deadline_at,
        work.owner,
        work.first_sent_at,
        work.sent_at,
        work.acknowledged_at,
        text(work.progress),
        work.message,
        work.hold,
        text(work.result),
        text(work.error),
        work.recorded_at,
        work.child_flow_id,
    )


def inserted_step(step: StepRun) -> tuple[Any, ...]:
    return (step.flow_id, step.step_id, step.version, step.goal, *_changing_step(step))


def updated_step(step: StepRun) -> tuple[Any, ...]:
    return (step.flow_id, step.step_id, *_changing_step(step))


def counted_step(step: StepRun) -> tuple[Any, ...]:
    return (
        step.flow_id,
        step.step_id,
        step.status._value_,
        step.open_items,
        step.failed_items,
        step.finished_at,
        text(step.error),
        text(step.outputs),
    )


def completed_step(step: StepRun) -> tuple[Any, ...]:
    return (step.flow_id, step.step_id, step.finished_at, text(step.outputs))


def _changing_step(step: StepRun) -> tuple[Any, ...]:
    return (
        step.status._value_,
        step.items,
        step.open_items,
        step.failed_items,
        step.started_at,
        step.finished_at,
        text(step.error),
        step.ready_at,
        step.due_at,
        step.released,
        step.waiting_items,
        step.redrives,
        text(step.outputs),
    )


def inserted_flow(flow: Flow) -> tuple[Any, ...]:
    return (*updated_flow(flow), flow.created_at, flow.plan)


def updated_flow(flow: Flow) -> tuple[Any, ...]:
    return (
        flow.flow_id,
        flow.status._value_,
        flow.open_steps,
        text(flow.error),
        flow.finished_at,
        flow.deadline_at,
        text(flow.compensation),
        text(flow.parent),
        flow.redrives,
    )


def moved_flow(flow: Flow) -> tuple[Any, ...]:
    return (flow.flow_id, flow.status._value_, flow.open_steps, flow.finished_at, flow.deadline_at)


def inserted_inputs(inputs: FlowInputs) -> tuple[Any, ...]:
    return (
        inputs.flow_id,
        text(inputs.goals),
        text(inputs.init),
        text(inputs.metadata),
        text(inputs.labels),
        text(inputs.options),
    )


def inserted_plan(plan: Plan) -> tuple[Any, ...]:
    return (plan.plan_id, text(plan.stored()))


def put_call(call: CancelCall) -> tuple[Any, ...]:
    return (
        call.call_id,
        call.flow_id,
        call.step_id,
        call.work_id,
        call.url,
        text(call.body),
        call.attempt,
        call.due_at,
    )


def read_schedule(row: Sequence[Any]) -> Schedule:
    (schedule_id, cron, timezone, every_ms, flow, catch_up, enabled, anchor_at, next_at, last_at, last_flow_id,
     last_error, created_at, updated_at) = row  # fmt: skip
    return Schedule(
        schedule_id=schedule_id,
        cron=cron,
        timezone=timezone,
        every_ms=every_ms,
        flow=parse_json(flow),
        catch_up=catch_up,
        enabled=bool(enabled),
        anchor_at=anchor_at,
        next_at=next_at,
        last_at=last_at,
        last_flow_id=last_flow_id,
        last_error=value(last_error),
        created_at=created_at,
        updated_at=updated_at,
    )


def put_schedule(schedule: Schedule) -> tuple[Any, ...]:
    return (
        schedule.schedule_id,
        schedule.cron,
        schedule.timezone,
        schedule.every_ms,
        text(schedule.flow),
        schedule.catch_up,
        schedule.enabled,
        schedule.anchor_at,
        schedule.next_at,
        schedule.last_at,
        schedule.last_flow_id,
        text(schedule.last_error),
        schedule.created_at,
        schedule.updated_at,
    )


def read_gate(row: Sequence[Any]) -> Gate:
    gate = Gate(*row)
    gate.decision, gate.standing = Decision(gate.decision), Decision(gate.standing)
    gate.facts = parse_json(row[16])
    return gate


_GATE_COLUMNS = attrgetter(*(item.name for item in fields(Gate)))
_APPROVAL_COLUMNS = attrgetter(*(item.name for item in fields(Approval)))


def put_gate(gate: Gate) -> tuple[Any, ...]:
    *columns, decision, standing, decision_id, digest, approval_id, holder, at, work_id, facts = _GATE_COLUMNS(gate)
    told = (decision._value_, standing._value_, decision_id, digest, approval_id, holder, at, work_id, text(facts))
    return (*columns, *told)


def read_approval(row: Sequence[Any]) -> Approval:
    approval = Approval(*row)
    approval.status = ApprovalStatus(approval.status)
    approval.separate_requester = bool(approval.separate_requester)
    approval.policies, approval.arguments, approval.reviews = parse_json(row[14]), value(row[15]), parse_json(row[16])
    return approval


def put_approval(approval: Approval) -> tuple[Any, ...]:
    columns = list(_APPROVAL_COLUMNS(approval))
    columns[6] = approval.status._value_
    for place in (14, 15, 16):
        columns[place] = text(columns[place])
    return tuple(columns)


def policy_definition(policy_id: str, definition: str) -> PolicyDefinition:
    """A stored definition. One that this version does not understand blocks what it may have been about: everything."""
    try:
        return PolicyDefinition.model_validate_json(definition)
    except ValueError:
        reason = f"policy {policy_id} was stored by another version and cannot be read: PUT it again"
        return PolicyDefinition.model_validate({"name": policy_id, "action": {"type": "block", "reason": reason}})


def read_policy(row: Sequence[Any]) -> KeptPolicy:
    policy_id, version, definition, *rest = row
    parsed = None if definition is None else policy_definition(policy_id, definition)
    return KeptPolicy(policy_id, version, parsed, *rest)


def put_policy(policy: KeptPolicy) -> tuple[Any, ...]:
    return (*policy_version(policy)[:5], policy.created_at, policy.updated_at)


def policy_version(policy: KeptPolicy) -> tuple[Any, ...]:
    definition = None if policy.definition is None else policy.definition.model_dump_json(exclude_unset=True)
    return (policy.policy_id, policy.version, definition, policy.source, policy.changed_by, policy.updated_at)


def read_subscription(row: Sequence[Any]) -> Subscription:
    """A stored subscription. One that this version does not understand tells nobody, and says so."""
    subscription_id, definition, note, created_at, updated_at = row
    try:
        parsed = SubscriptionDefinition.model_validate_json(definition)
    except ValueError:
        parsed = SubscriptionDefinition.model_construct(url="", events=[], enabled=False)
        note = "it was stored by another version and cannot be read: PUT it again"
    return Subscription(subscription_id, parsed, note, created_at, updated_at)


def put_subscription(kept: Subscription) -> tuple[Any, ...]:
    definition = kept.definition.model_dump_json(exclude_unset=True)
    return (kept.subscription_id, definition, kept.note, kept.created_at, kept.updated_at)
