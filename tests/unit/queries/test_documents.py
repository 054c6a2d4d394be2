"""Rows as the API shows them: complete, in the forms of the contract, and JSON passed on as it was given."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.domain.flows.planning import make_plan
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import StepVersion
from counterfoil.domain.steps.definitions import WorkDefaults
from counterfoil.domain.steps.register import Register
from counterfoil.engine.queries.attempts import read_attempts
from counterfoil.engine.queries.documents import (
    event_document,
    flow_step_document,
    fragment,
    gathered_outputs,
    listed_flow,
    registered_step,
    step_document,
    whole_flow,
    work_document,
)
from counterfoil.store.protocol import Row
from counterfoil.wire.work import AttemptDocument
from tests.store.records import NOW, definition, step_version

AT = "2027-01-15T08:00:00.000Z"
LATER = "2027-01-15T08:00:00.500Z"


def shown(document: Any) -> Any:
    """As the caller receives it."""
    return orjson.loads(orjson.dumps(document))


def work_row(**fields: Any) -> tuple[Any, ...]:
    known: dict[str, Any] = {
        "ordinal": 7,
        "work_id": "work",
        "flow_id": "flow",
        "step_id": "step",
        "item": 0,
        "status": "active",
        "attempt": 1,
        "due_at": NOW + 500,
        "deadline_at": NOW + 500,
        "hold": None,
        "progress": None,
        "message": None,
        "result": None,
        "error": None,
        "created_at": NOW,
        "sent_at": NOW,
        "acknowledged_at": None,
        "recorded_at": None,
        "idempotency_key": "key",
        "redrive_of": None,
        "undoes": None,
        "child_flow_id": None,
    }
    return tuple({**known, **fields}.values())


def test_json_is_passed_on_as_it_is() -> None:
    assert orjson.dumps(fragment('{"a":1.10}')) == b'{"a":1.10}'
    assert shown(fragment(None)) is None
    assert shown(fragment(None, "{}")) == {}


def test_active_work() -> None:
    assert shown(work_document(work_row(progress="0.5", message="m"))) == {
        "work_id": "work",
        "flow_id": "flow",
        "step_id": "step",
        "item": 0,
        "status": "active",
        "attempt": 1,
        "next_attempt_at": None,
        "deadline_at": LATER,
        "hold": None,
        "waits_for": None,
        "progress": 0.5,
        "message": "m",
        "outputs": None,
        "error": None,
        "idempotency_key": "key",
        "redrive_of": None,
        "undoes": None,
        "child_flow_id": None,
        "created_at": AT,
        "sent_at": AT,
        "acknowledged_at": None,
        "recorded_at": None,
    }


@pytest.mark.parametrize("status", ["pending", "not_completed"])
def test_what_waits_shows_its_next_attempt(status: str) -> None:
    document = shown(work_document(work_row(status=status, deadline_at=None)))
    assert (document["next_attempt_at"], document["deadline_at"]) == (LATER, None)


def test_what_has_ended_shows_what_came_of_it() -> None:
    result = '{"success":true,"outputs":{"amount":12345678901234567890},"error":null}'
    row = work_row(
        status="succeeded", due_at=None, deadline_at=None, result=result, recorded_at=NOW, error='{"code":"X"}'
    )
    document = shown(work_document(row))
    assert (document["outputs"], document["recorded_at"]) == ({"amount": 12345678901234567890}, AT)
    assert document["error"] == {"code": "X"}
    assert "result" not in document


def test_work_shows_what_it_stands_in_for_and_what_it_undoes() -> None:
    document = work_document(work_row(redrive_of="before", undoes="other"))
    assert (document["redrive_of"], document["undoes"]) == ("before", "other")


def test_outputs_of_steps_are_gathered_by_flow_and_the_first_value_stays() -> None:
    rows: list[tuple[Any, ...]] = [("f", '{"a":1,"b":1}'), ("g", '{"a":2}'), ("f", '{"b":2,"c":12345678901234567890}')]
    assert gathered_outputs(rows) == {"f": {"a": 1, "b": 1, "c": 12345678901234567890}, "g": {"a": 2}}
    assert gathered_outputs([]) == {}


def flow_row(**fields: Any) -> tuple[Any, ...]:
    known: dict[str, Any] = {
        "flow_id": "flow",
        "status": "failed",
        "goals": '["b","a"]',
        "created_at": NOW,
        "error": '{"code":"X"}',
        "finished_at": NOW + 500,
        "metadata": '{"m":1}',
        "labels": '{"k":"v"}',
        "init": '{"x":1}',
        "options": '{"compensate":false}',
        "parent": None,
        "deadline_at": None,
        "compensation": None,
        "plan": None,
        "pruned_at": None,
        "run_key": "order-7",
    }
    return tuple({**known, **fields}.values())


def test_a_flow_by_itself_shows_what_it_was_started_with() -> None:
    document = shown(whole_flow(flow_row(deadline_at=NOW), {"y": 1}, {}))
    assert (document["flow_id"], document["status"], document["outputs"]) == ("flow", "failed", {"y": 1})
    assert (document["init"], document["options"]) == ({"x": 1}, {"compensate": False})
    assert (document["parent"], document["compensation"], document["deadline_at"]) == (None, [], AT)


def test_a_flow_by_itself_shows_its_plan() -> None:
    plan = make_plan(Register(1, [step_version()]), ["step"], ())
    document = shown(whole_flow(flow_row(plan=dump_json(plan.stored()).decode()), {}, {}))
    assert document["plan"] == plan.document()
    shown_of_plan = {"goals", "steps", "inputs", "included", "excluded", "takes", "waits_for"}
    assert set(document["plan"]) == shown_of_plan, "and nothing of the engine's"


def test_a_plan_shows_which_step_takes_what_from_which() -> None:
    output, required, defaults = {"role": "output"}, {"role": "required"}, WorkDefaults()
    fetch = StepVersion.of("fetch", definition(attributes={"page": output, "size": output}), defaults)
    optional = {"role": "optional", "default": 0}
    parse = StepVersion.of(
        "parse", definition(attributes={"page": required, "size": optional, "url": required}), defaults
    )
    after = StepVersion.of("after", definition(wait_for={"of": ["parse"]}), defaults)
    plan = make_plan(Register(1, [fetch, parse, after]), ["after"], ["url"]).document()
    assert plan["takes"] == {"parse": {"page": ["fetch"], "size": ["fetch"]}}
    assert plan["waits_for"] == {"after": {"any": 1, "of": ["parse"]}}


def test_a_flow_of_a_time_without_plans_shows_its_goals_as_one() -> None:
    assert shown(whole_flow(flow_row(), {}, {}))["plan"] == {
        "goals": ["b", "a"],
        "steps": ["b", "a"],
        "inputs": {"x": "init"},
        "included": {"b": "it is a goal", "a": "it is a goal"},
        "excluded": {},
        "takes": {},
        "waits_for": {},
    }


def test_a_flow_by_itself_shows_whose_it_is_and_what_is_undone() -> None:
    parent = '{"flow_id":"outer","step_id":"s","work_id":"flow","depth":2}'
    undone = '{"ending":"failed","steps":[{"step_id":"b","status":"active","open":1,"failed":0}]}'
    document = shown(whole_flow(flow_row(parent=parent, compensation=undone), {}, {}))
    assert document["parent"] == {"flow_id": "outer", "step_id": "s", "work_id": "flow"}
    assert document["compensation"] == [{"step_id": "b", "status": "active"}]


def test_a_step_in_a_flow() -> None:
    row = ("step", "pending", 1, "v", None, None, 0, '{"code":"X"}', NOW + 500, 2, None)
    assert shown(flow_step_document(row)) == {
        "status": "pending",
        "kind": "async",
        "goal": True,
        "version": "v",
        "started_at": None,
        "finished_at": None,
        "items": 0,
        "error": {"code": "X"},
        "reason": None,
        "waits_until": LATER,
        "redrives": 2,
        "work": [],
    }
    assert flow_step_document((*row[:-1], "flow"))["kind"] == "flow"


def test_a_flow_in_a_list() -> None:
    row = (
        3,
        "flow",
        "failed",
        '["a","b"]',
        NOW,
        '{"code":"X"}',
        NOW + 500,
        '{"m":1}',
        '{"k":"v"}',
        None,
        None,
        "order-7",
    )
    assert shown(listed_flow(row, {"x": 1})) == {
        "flow_id": "flow",
        "status": "failed",
        "goals": ["a", "b"],
        "outputs": {"x": 1},
        "error": {"code": "X"},
        "metadata": {"m": 1},
        "labels": {"k": "v"},
        "created_at": AT,
        "finished_at": LATER,
        "pruned_at": None,
        "parent": None,
        "idempotency_key": "order-7",
    }


def test_a_step_shows_what_it_inherits_and_of_its_attributes_what_was_given() -> None:
    given = definition(
        work={"max_retries": 1}, attributes={"mode": {"role": "const", "value": "fast"}, "text": {"role": "output"}}
    )
    row = ("step", "version", given.model_dump_json(by_alias=True, exclude_unset=True), NOW, NOW + 500)
    document = shown(step_document(row, WorkDefaults(deadline_ms=77)))
    assert document == shown(registered_step("step", "version", given, WorkDefaults(deadline_ms=77), NOW, NOW + 500))
    assert (document["step_id"], document["name"], document["version"]) == ("step", "step", "version")
    assert (document["created_at"], document["updated_at"]) == (AT, LATER)
    assert (document["work"]["max_retries"], document["work"]["deadline_ms"]) == (1, 77)
    assert document["attributes"] == {"mode": {"role": "const", "value": "fast"}, "text": {"role": "output"}}


def test_a_step_has_the_name_that_it_was_given() -> None:
    document = registered_step("step", "version", definition(name="Resize"), WorkDefaults(), NOW, NOW)
    assert document["name"] == "Resize"


def event_row(kind: str, at: int = NOW, attempt: int | None = 1, **data: Any) -> tuple[Any, ...]:
    return (9, kind, at, "flow", "step", "work", attempt, dump_json(data).decode())


def test_an_event_shows_its_times_as_times() -> None:
    row = event_row("work_dispatched", deadline_at=NOW + 500, owner="node", due_at=None, init={"sent_at": 5})
    document = shown(event_document(row))
    assert document.pop("data") == {
        "deadline_at": LATER,
        "owner": "node",
        "due_at": None,
        "init": {"sent_at": 5},
    }
    assert document == {
        "seq": 9,
        "type": "work_dispatched",
        "at": AT,
        "flow_id": "flow",
        "step_id": "step",
        "work_id": "work",
        "attempt": 1,
    }


def attempts_in(events: list[Row]) -> list[AttemptDocument]:
    return read_attempts(events).documents


def test_an_attempt_that_waits() -> None:
    [attempt] = attempts_in([event_row("work_created"), event_row("work_dispatched")])
    assert attempt == {
        "attempt": 1,
        "planned_at": AT,
        "approved_at": None,
        "started_at": AT,
        "sent_at": AT,
        "acknowledged_at": None,
        "finished_at": None,
        "ended_at": None,
        "outcome": "waiting",
        "delivery": None,
        "cause": None,
        "error": None,
        "next_attempt_at": None,
    }


def test_attempts_are_read_off_the_journal() -> None:
    cause = {"code": "ENDPOINT_UNAVAILABLE", "message": "the endpoint answered 503"}
    attempts = attempts_in(
        [
            event_row("work_created"),
            event_row("work_dispatched"),
            event_row("work_not_completed", error=cause, delivery="answered", next_attempt_at=NOW + 500),
            event_row("work_dispatched", NOW + 500),
            event_row("work_acknowledged", NOW + 500),
            event_row("work_heartbeat", NOW + 500),
            event_row("work_succeeded", NOW + 500, result={}),
        ]
    )
    assert [
        (each["outcome"], each["delivery"], each["error"], each["next_attempt_at"], each["ended_at"])
        for each in attempts
    ] == [("not_completed", "delivered", cause, LATER, AT), ("succeeded", "delivered", None, None, LATER)]
    assert [each["attempt"] for each in attempts] == [1, 2]
    assert attempts[1]["acknowledged_at"] == LATER


def test_an_attempt_that_could_not_be_sent_keeps_its_number_for_the_next() -> None:
    error = {"code": "NOT_SENT", "message": "not sent: this machine lacks memory"}
    gave_back: dict[str, Any] = {"error": error, "delivery": "not_delivered", "next_attempt_at": NOW + 500}
    attempts = attempts_in(
        [
            event_row("work_dispatched"),
            event_row("work_not_completed", **gave_back, unsent=True),
            event_row("work_dispatched", NOW + 500),
            event_row("work_not_completed", **gave_back),
            event_row("work_dispatched", NOW + 500),
        ]
    )
    assert [each["attempt"] for each in attempts] == [1, 1, 2]


def test_a_late_result_ends_the_last_attempt() -> None:
    attempts = attempts_in(
        [
            event_row("work_dispatched"),
            event_row("work_not_completed", error={"code": "X"}, delivery="unknown", next_attempt_at=NOW + 500),
            event_row("work_succeeded", NOW + 500),
        ]
    )
    assert [(each["outcome"], each["ended_at"], each["error"]) for each in attempts] == [("succeeded", LATER, None)]


def test_a_postponed_attempt_shows_when_the_next_one_is_due() -> None:
    back = {"code": "NOT_COMPLETED", "message": "busy"}
    attempts = attempts_in(
        [
            event_row("work_dispatched"),
            event_row("work_not_completed", error={"code": "X"}, delivery="unknown", next_attempt_at=NOW),
            event_row("work_postponed", NOW, error=back, next_attempt_at=NOW + 500),
        ]
    )
    assert [(each["outcome"], each["error"], each["next_attempt_at"]) for each in attempts] == [
        ("not_completed", back, LATER)
    ]


def test_work_cancelled_before_its_first_attempt_has_none() -> None:
    assert attempts_in([event_row("work_created"), event_row("work_cancelled")]) == []
