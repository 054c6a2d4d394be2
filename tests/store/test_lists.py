"""Lists and pages: every row exactly once, in order, whatever was filtered."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.domain.flows.planning import make_plan
from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.jsontext import dump_json
from counterfoil.domain.records import KeyedFlow, StepRun
from counterfoil.domain.states import FlowStatus, StepStatus, WorkStatus
from counterfoil.domain.steps.register import Register
from counterfoil.store.kinds.definitions import CURRENT, PLANS, VERSIONS
from counterfoil.store.kinds.flows import KEYED_FLOWS
from counterfoil.store.postgres.store import PostgresStore
from counterfoil.store.protocol import Row, Store
from counterfoil.store.unit_of_work.changes import Changes
from tests.by_hand import by_hand
from tests.store.backends import place_of, write
from tests.store.records import (
    NOW,
    changed_records,
    flow_inputs,
    flow_record,
    new_records,
    step_run,
    step_version,
    work_item,
)

PLAN = make_plan(Register(1, [step_version()]), ["step"], ())
FLOW_FILTERS: dict[str, Any] = {
    "status": None,
    "label": None,
    "goal": None,
    "since": None,
    "before": None,
    "limit": 100,
}
WORK_FILTERS: dict[str, Any] = {"status": None, "step_id": None, "after": None, "limit": 100}


async def add_flows(store: Store, count: int = 7) -> None:
    """Flows 0, 1, 2 ...: each its own moment; states, labels and goals take turns."""
    for number in range(count):
        flow_id = f"flow-{number}"
        flow = flow_record([*FlowStatus][number % 5], flow_id=flow_id, created_at=NOW + number)
        step = step_run(flow_id=flow_id, step_id=f"goal-{number % 2}")
        other = step_run(flow_id=flow_id, step_id="no-goal", goal=False)
        labels = {"parity": str(number % 2), "number": str(number)}
        await write(store, new_records(flow, step, other, flow_inputs(flow_id, labels=labels)))


async def flows(store: Store, query: str = "list_flows", **filters: Any) -> list[str]:
    return [row[1] for row in await store.read(query, **{**FLOW_FILTERS, **filters})]


def names(*numbers: int) -> list[str]:
    return [f"flow-{number}" for number in numbers]


async def test_flows_are_listed_newest_first(store: Store) -> None:
    await add_flows(store)
    assert await flows(store) == names(6, 5, 4, 3, 2, 1, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
async def test_pages_of_flows_show_each_exactly_once(store: Store, size: int) -> None:
    await add_flows(store)
    seen: list[str] = []
    before = None
    while rows := await store.read("list_flows", **{**FLOW_FILTERS, "before": before, "limit": size}):
        seen += [row[1] for row in rows]
        before = rows[-1][0]
    assert seen == names(6, 5, 4, 3, 2, 1, 0)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"status": "completed"}, names(2)),
        ({"status": "active"}, names(5, 0)),
        ({"label": "parity:1"}, names(5, 3, 1)),
        ({"label": "parity:2"}, []),
        ({"goal": "goal-1"}, names(5, 3, 1)),
        ({"goal": "no-goal"}, []),
        ({"since": NOW + 5}, names(6, 5)),
        ({"label": "parity:1", "goal": "goal-1", "since": NOW + 2, "status": "active"}, names(5)),
        ({"label": "parity:0", "goal": "goal-1"}, []),
        ({"limit": 2}, names(6, 5)),
    ],
)
async def test_flows_by_filter(store: Store, filters: dict[str, Any], expected: list[str]) -> None:
    await add_flows(store)
    assert await flows(store, **filters) == expected


@pytest.mark.parametrize("status", sorted(set(FlowStatus) - {FlowStatus.COMPLETED}))
@pytest.mark.parametrize("filters", [{}, {"label": "parity:1"}, {"goal": "goal-0"}, {"since": NOW + 3}, {"limit": 1}])
async def test_the_short_way_to_open_flows_lists_the_same(
    store: Store, status: FlowStatus, filters: dict[str, Any]
) -> None:
    await add_flows(store, count=12)
    assert await flows(store, "list_open_flows", status=status, **filters) == await flows(
        store, status=status, **filters
    )


async def test_a_flow_and_its_result(store: Store) -> None:
    compensation: dict[str, Any] = {"ending": "failed", "steps": []}
    more: dict[str, Any] = {"parent": {"flow_id": "outer"}, "deadline_at": NOW + 20, "compensation": compensation}
    flow = flow_record(FlowStatus.FAILED, error={"code": "X"}, finished_at=NOW + 9, plan=PLAN.plan_id, **more)
    inputs = flow_inputs(init={"i": 1}, metadata={"m": 2}, labels={"k": "v"}, options={"compensate": False})
    changes = new_records(flow, inputs)
    changes.of(PLANS)[PLAN.plan_id] = PLAN
    changes.of(KEYED_FLOWS)["flow"] = KeyedFlow("flow", "order:7", 1, "digest", 0, retain_failed=False)
    await write(store, changes)
    [row] = await store.read("get_flow", flow_id="flow")
    assert row == (
        *("flow", "failed", '["step"]', NOW, '{"code":"X"}', NOW + 9),
        *('{"m":2}', '{"k":"v"}', '{"i":1}', '{"compensate":false}'),
        *('{"flow_id":"outer"}', NOW + 20, '{"ending":"failed","steps":[]}', dump_json(PLAN.stored()).decode(), None),
        "order:7",
    )
    assert await store.read("get_flow_result", flow_id="flow") == [("flow", "failed", '{"code":"X"}')]
    assert len(await store.read("flow_exists", flow_id="flow")) == 1
    for query in ("get_flow", "get_flow_result", "flow_exists"):
        assert await store.read(query, flow_id="another") == []


async def test_a_flow_without_a_plan(store: Store) -> None:
    await write(store, new_records(flow_record(), flow_inputs()))
    [row] = await store.read("get_flow", flow_id="flow")
    assert row[-7:] == ("{}", None, None, None, None, None, None)


async def test_the_steps_of_a_flow(store: Store) -> None:
    failed = step_run(StepStatus.FAILED, step_id="b", finished_at=NOW + 1, error={"code": "X"}, redrives=2, items=3)
    waiting = step_run(StepStatus.PENDING, step_id="a", goal=False, due_at=NOW + 5, items=0, started_at=NOW + 1)
    await write(store, new_records(failed, waiting, step_run(flow_id="other")))
    assert await store.read("get_flow_steps", flow_id="flow") == [
        ("b", "failed", True, "version", NOW, NOW + 1, 3, '{"code":"X"}', None, 2, None),
        ("a", "pending", False, "version", NOW + 1, None, 0, None, NOW + 5, 0, None),
    ]


async def test_the_kind_of_a_step_is_told_whatever_its_definition_holds(store: Store) -> None:
    nasty = {"x": {"role": "const", "value": "\x00 \\u0000"}}
    versions = {kind: step_version(kind, kind=kind, attributes=nasty) for kind in ("sync", "async")}
    changes = new_records(*(step_run(step_id=kind, version=each.version) for kind, each in versions.items()))
    changes.of(CURRENT).update({step_id: each.version for step_id, each in versions.items()})
    changes.of(VERSIONS).update({each.version: each for each in versions.values()})
    await write(store, changes)
    rows = await store.read("get_flow_steps", flow_id="flow")
    assert {row[0]: row[-1] for row in rows} == {"sync": "sync", "async": "async"}


async def test_what_the_steps_of_some_flows_gave_in_the_order_of_their_end(store: Store) -> None:
    def completed(flow_id: str, step_id: str, at: int, outputs: dict[str, Any] | None) -> StepRun:
        done = StepStatus.COMPLETED
        return step_run(done, flow_id=flow_id, step_id=step_id, finished_at=at, outputs=outputs)

    steps = [
        completed("one", "b", NOW + 2, {"x": 2}),
        completed("one", "a", NOW + 2, {"x": 1}),
        completed("one", "c", NOW + 1, {"x": 3, "text": "\x00"}),
        completed("one", "d", NOW, None),
        completed("two", "a", NOW, {"y": 10**30}),
        completed("three", "a", NOW, {"z": 1}),
    ]
    await write(store, new_records(*steps))
    rows = [
        ("two", f'{{"y":{10**30}}}'),
        ("one", '{"x":3,"text":"\\u0000"}'),
        ("one", '{"x":1}'),
        ("one", '{"x":2}'),
    ]
    assert await store.read("outputs_of_flows", flow_ids='["two","one","nothing"]') == rows
    first = len("two") + len(rows[0][1])
    for max_bytes, shown in ((1, 1), (first, 1), (first + 1, 2), (10_000, 4)):
        page = await store.read_page("outputs_of_flows", max_bytes, flow_ids='["two","one","nothing"]')
        assert page == (rows[:shown], shown < 4)
    assert await store.read("outputs_of_flows", flow_ids="[]") == []


async def test_results_of_some_flows_in_one_read(store: Store) -> None:
    """Outputs of a flow that has not ended are given only if asked for: a poll that waits has no use for them."""
    states = {
        "done": FlowStatus.COMPLETED,
        "broken": FlowStatus.FAILED,
        "stopped": FlowStatus.CANCELLED,
        "open": FlowStatus.ACTIVE,
        "undoing": FlowStatus.COMPENSATING,
    }
    for flow_id, status in states.items():
        error = {"code": "X"} if status is FlowStatus.FAILED else None
        await write(store, new_records(flow_record(status, flow_id=flow_id, error=error)))
    done = StepStatus.COMPLETED
    steps = [
        step_run(done, flow_id="done", step_id="b", finished_at=NOW + 1, outputs={"x": 10**30}),
        step_run(done, flow_id="done", step_id="a", finished_at=NOW + 2, outputs={"y": "\x00"}),
        step_run(done, flow_id="done", step_id="c", finished_at=NOW),
        step_run(done, flow_id="open", step_id="a", finished_at=NOW, outputs={"z": 1}),
    ]
    await write(store, new_records(*steps))
    wanted = orjson.dumps(["open", "broken", "nothing", "done"]).decode()
    ended = [
        ("broken", "failed", '{"code":"X"}', None),
        ("done", "completed", None, f'{{"x":{10**30}}}'),
        ("done", "completed", None, '{"y":"\\u0000"}'),
    ]
    rows = await store.read("results_of_flows", flow_ids=wanted, so_far=False)
    assert rows == [("open", "active", None, None), *ended]
    rows = await store.read("results_of_flows", flow_ids=wanted, so_far=True)
    assert rows == [("open", "active", None, '{"z":1}'), *ended]
    wanted = orjson.dumps([*states, "nothing"]).decode()
    gone = await store.read("flows_not_open", flow_ids=wanted)
    assert gone == [("done",), ("broken",), ("stopped",), ("nothing",)]
    assert await store.read("flows_not_open", flow_ids="[]") == []


async def add_work(store: Store) -> list[str]:
    items = [
        work_item(status, work_id=f"{step}-{status}", step_id=step, due_at=NOW - 1 if step == "a" else NOW + 1)
        for status in WorkStatus
        for step in "ab"
    ]
    for item in items:  # one by one, so that their order is known
        await write(store, new_records(item))
    return [item.work_id for item in items]


async def test_work_is_listed_oldest_first_and_page_by_page(store: Store) -> None:
    expected = await add_work(store)
    seen: list[Row] = []
    while rows := await store.read("list_work", **{**WORK_FILTERS, "after": seen[-1][0] if seen else None, "limit": 3}):
        seen += rows
    assert [row[1] for row in seen] == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"status": "active"}, {"a-active", "b-active"}),
        ({"step_id": "a"}, {f"a-{status}" for status in WorkStatus}),
        ({"step_id": "a", "status": "failed"}, {"a-failed"}),
        ({"step_id": "c"}, set()),
    ],
)
async def test_work_by_filter(store: Store, filters: dict[str, Any], expected: set[str]) -> None:
    await add_work(store)
    assert {row[1] for row in await store.read("list_work", **{**WORK_FILTERS, **filters})} == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["a-pending", "a-active", "a-not_completed"]),
        ({"status": "active"}, ["a-active"]),
        ({"step_id": "b"}, []),
        ({"limit": 1}, ["a-pending"]),
    ],
)
async def test_overdue_work(store: Store, filters: dict[str, Any], expected: list[str]) -> None:
    """Open work whose time has come: what has ended, is held or is due later is not overdue."""
    await add_work(store)
    rows = await store.read("list_overdue_work", now=NOW, **{**WORK_FILTERS, **filters})
    assert [row[1] for row in rows] == expected


async def test_overdue_work_page_by_page(store: Store) -> None:
    await add_work(store)
    first = await store.read("list_overdue_work", now=NOW, **{**WORK_FILTERS, "limit": 2})
    rest = await store.read("list_overdue_work", now=NOW, **{**WORK_FILTERS, "after": first[-1][0]})
    assert [row[1] for row in [*first, *rest]] == ["a-pending", "a-active", "a-not_completed"]


async def test_work_of_a_flow_comes_step_by_step_and_item_by_item(store: Store) -> None:
    items = [
        work_item(work_id=f"{step}{item}", step_id=step, item=item) for step, item in [("b", 1), ("a", 2), ("b", 0)]
    ]
    await write(store, new_records(*items, work_item(work_id="other", flow_id="other")))
    assert [row[1] for row in await store.read("work_of_flow", flow_id="flow")] == ["a2", "b0", "b1"]
    assert [row[1] for row in await store.read("get_work", work_id="b0")] == ["b0"]


async def test_the_journal_of_one_flow_of_one_item_and_of_all(store: Store) -> None:
    told = [("f1", "w1"), ("f2", "w2"), ("f1", None), ("f1", "w3"), ("f1", "w1")]
    events = [Event(EventType.WORK_HEARTBEAT, NOW, flow, "step", work, 1, {}) for flow, work in told]
    await write(store, Changes(events=events))
    everything = await store.read("journal_after", after=0, limit=100)
    assert [(row[3], row[5]) for row in everything] == told
    seqs = [row[0] for row in everything]
    of_flow = await store.read("journal_of_flow", flow_id="f1", after=seqs[0], limit=2)
    assert [row[0] for row in of_flow] == [seqs[2], seqs[3]]
    of_work = await store.read("journal_of_work", flow_id="f1", work_id="w1")
    assert [row[0] for row in of_work] == [seqs[0], seqs[4]]
    assert [row[0] for row in await store.read("journal_after", after=seqs[2], limit=1)] == [seqs[3]]


async def test_an_empty_journal_ends_at_zero(store: Store) -> None:
    assert await store.read("last_seq") == [(0,)]


async def test_items_that_took_the_place_of_others_come_after_them(store: Store) -> None:
    """A redrive makes new items under the same numbers; where a row is in its table does not count."""
    place, filler = place_of(store), [work_item(work_id=f"filler-{number}", flow_id="other") for number in range(40)]
    await write(store, new_records(*filler))
    await write(
        store, new_records(flow_record(), step_run(), *(work_item(work_id=f"a-{item}", item=item) for item in (0, 1)))
    )
    await write(
        store, changed_records(*(work_item(WorkStatus.FAILED, work_id=f"a-{item}", item=item) for item in (0, 1)))
    )
    by_hand(place, "DELETE FROM work WHERE flow_id = 'other'")
    if isinstance(store, PostgresStore):
        by_hand(place, "VACUUM work")  # new rows take the places of those that are gone
    again = [work_item(work_id=f"b-{item}", item=item, redrive_of=f"a-{item}") for item in (0, 1)]
    await write(store, new_records(*again))
    rows = await store.read("work_of_flow", flow_id="flow")
    assert [row[1] for row in rows] == ["a-0", "b-0", "a-1", "b-1"]
