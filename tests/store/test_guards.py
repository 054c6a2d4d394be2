"""The guards of the store say what the transition tables say: as their text has it, and for every pair of states tried
on a real row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from counterfoil.domain.states import (
    FINAL_FLOWS,
    FINAL_STEPS,
    FINAL_WORK,
    FLOW_MOVES,
    STEP_MOVES,
    WORK_MOVES,
    FlowStatus,
    StepStatus,
    WorkStatus,
    reachable,
)
from counterfoil.store.group_commit.commit import GuardRefused
from counterfoil.store.kinds.work import DONE_WORK
from counterfoil.store.protocol import Store
from counterfoil.store.queries import load_queries
from counterfoil.store.unit_of_work.changes import Changes
from tests.store.backends import QUERY_PACKAGES, write
from tests.store.records import changed_records, flow_record, new_records, step_run, work_item

WORK_WAYS, STEP_WAYS, FLOW_WAYS = reachable(WORK_MOVES), reachable(STEP_MOVES), reachable(FLOW_MOVES)
"""A batch may make several moves of a record, and writes what they come to."""
GUARDED: dict[str, tuple[Mapping[Any, frozenset[Any]], frozenset[Any]]] = {
    "update_work": (WORK_WAYS, FINAL_WORK),
    "update_steps": (STEP_WAYS, FINAL_STEPS),
    "update_flows": (FLOW_WAYS, FINAL_FLOWS),
}
_CASE = re.compile(r"WHEN '(\w+)' THEN \w+\.status IN \(([^)]*)\)")


@pytest.mark.parametrize("query", GUARDED)
def test_the_text_of_a_guard_names_each_way_once(backend: str, query: str) -> None:
    moves, final = GUARDED[query]
    cases = _CASE.findall(load_queries(QUERY_PACKAGES[backend])[query])
    told = {after: re.findall(r"'(\w+)'", before) for after, before in cases}
    assert len(cases) == len(told)
    assert {after: sorted(before) for after, before in told.items()} == {
        after: sorted(before for before in moves if after in moves[before] or (before == after and after not in final))
        for after in moves
    }


async def was_allowed(store: Store, changes: Changes) -> bool:
    try:
        await write(store, changes)
    except GuardRefused:
        return False
    return True


@pytest.mark.parametrize("before", WorkStatus)
async def test_work(store: Store, before: WorkStatus) -> None:
    allowed = set()
    for after in WorkStatus:
        work_id = f"{before}-{after}"
        await write(store, new_records(work_item(before, work_id=work_id)))
        if await was_allowed(store, changed_records(work_item(after, work_id=work_id))):
            allowed.add(after)
        [row] = await store.read("receipt_status", work_id=work_id)
        assert row[0] == (after if after in allowed else before)
    assert allowed == WORK_WAYS[before] | ({before} - FINAL_WORK), "open work may also change in place"


@pytest.mark.parametrize("before", WorkStatus)
async def test_work_of_which_only_the_end_can_change(store: Store, before: WorkStatus) -> None:
    """What was sent in an earlier batch and is done is written by a shorter statement, with a guard of its own."""
    allowed = set()
    for after in DONE_WORK:
        work_id = f"{before}-{after}"
        await write(store, new_records(work_item(before, work_id=work_id, attempt=1, sent_at=1, due_at=9)))
        ended = work_item(after, work_id=work_id, attempt=2, sent_at=1, recorded_at=3, result={"success": True})
        change = changed_records(ended)
        change.at = 2
        if await was_allowed(store, change):
            allowed.add(after)
            [row] = await store.read("get_work", work_id=work_id)
            assert (row[5], row[6], row[7], row[17]) == (after, 1, None, 3), "status, attempt, due_at, recorded_at"
    assert allowed == (set() if before in FINAL_WORK else DONE_WORK)


@pytest.mark.parametrize("before", StepStatus)
async def test_steps(store: Store, before: StepStatus) -> None:
    allowed = set()
    for after in StepStatus:
        flow_id = f"{before}-{after}"
        await write(store, new_records(step_run(before, flow_id=flow_id)))
        if await was_allowed(store, changed_records(step_run(after, flow_id=flow_id))):
            allowed.add(after)
        [row] = await store.read("get_flow_steps", flow_id=flow_id)
        assert row[1] == (after if after in allowed else before)
    assert allowed == STEP_WAYS[before] | ({before} - FINAL_STEPS)


@pytest.mark.parametrize("before", StepStatus)
async def test_steps_of_which_only_counters_and_the_end_can_change(store: Store, before: StepStatus) -> None:
    """Those that were begun in an earlier batch are written by a shorter statement, with a guard of its own."""
    allowed = set()
    for after in (StepStatus.ACTIVE, *STEP_MOVES[StepStatus.ACTIVE]):
        flow_id = f"{before}-{after}"
        await write(store, new_records(step_run(before, flow_id=flow_id, started_at=1)))
        change = changed_records(step_run(after, flow_id=flow_id, started_at=1, open_items=0, due_at=7))
        change.at = 2
        if await was_allowed(store, change):
            allowed.add(after)
            assert (await store.read("get_flow_steps", flow_id=flow_id))[0][8] is None, "the rest is not written"
    assert allowed == ({before, *STEP_MOVES[before]} if before is StepStatus.ACTIVE else set())


@pytest.mark.parametrize("before", StepStatus)
async def test_steps_that_are_redriven(store: Store, before: StepStatus) -> None:
    """One more redrive brings a step that has ended anywhere, but for one that was not wanted; the same number none."""
    allowed = set()
    for after in StepStatus:
        flow_id = f"{before}-{after}"
        await write(store, new_records(step_run(before, flow_id=flow_id, redrives=1)))
        if before in FINAL_STEPS:
            for redrives in (0, 1):
                change = changed_records(step_run(after, flow_id=flow_id, redrives=redrives))
                assert not await was_allowed(store, change)
        if await was_allowed(store, changed_records(step_run(after, flow_id=flow_id, redrives=2))):
            allowed.add(after)
    assert allowed == (set() if before is StepStatus.SKIPPED else set(StepStatus))


@pytest.mark.parametrize("before", FlowStatus)
async def test_flows(store: Store, before: FlowStatus) -> None:
    allowed = set()
    for after in FlowStatus:
        flow_id = f"{before}-{after}"
        await write(store, new_records(flow_record(before, flow_id=flow_id)))
        if await was_allowed(store, changed_records(flow_record(after, flow_id=flow_id))):
            allowed.add(after)
        [row] = await store.read("get_flow_result", flow_id=flow_id)
        assert row[1] == (after if after in allowed else before)
    assert allowed == FLOW_WAYS[before] | ({before} - FINAL_FLOWS)


@pytest.mark.parametrize("before", FlowStatus)
async def test_flows_that_are_redriven(store: Store, before: FlowStatus) -> None:
    """One more redrive brings a flow that has ended anywhere, but for one that has completed."""
    allowed = set()
    for after in FlowStatus:
        flow_id = f"{before}-{after}"
        await write(store, new_records(flow_record(before, flow_id=flow_id, redrives=1)))
        if await was_allowed(store, changed_records(flow_record(after, flow_id=flow_id, redrives=2))):
            allowed.add(after)
    assert allowed == (set() if before is FlowStatus.COMPLETED else set(FlowStatus))


async def test_one_refused_row_refuses_the_whole_batch(store: Store) -> None:
    items = [work_item(work_id=f"work-{number}") for number in range(5)]
    items[3].status = WorkStatus.SUCCEEDED
    await write(store, new_records(*items))
    ended = [work_item(WorkStatus.FAILED, work_id=item.work_id) for item in items]
    with pytest.raises(GuardRefused):
        await write(store, changed_records(*ended))
    states = [(await store.read("receipt_status", work_id=item.work_id))[0][0] for item in items]
    assert states == ["active", "active", "active", "succeeded", "active"]


async def test_what_does_not_exist_cannot_be_changed(store: Store) -> None:
    with pytest.raises(GuardRefused):
        await write(store, changed_records(work_item(work_id="nowhere")))


@pytest.mark.parametrize("count", [1, 2, 3, 127, 128, 129, 300])
async def test_a_batch_of_any_size_is_written_whole(store: Store, count: int) -> None:
    names = [f"work-{number:04}" for number in range(count)]
    await write(store, new_records(*(work_item(work_id=name) for name in names)))
    await write(store, changed_records(*(work_item(WorkStatus.SUCCEEDED, work_id=name) for name in names)))
    rows = await store.read("list_work", status="succeeded", step_id=None, after=None, limit=count + 1)
    assert sorted(row[1] for row in rows) == names
