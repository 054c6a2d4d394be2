"""Between records and rows: what a batch load's JSON means, and what the bulk statements are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.domain.model import CancelCall, Flow, FlowInputs, StepRun, Work
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus

_WORK_STATUS = {str(status): status for status in WorkStatus}
_STEP_STATUS = {str(status): status for status in StepStatus}
_FLOW_STATUS = {str(status): status for status in FlowStatus}

WORK_COLUMNS = 22


def text(value: Any) -> str | None:
    """A value as JSON text for a column; None stays null."""
    return None if value is None else dump_json(value).decode()


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
    step = read_step([work.flow_id, work.step_id, *row[WORK_COLUMNS : WORK_COLUMNS + 8]])
    return work, step, read_flow([work.flow_id, *row[WORK_COLUMNS + 8 : WORK_COLUMNS + 14]])


def read_step(row: Sequence[Any]) -> StepRun:
    step = StepRun(*row)
    step.status = _STEP_STATUS[step.status]
    step.goal = bool(step.goal)
    return step


def read_flow(row: Sequence[Any]) -> Flow:
    flow_id, status, created_at, open_steps, outputs, error, finished_at = row
    return Flow(
        flow_id,
        _FLOW_STATUS[status],
        created_at,
        open_steps,
        {} if outputs is None else parse_json(outputs),
        value(error),
        finished_at,
    )


def read_inputs(row: Sequence[Any]) -> FlowInputs:
    flow_id, goals, init, metadata, labels = row
    return FlowInputs(flow_id, parse_json(goals), parse_json(init), parse_json(metadata), parse_json(labels))


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
    )


def updated_work(work: Work) -> tuple[Any, ...]:
    return (work.work_id, work.status._value_, work.attempt, *_changing_work(work))


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
    )


def inserted_step(step: StepRun) -> tuple[Any, ...]:
    return (
        step.flow_id,
        step.step_id,
        step.version,
        step.status._value_,
        step.goal,
        step.items,
        step.open_items,
        step.failed_items,
        step.started_at,
        step.finished_at,
    )


def updated_step(step: StepRun) -> tuple[Any, ...]:
    return (
        step.flow_id,
        step.step_id,
        step.status._value_,
        step.items,
        step.open_items,
        step.failed_items,
        step.started_at,
        step.finished_at,
    )


def inserted_flow(flow: Flow) -> tuple[Any, ...]:
    return (
        flow.flow_id,
        flow.status._value_,
        flow.created_at,
        flow.open_steps,
        text(flow.outputs) if flow.outputs else None,
        text(flow.error),
        flow.finished_at,
    )


def updated_flow(flow: Flow) -> tuple[Any, ...]:
    return (
        flow.flow_id,
        flow.status._value_,
        flow.open_steps,
        text(flow.outputs) if flow.outputs else None,
        text(flow.error),
        flow.finished_at,
    )


def raised_flow(flow_id: str, flow: Flow | None) -> tuple[Any, ...]:
    """The same where only the revision may rise: no flow means that its own record stays as it is."""
    return (flow_id, None, None, None, None, None) if flow is None else updated_flow(flow)


def inserted_inputs(inputs: FlowInputs) -> tuple[Any, ...]:
    return (inputs.flow_id, text(inputs.goals), text(inputs.init), text(inputs.metadata), text(inputs.labels))


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
