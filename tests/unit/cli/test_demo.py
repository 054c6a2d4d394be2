from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from counterfoil.cli.demo.board import Board
from counterfoil.cli.demo.scenarios import SCENARIOS, Scenario, answer_of
from counterfoil.cli.demo.summary import Summary, Tally
from counterfoil.domain.steps.definitions import StepDefinition

FLAKY = Scenario("flaky", "fails at first", retried=True)
HOPELESS = Scenario("hopeless", "fails", expected="failed")


def event(kind: str, flow_id: str = "f-1", **fields: Any) -> Any:
    unset = {"seq": 1, "at": "2026-11-16T14:26:10.123Z", "step_id": None, "work_id": None, "attempt": None, "data": {}}
    return {**unset, "type": kind, "flow_id": flow_id, **fields}


def flow(status: str, outputs: dict[str, Any], attempts: int) -> Any:
    work = [{"work_id": "w", "status": status, "attempt": attempts}]
    return {"flow_id": "f", "status": status, "outputs": outputs, "steps": {"s": {"status": status, "work": work}}}


def shown(summary: Summary) -> str:
    text = io.StringIO()
    summary.show(Console(file=text, width=100))
    return text.getvalue()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.step_id)
def test_every_scenario_is_a_valid_step(scenario: Scenario) -> None:
    StepDefinition.model_validate(scenario.definition("http://127.0.0.1:9000"))


def test_the_board_counts_what_the_stream_tells() -> None:
    board = Board([FLAKY, HOPELESS], flows=2)
    on_flaky: dict[str, Any] = {"step_id": "flaky", "work_id": "w-1"}
    for item in (
        event("flow_started"),
        event("step_started", step_id="flaky"),
        event("work_created", **on_flaky),
        event("work_dispatched", attempt=1, **on_flaky),
        event("work_not_completed", attempt=1, data={"error": {"code": "X", "message": "answered 503"}}, **on_flaky),
        event("work_dispatched", attempt=2, **on_flaky),
        event("work_succeeded", attempt=2, **on_flaky),
        event("flow_completed"),
    ):
        board.see(item)
    assert board.attempts == 2
    assert board.rows["flaky"].work == {"w-1": "succeeded"}
    half = board.done
    board.see(event("flow_failed", "f-2"))
    assert (half, board.done) == (False, True)
    line = board.progress_line(1.5, Counter(flaky=3))
    assert line == "  1.5 s  1 of 2 flows started, 2 ended, 2 attempts, 3 duplicates refused"


def test_the_board_fits_a_terminal_of_a_hundred_columns() -> None:
    board = Board(SCENARIOS, flows=40)
    for scenario in SCENARIOS:
        board.see(event("step_started", step_id=scenario.step_id))
        board.see(event("work_not_completed", step_id=scenario.step_id, work_id=scenario.step_id, attempt=1))
    text = io.StringIO()
    Console(file=text, width=100).print(board.render("http://127.0.0.1:8080", 1.0, Counter()))
    lines = text.getvalue().splitlines()
    assert len(lines) < 30
    assert not [line for line in lines if "…" in line]
    assert all(scenario.story in text.getvalue() for scenario in SCENARIOS)


def test_a_summary_without_a_fault_is_good() -> None:
    flaky, hopeless = Tally(FLAKY), Tally(HOPELESS)
    flaky.add(flow("completed", answer_of(3), 2), 3)
    hopeless.add(flow("failed", {}, 1), 4)
    summary = Summary([flaky, hopeless], 5.0, Counter(twice=6), 0)
    assert summary.good
    text = shown(summary)
    assert "2 of 2 flows ended as expected, in 5.0 s" in text
    assert "3 attempts, 1 of them retries" in text
    assert "6 duplicate or conflicting results refused, none changed an outcome" in text
    assert "✗" not in text


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (flow("failed", {}, 2), "another status"),
        (flow("active", {}, 2), "not ended"),
        (flow("completed", {"answer": "something else"}, 2), "a changed outcome"),
        (flow("completed", answer_of(3), 1), "no retry where there must be one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_flow_that_did_not_end_as_it_should_is_a_fault(ended: Any, reason: str) -> None:
    tally = Tally(FLAKY)
    tally.add(ended, 3)
    summary = Summary([tally], 1.0, Counter(), 0)
    assert not summary.good, reason
    assert "✗ 0 of 1 flows" in shown(summary)


def test_an_accepted_duplicate_or_a_finding_is_a_fault() -> None:
    tally = Tally(HOPELESS)
    tally.add(flow("failed", {}, 1), 1)
    twice = Summary([tally], 1.0, Counter(), 1)
    found = Summary([tally], 1.0, Counter(), 0, ["stuck_flow: f-1: it can never end"])
    assert not twice.good
    assert "✗ 1 second results were accepted" in shown(twice)
    assert not found.good
    assert "✗ doctor: stuck_flow: f-1" in shown(found)
