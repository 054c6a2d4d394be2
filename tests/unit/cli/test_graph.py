"""A flow and a plan as text: what is drawn, how wide, and how much of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from counterfoil.cli.commands.plans import plan_lines
from counterfoil.cli.graph import MARKS, flow_lines, layers_of, sources_text
from counterfoil.client import Flow, Plan
from counterfoil.domain.states import StepStatus

NOW = datetime(2026, 11, 17, 12, 0, 0, tzinfo=UTC)
BEFORE = "2026-11-17T11:59:00.000Z"
THEN = "2026-11-17T11:59:02.000Z"
LATER = "2026-11-17T12:00:30.000Z"
FAILURE = {"code": "STEP_FAILED", "message": "the carrier refuses", "step_id": "ship"}


def work(number: int = 0, status: str = "succeeded", **fields: Any) -> dict[str, Any]:
    known = {
        "work_id": f"w-{number:04d}",
        "item": number,
        "status": status,
        "attempt": 1,
        "next_attempt_at": None,
        "deadline_at": None,
        "hold": None,
        "progress": None,
        "outputs": None,
        "error": None,
        "undoes": None,
        "created_at": BEFORE,
    }
    return {**known, **fields}


def run(status: str = "completed", **fields: Any) -> dict[str, Any]:
    finished = THEN if status in ("completed", "failed") else None
    known = {
        "status": status,
        "kind": "async",
        "goal": False,
        "items": 1,
        "error": None,
        "started_at": BEFORE if status not in ("pending", "skipped") else None,
        "finished_at": finished,
        "waits_until": None,
        "redrives": 0,
        "work": [],
    }
    return {**known, **fields}


def plan(takes: dict[str, dict[str, list[str]]], *steps: str, **fields: Any) -> Plan:
    document = {
        "goals": [steps[-1]],
        "steps": list(steps),
        "inputs": {},
        "included": dict.fromkeys(steps, "it is needed"),
        "excluded": {},
        "takes": takes,
        "waits_for": {},
    }
    return cast(Plan, {**document, **fields})


def drawn(steps: dict[str, Any], takes: dict[str, Any] | None = None, width: int = 80, **fields: Any) -> list[str]:
    document = {"steps": steps, "plan": plan(takes or {}, *steps), "compensation": [], **fields}
    return flow_lines(cast(Flow, document), NOW, width)


def test_every_state_of_a_step_has_a_mark() -> None:
    assert set(MARKS) == {str(status) for status in StepStatus}


def test_a_chain() -> None:
    item = work(0, "active", attempt=2, deadline_at=LATER, progress=0.5)
    steps = {
        "split": run(),
        "read": run("active", work=[item]),
        "join": run("pending", goal=True),
    }
    takes = {"read": {"pages": ["split"]}, "join": {"text": ["read"]}}
    assert drawn(steps, takes) == [
        "✓ split  completed  took 2.0 s",
        "│",
        "● read   active     attempt 2, 50%, deadline in 30 s",
        "│   takes pages from split",
        "│",
        "○ join   pending    goal",
        "    takes text from read",
    ]


def test_a_diamond_has_three_layers() -> None:
    takes = {"b": {"x": ["a"]}, "c": {"x": ["a"]}, "d": {"y": ["b"], "z": ["c"]}}
    assert layers_of(["a", "b", "c", "d"], plan(takes, "a", "b", "c", "d")) == [["a"], ["b", "c"], ["d"]]
    lines = drawn({name: run() for name in "abcd"}, takes)
    assert [line[2] for line in lines if line[0] in MARKS.values()] == ["a", "b", "c", "d"]
    assert lines.count("│") == 2
    assert lines[-1].strip() == "takes y from b, z from c"


def test_a_thousand_items_are_counted_and_not_listed() -> None:
    states = ["succeeded"] * 900 + ["failed"] * 10 + ["active"] * 40 + ["pending"] * 50
    items = [work(number, status) for number, status in enumerate(states)]
    for item in items[900:910]:
        item["error"] = {"code": "STEP_FAILED", "message": f"page {item['item']} is blank"}
    assert drawn({"read": run("active", items=1000, work=items)}) == [
        "● read  active     910 of 1000 items",
        "    items: 900 succeeded, 10 failed, 40 active, 50 pending",
        "    item 900: STEP_FAILED: page 900 is blank",
        "    item 901: STEP_FAILED: page 901 is blank",
        "    item 902: STEP_FAILED: page 902 is blank",
        "    and 7 more with errors",
    ]


def test_what_failed_what_is_cancelled_for_it_and_what_is_undone() -> None:
    undone = work(5, undoes="w-0000", item=0)
    stuck = work(6, "failed", undoes="w-0001", item=0, error={"code": "STEP_FAILED", "message": "no refunds"})
    steps = {
        "reserve": run(work=[work(0), undone]),
        "charge": run(work=[work(1, item=0), stuck]),
        "ship": run("failed", error=FAILURE),
        "thank": run("cancelled", error=FAILURE, goal=True),
    }
    takes = {"charge": {"a": ["reserve"]}, "ship": {"b": ["charge"]}, "thank": {"c": ["ship"]}}
    compensation = [{"step_id": "charge", "status": "failed"}, {"step_id": "reserve", "status": "completed"}]
    lines = drawn(steps, takes, compensation=compensation)
    assert "│   error: STEP_FAILED: the carrier refuses" in lines
    assert lines[lines.index("⊘ thank    cancelled  goal") + 2] == "    because ship failed"
    assert lines[lines.index("compensation, in reverse order of completion") :] == [
        "compensation, in reverse order of completion",
        "✗ charge   failed",
        "    error: STEP_FAILED: no refunds",
        "✓ reserve  completed",
    ]


def test_of_a_flow_that_was_undone_twice_the_last_time_counts() -> None:
    once, again = work(0, work_id="a"), work(0, work_id="b", created_at=THEN)
    no = {"code": "STEP_FAILED", "message": "no refunds"}
    before = work(0, "failed", work_id="c", undoes="a", error=no)
    tried = work(0, "failed", work_id="d", undoes="b", created_at=THEN, error=no)
    now = work(0, work_id="e", undoes="b", created_at=LATER)
    entries = [{"step_id": "pay", "status": "completed"}]
    lines = drawn({"pay": run(work=[once, again, before, now, tried])}, compensation=entries)
    assert lines[-2:] == ["compensation, in reverse order of completion", "✓ pay  completed"]


def test_of_a_redriven_step_the_last_item_in_each_place_counts() -> None:
    old = work(0, "failed", work_id="a", error={"code": "STEP_FAILED", "message": "old"})
    new = work(0, "not_completed", work_id="b", created_at=THEN, next_attempt_at=LATER, redrive_of="a")
    new["error"] = {"code": "NOT_COMPLETED", "message": "busy"}
    assert drawn({"pay": run("active", redrives=1, work=[new, old])}) == [
        "● pay  active     retry in 30 s, redriven once",
        "    last attempt: NOT_COMPLETED: busy",
    ]
    assert drawn({"pay": run("pending", redrives=2, work=[old])}) == ["○ pay  pending    redriven 2 times"]


def test_sub_flows_are_named_failed_ones_first() -> None:
    items = [work(number, child_flow_id=f"w-{number:04d}") for number in range(5)]
    items[4]["status"] = "failed"
    lines = drawn({"inner": run("active", kind="flow", items=5, work=items)})
    assert lines[2:] == [
        "    sub-flow w-0004: failed",
        "    sub-flow w-0000: succeeded",
        "    sub-flow w-0001: succeeded",
        "    and 2 more sub-flows",
    ]


def test_the_steps_and_times_that_a_step_waits_for_are_shown() -> None:
    waits = {"first": {"any": 1, "of": ["a", "b"]}, "both": {"any": 2, "of": ["a", "b"]}}
    made = plan({"first": {"x": ["a", "b"]}}, "a", "b", "first", "both", waits_for=waits)
    assert sources_text("first", made) == "takes x from a or b; waits for 1 of a, b"
    assert sources_text("both", made) == "waits for all of a, b"
    assert sources_text("a", made) == ""
    assert drawn({"late": run("pending", waits_until=LATER)}) == ["○ late  pending    starts in 30 s at the latest"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    name, text = "a-step-with-a-long-name-" * 5, "words that go on and on " * 20
    error = {"code": "STEP_FAILED", "message": text + "x" * 300}
    takes = {"b": {f"value_{number}": [name] for number in range(30)}}
    steps = {name: run("failed", goal=True, redrives=3, error=error), "b": run("cancelled", goal=True)}
    assert max(map(len, drawn(steps, takes, width))) <= width


def test_a_flow_of_an_engine_without_plans_is_drawn_as_well() -> None:
    document = {"steps": {"resize": {"status": "active", "work": []}}}
    assert flow_lines(cast(Flow, document), NOW) == ["● resize  active"]


def test_a_plan_tells_order_and_reasons() -> None:
    made = plan(
        {"ship": {"payment": ["charge"]}},
        "charge",
        "ship",
        inputs={"payment": "charge", "order": "init", "card": "init"},
        included={"charge": "it provides payment for ship, with priority 0", "ship": "it is a goal"},
        excluded={"invoice": "payment is provided by charge: priority 0 instead of -1"},
    )
    assert plan_lines(made, 80) == [
        "1.  charge   it provides payment for ship, with priority 0",
        "2.  ship     it is a goal",
        "             takes payment from charge",
        "",
        "from init: card, order",
        "",
        "excluded",
        "    invoice  payment is provided by charge: priority 0 instead of -1",
    ]
    assert max(map(len, plan_lines(made, 40))) <= 40


def test_a_long_name_has_a_line_for_itself() -> None:
    name = "n" * 100
    assert plan_lines(plan({}, name), 60) == [f"1.  {name}", f"{'':<46}it is needed"]


def test_the_reason_of_a_skipped_or_cancelled_step_is_shown() -> None:
    reason = "no value for label can be produced"
    assert drawn({"stamp": run("skipped", reason=reason)}) == ["- stamp  skipped", f"    reason: {reason}"]
    assert drawn({"stamp": run("cancelled", reason="the flow failed")})[-1] == "    reason: the flow failed"
    assert drawn({"stamp": run("completed", reason=None)})[-1].startswith("✓ stamp  completed")
