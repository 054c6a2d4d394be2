"""The transition tables say what the design says, and nothing moves but through them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import pytest

from counterfoil.domain.states import (
    APPROVAL_MOVES,
    FINAL_FLOWS,
    FINAL_STEPS,
    FINAL_WORK,
    FLOW_MOVES,
    OPEN_WORK,
    REDRIVEN_FLOWS,
    REDRIVEN_STEPS,
    STEP_MOVES,
    WORK_MOVES,
    ApprovalStatus,
    FlowStatus,
    IllegalMove,
    StepStatus,
    WorkStatus,
    check_approval_move,
    check_flow_move,
    check_step_move,
    check_work_move,
    reachable,
)

WORK = """
pending -> active held not_completed succeeded failed cancelled
held -> pending succeeded failed cancelled
active -> succeeded failed not_completed cancelled
not_completed -> active held succeeded failed cancelled
"""
STEP = """
pending -> active skipped cancelled
active -> completed failed cancelled
"""
FLOW = """
active -> completed failed cancelled compensating
compensating -> failed cancelled
"""
APPROVAL = """
pending -> approved rejected expired void
"""


def moves_in(text: str) -> set[tuple[str, str]]:
    lines = [line.split(" -> ") for line in text.split("\n") if line]
    return {(before, after) for before, targets in lines for after in targets.split()}


def moves_of(table: Mapping[Any, frozenset[Any]]) -> set[tuple[str, str]]:
    return {(str(before), str(after)) for before, targets in table.items() for after in targets}


@pytest.mark.parametrize(
    ("table", "statuses", "text"),
    [
        (WORK_MOVES, WorkStatus, WORK),
        (STEP_MOVES, StepStatus, STEP),
        (FLOW_MOVES, FlowStatus, FLOW),
        (APPROVAL_MOVES, ApprovalStatus, APPROVAL),
    ],
    ids=["work", "step", "flow", "approval"],
)
def test_a_table_has_the_moves_of_the_design_and_no_others(
    table: Mapping[Any, frozenset[Any]], statuses: type[StrEnum], text: str
) -> None:
    assert set(table) == set(statuses), "every state is in the table"
    assert moves_of(table) == moves_in(text)


@pytest.mark.parametrize(
    ("table", "check"),
    [
        (WORK_MOVES, check_work_move),
        (STEP_MOVES, check_step_move),
        (FLOW_MOVES, check_flow_move),
        (APPROVAL_MOVES, check_approval_move),
    ],
    ids=["work", "step", "flow", "approval"],
)
def test_the_check_lets_through_what_the_table_has(
    table: Mapping[Any, frozenset[Any]], check: Callable[[Any, Any], None]
) -> None:
    for before, after in itertools.product(table, repeat=2):
        redriven = (check is check_step_move and after is StepStatus.PENDING and before in REDRIVEN_STEPS) or (
            check is check_flow_move and after is FlowStatus.ACTIVE and before in REDRIVEN_FLOWS
        )
        if after in table[before] or redriven:
            check(before, after)
        else:
            with pytest.raises(IllegalMove, match=f"{before} -> {after}"):
                check(before, after)


def test_what_is_final_is_left_for_nothing() -> None:
    assert {status for status in WorkStatus if not WORK_MOVES[status]} == FINAL_WORK
    assert {status for status in StepStatus if not STEP_MOVES[status]} == FINAL_STEPS
    assert {status for status in FlowStatus if not FLOW_MOVES[status]} == FINAL_FLOWS


def test_what_is_never_redriven() -> None:
    assert {StepStatus.SKIPPED} == FINAL_STEPS - REDRIVEN_STEPS
    assert {FlowStatus.COMPLETED} == FINAL_FLOWS - REDRIVEN_FLOWS


def test_several_moves_lead_wherever_each_of_them_does() -> None:
    ways = reachable(STEP_MOVES)
    assert ways[StepStatus.PENDING] == set(StepStatus) - {StepStatus.PENDING}
    assert ways[StepStatus.ACTIVE] == STEP_MOVES[StepStatus.ACTIVE]
    assert reachable(FLOW_MOVES) == FLOW_MOVES
    assert all(reachable(WORK_MOVES)[status] == set() for status in FINAL_WORK)


def test_open_and_final_work_are_all_work() -> None:
    assert set(WorkStatus) == OPEN_WORK | FINAL_WORK
    assert not OPEN_WORK & FINAL_WORK


def test_whatever_is_open_can_be_cancelled() -> None:
    assert all(WorkStatus.CANCELLED in WORK_MOVES[status] for status in OPEN_WORK)
    assert all(StepStatus.CANCELLED in STEP_MOVES[status] for status in set(StepStatus) - FINAL_STEPS)
    assert all(FlowStatus.CANCELLED in FLOW_MOVES[status] for status in set(FlowStatus) - FINAL_FLOWS)
