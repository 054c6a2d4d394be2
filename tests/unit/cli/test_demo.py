from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from counterfoil.cli.demo.board import Board
from counterfoil.cli.demo.scenarios import CHARGE, SCENARIOS, Scenario, answer_of
from counterfoil.cli.demo.summary import Charges, Summary, Tally
from counterfoil.domain.steps.definitions import StepDefinition

FLAKY = Scenario("flaky", "fails at first", retried=True)
HOPELESS = Scenario("hopeless", "fails", expected="failed")


def event(kind: str, flow_id: str = "f-1", **fields: Any) -> Any:
    unset = {"seq": 1, "at": "2026-11-16T14:26:10.123Z", "step_id": None, "work_id": None, "attempt": None, "data": {}}
    return {**unset, "type": kind, "flow_id": flow_id, **fields}


def flow(status: str, outputs: dict[str, Any], attempts: int) -> Any:
    work = [{"work_id": "w", "status": status, "attempt": attempts}]
    return {"flow_id": "f", "status": status, "outputs": outputs, "steps": {"s": {"status": status, "work": work}}}


def shown(summary: Summary, width: int = 100) -> str:
    text = io.StringIO()
    summary.show(Console(file=text, width=width))
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


def test_the_event_since_which_an_item_is_held_stays_on_the_board() -> None:
    board = Board([CHARGE], flows=1)
    board.see(event("work_held", "held", seq=1, step_id="charge", work_id="w-1", data={"approval_id": "apr_1"}))
    for number in range(2, 40):
        board.see(event("flow_completed", f"f-{number}", seq=number))
    assert [each["seq"] for each in board.shown_events(4)] == [1, 37, 38, 39]
    assert [each["seq"] for each in board.shown_events(1)] == [1]
    board.see(event("work_dispatched", seq=40, step_id="charge", work_id="w-1"))
    assert [each["seq"] for each in board.shown_events(2)] == [39, 40]


def lines_of(board: Board, width: int, height: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width).print(board.render("http://127.0.0.1:8080", 1.0, Counter(twice=6), width, height))
    return text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(120, []), (105, []), (80, ["last event"]), (60, ["last event", "worker behaviour"])],
)
def test_the_board_fits_the_terminal(width: int, left_out: list[str]) -> None:
    board = Board(SCENARIOS, flows=40)
    unavailable = {"error": {"code": "ENDPOINT_UNAVAILABLE", "message": "the endpoint answered 503"}}
    for scenario in SCENARIOS:
        of_it: dict[str, Any] = {"step_id": scenario.step_id, "flow_id": "demo-123456-01"}
        board.see(event("step_started", **of_it))
        board.see(event("work_not_completed", work_id=scenario.step_id, attempt=1, data=unavailable, **of_it))
    lines = lines_of(board, width, 24)
    assert len(lines) < 24  # the cursor needs a line, too
    heads = {"step", "worker behaviour", "flows", "open", "held", "retry", "ok", "failed", "sent", "refused"}
    heads |= {"last event"}
    shown = {name for name in heads if name in lines[2]}
    assert shown == heads - set(left_out)
    table = lines[3 : 3 + len(SCENARIOS)]
    assert not [line for line in table if "…" in line]
    assert all(scenario.story in line for scenario, line in zip(SCENARIOS, table, strict=True)) == (width >= 80)
    if width >= 80:
        assert all("ENDPOINT_UNAVAILABLE" in line for line in lines[-3:])


def test_the_board_fits_a_terminal_of_few_lines() -> None:
    board = Board(SCENARIOS, flows=40)
    for number in range(20):
        board.see(event("flow_completed", f"f-{number}"))
    assert len(lines_of(board, 80, 18)) == 17
    assert "f-19" in lines_of(board, 80, 10)[-1]


def test_the_story_of_a_scenario_has_room_in_a_terminal_of_80_columns() -> None:
    assert max(len(scenario.story) for scenario in SCENARIOS) <= 24


def test_the_summary_cuts_nothing_off() -> None:
    tally = Tally(FLAKY)
    for status in ("completed", "failed", "active", "cancelled"):
        tally.add(flow(status, {}, 2), 3)
    text = shown(Summary([tally], 1.0, Counter(flaky=3), 0), width=60)
    assert "…" not in text
    assert set(text.split()) >= {"✗", "flaky", "completed,", "failed", "active,", "cancelled,", "refused", "8", "3"}


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


def test_an_item_that_waits_for_a_person_is_held() -> None:
    board = Board([CHARGE], flows=1)
    item: dict[str, Any] = {"step_id": "charge", "work_id": "w-1"}
    unknown = {"hold": "unsafe_once", "cause": "connection_lost", "error": {"code": "UNSAFE_ONCE_INCOMPLETE"}}
    seen = []
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("work_created", {}),
        ("work_held", {"approval_id": "apr_1"}),
        ("work_cleared", {}),
        ("work_dispatched", {}),
        ("work_not_completed", unknown),
    )
    for seq, (kind, data) in enumerate(changes):
        board.see(event(kind, attempt=1, data=data, seq=seq, **item))
        seen.append(board.rows["charge"].work["w-1"])
    assert seen == ["pending", "held", "pending", "active", "held"]
    assert lines_of(board, 80, 24)[-1].endswith("not_completed  attempt 1 connection_lost")


@pytest.mark.parametrize(
    ("charges", "good"),
    [({"f": 1}, True), ({"f": 2}, False), ({}, False), ({"f": 1, "g": 1}, False)],
    ids=["once", "twice", "not at all", "another one"],
)
def test_a_card_that_is_not_charged_once_is_a_fault(charges: dict[str, int], good: bool) -> None:
    tally = Tally(CHARGE)
    tally.add(flow("completed", answer_of(10), 2), 10)
    summary = Summary([tally], 1.0, Counter(), 0, charges=Charges(Counter(charges), 2, 1))
    assert summary.good == good
    told = "1 cards charged once each; the worker died 1 times: 2 attempts, 2 approvals"
    assert (told in shown(summary)) == good


def test_an_accepted_duplicate_or_a_finding_is_a_fault() -> None:
    tally = Tally(HOPELESS)
    tally.add(flow("failed", {}, 1), 1)
    twice = Summary([tally], 1.0, Counter(), 1)
    found = Summary([tally], 1.0, Counter(), 0, ["stuck_flow: f-1: it can never end"])
    assert not twice.good
    assert "✗ 1 second results were accepted" in shown(twice)
    assert not found.good
    assert "✗ doctor: stuck_flow: f-1" in shown(found)
