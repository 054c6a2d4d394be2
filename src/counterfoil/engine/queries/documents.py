"""Builds the documents that the API shows from rows. Never a token: the database holds none."""

from __future__ import annotations

from typing import Any, cast

import orjson

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.journal.events import EventType
from counterfoil.domain.jsontext import dump_json, parse_json
from counterfoil.domain.records import GATED
from counterfoil.domain.schedules import Schedule
from counterfoil.domain.steps.definitions import STEP_URLS, StepDefinition, WorkDefaults
from counterfoil.domain.time import optional_rfc3339, rfc3339
from counterfoil.domain.urls import mask_url
from counterfoil.store.journal import parse_entry
from counterfoil.store.protocol import Row
from counterfoil.wire.flows import FlowDocument, FlowParent, FlowSummary, PlanDocument, StepInFlow
from counterfoil.wire.journal import JournalEvent
from counterfoil.wire.schedules import ScheduleDocument, ScheduleFailure
from counterfoil.wire.steps import StepDocument
from counterfoil.wire.work import WorkDocument

Document = dict[str, Any]
"""A JSON object whose members are not declared."""


def fragment(text: str | None, default: str = "null") -> Any:
    """JSON text from a column, passed on as it is: an ``orjson.Fragment`` in the place of the value that it encodes."""
    return orjson.Fragment(text if text is not None else default)


def step_document(row: Row, defaults: WorkDefaults) -> StepDocument:
    step_id, version, definition, created_at, updated_at = row
    return registered_step(
        step_id, version, StepDefinition.model_validate_json(definition), defaults, created_at, updated_at
    )


def registered_step(
    step_id: str, version: str, definition: StepDefinition, defaults: WorkDefaults, created_at: int, updated_at: int
) -> StepDocument:
    """A definition with the engine's defaults filled in; passwords in its URLs are masked."""
    document = definition.model_dump(mode="json", by_alias=True)
    document["attributes"] = {
        name: attribute.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for name, attribute in definition.attributes.items()
    }
    for place in (document, document["compensate"] or {}):
        place.update({name: mask_url(place[name]) for name in STEP_URLS if place.get(name)})
    document["name"] = definition.name or step_id
    document["work"] = definition.work.resolve(defaults).model_dump(mode="json")
    shown = {
        "step_id": step_id,
        **document,
        "version": version,
        "created_at": rfc3339(created_at),
        "updated_at": rfc3339(updated_at),
    }
    return cast(StepDocument, shown)


def listed_flow(row: Row, outputs: Document) -> FlowSummary:
    """A flow in a list: its own state, without its steps."""
    _, flow_id, status, goals, created_at, error, finished_at, metadata, labels, pruned_at, parent = row
    return {
        "flow_id": flow_id,
        "status": status,
        "goals": fragment(goals),
        "outputs": outputs,
        "error": fragment(error),
        "metadata": fragment(metadata),
        "labels": fragment(labels),
        "created_at": rfc3339(created_at),
        "finished_at": optional_rfc3339(finished_at),
        "pruned_at": optional_rfc3339(pruned_at),
        "parent": _parent_document(parent),
    }


def gathered_outputs(rows: list[Row]) -> dict[str, Document]:
    """By flow, the outputs of its steps: no two steps of a flow have the same output."""
    outputs: dict[str, Document] = {}
    for flow_id, text in rows:
        for name, value in parse_json(text).items():
            outputs.setdefault(flow_id, {}).setdefault(name, value)
    return outputs


def whole_flow(row: Row, outputs: Document, steps: dict[str, StepInFlow]) -> FlowDocument:
    """A flow by itself: what a list shows of it, its plan and start, and its steps in the order of the plan."""
    _, status, goals, created_at, error, finished_at, metadata, labels, init, options, parent, deadline_at = row[:12]
    compensation, plan, pruned_at = row[12:]
    listed = listed_flow(
        (0, row[0], status, goals, created_at, error, finished_at, metadata, labels, pruned_at, parent), outputs
    )
    undone = parse_json(compensation)["steps"] if compensation is not None else []
    planned = _plan_document(plan, goals, init)
    order = {step_id: place for place, step_id in enumerate(planned["steps"])}
    return {
        **listed,
        "init": fragment(init),
        "plan": planned,
        "deadline_at": optional_rfc3339(deadline_at),
        "options": fragment(options),
        "compensation": [{"step_id": step["step_id"], "status": step["status"]} for step in undone],
        "steps": dict(sorted(steps.items(), key=lambda item: order.get(item[0], len(order)))),
    }


def _plan_document(plan: str | None, goals: str, init: str) -> PlanDocument:
    if plan is not None:
        return cast(PlanDocument, Plan(**parse_json(plan)).document())
    goal_ids = parse_json(goals)  # from a version without plans
    return {
        "goals": goal_ids,
        "steps": goal_ids,
        "inputs": dict.fromkeys(parse_json(init), "init"),
        "included": dict.fromkeys(goal_ids, "it is a goal"),
        "excluded": {},
        "takes": {},
        "waits_for": {},
    }


def _parent_document(parent: str | None) -> FlowParent | None:
    if parent is None:
        return None
    found = parse_json(parent)
    return {"flow_id": found["flow_id"], "step_id": found["step_id"], "work_id": found["work_id"]}


def flow_step_document(row: Row) -> StepInFlow:
    _, status, goal, version, started_at, finished_at, items, error, due_at, redrives, kind = row
    return {
        "status": status,
        "kind": "gate" if version == GATED else kind or "async",
        "goal": bool(goal),
        "version": version,
        "started_at": optional_rfc3339(started_at),
        "finished_at": optional_rfc3339(finished_at),
        "items": items,
        "error": fragment(error),
        "reason": None,
        "waits_until": optional_rfc3339(due_at),
        "redrives": redrives,
        "work": [],
    }


def step_reasons(entries: list[Row]) -> dict[str, str]:
    """By step, why it was last skipped or cancelled, from journal entries in their order."""
    return {
        step_id: data["reason"]
        for (text,) in entries
        for kind, step_id, _, _, data in parse_entry(text)
        if kind in (EventType.STEP_SKIPPED, EventType.STEP_CANCELLED) and "reason" in data
    }


def work_document(row: Row) -> WorkDocument:
    (_, work_id, flow_id, step_id, item, status, attempt, due_at, deadline_at, hold, progress, message,
     result, error, created_at, sent_at, acknowledged_at, recorded_at, idempotency_key, redrive_of,
     undoes, child_flow_id) = row  # fmt: skip
    waits = status in ("pending", "not_completed")
    return {
        "work_id": work_id,
        "flow_id": flow_id,
        "step_id": step_id,
        "item": item,
        "status": status,
        "attempt": attempt,
        "next_attempt_at": optional_rfc3339(due_at) if waits else None,
        "deadline_at": optional_rfc3339(deadline_at),
        "hold": hold,
        "waits_for": None,
        "progress": fragment(progress),
        "message": message,
        "outputs": None if result is None else parse_json(result)["outputs"],
        "error": fragment(error),
        "idempotency_key": idempotency_key,
        "redrive_of": redrive_of,
        "undoes": undoes,
        "child_flow_id": child_flow_id,
        "created_at": rfc3339(created_at),
        "sent_at": optional_rfc3339(sent_at),
        "acknowledged_at": optional_rfc3339(acknowledged_at),
        "recorded_at": optional_rfc3339(recorded_at),
    }


def event_document(row: Row) -> JournalEvent:
    seq, event_type, at, flow_id, step_id, work_id, attempt, data = row
    facts = parse_json(data)
    for name, value in facts.items():
        if (name.endswith("_at") or name == "until") and isinstance(value, int):
            facts[name] = rfc3339(value)
    return {
        "seq": seq,
        "type": event_type,
        "at": rfc3339(at),
        "flow_id": flow_id,
        "step_id": step_id,
        "work_id": work_id,
        "attempt": attempt,
        "data": cast(Document, orjson.Fragment(dump_json(facts))),
    }


def schedule_document(schedule: Schedule) -> ScheduleDocument:
    """A schedule with its next ticks and the result of its last one."""
    return {
        "schedule_id": schedule.schedule_id,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "every_ms": schedule.every_ms,
        "flow": schedule.flow,
        "catch_up": schedule.catch_up,
        "enabled": schedule.enabled,
        "next_at": optional_rfc3339(schedule.next_at),
        "last_at": optional_rfc3339(schedule.last_at),
        "last_flow_id": schedule.last_flow_id,
        "last_error": cast("ScheduleFailure | None", schedule.last_error),
        "upcoming": [rfc3339(tick) for tick in schedule.upcoming()],
        "created_at": rfc3339(schedule.created_at),
        "updated_at": rfc3339(schedule.updated_at),
    }
