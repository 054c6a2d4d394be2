"""Any text may be asked for: what a database cannot even hold as text names nothing in it, and is no failure."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.errors import UnknownFlow, UnknownReceipt
from counterfoil.domain.states import WorkStatus
from counterfoil.engine.flows.cancel import Cancel
from counterfoil.store.group_commit.batch import Command
from counterfoil.store.protocol import Store
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.testing.simulator import StillClock
from tests.store.backends import load, write
from tests.store.nodes import Node, add_item, register, success
from tests.store.records import NOW, flow_record, new_records, step_run, work_item

AWKWARD = ["\0", "work\0", "\0work", "wo\0rk", "", " ", "%", "_ork", "work'; --", "Work", "w\u00f6rk", "\U0001f600"]
AWKWARD += ["x" * 9_000]


def shown(text: str) -> str:
    return ascii(text)[:20]


@pytest.mark.parametrize("text", AWKWARD, ids=shown)
async def test_nothing_is_found_by_a_name_that_nothing_has(store: Store, text: str) -> None:
    await write(store, new_records(flow_record(flow_id="work"), step_run(flow_id="work"), work_item(flow_id="work")))
    asked: dict[str, dict[str, Any]] = {
        "get_flow": {"flow_id": text},
        "get_flow_result": {"flow_id": text},
        "get_flow_steps": {"flow_id": text},
        "flow_exists": {"flow_id": text},
        "work_of_flow": {"flow_id": text},
        "journal_of_flow": {"flow_id": text, "after": 0, "limit": 9},
        "journal_of_work": {"flow_id": "work", "work_id": text},
        "get_work": {"work_id": text},
        "receipt_status": {"work_id": text},
        "get_step": {"step_id": text},
        "list_work": {"status": None, "step_id": text, "after": None, "limit": 9},
        "list_overdue_work": {"status": None, "step_id": text, "after": None, "limit": 9, "now": NOW},
        "list_flows": {"status": None, "label": text, "goal": None, "since": None, "before": None, "limit": 9},
        "list_open_flows": {"status": "active", "label": None, "goal": text, "since": None, "before": None, "limit": 9},
    }
    for query, parameters in asked.items():
        assert await store.read(query, **parameters) == [], query


@pytest.mark.parametrize("text", AWKWARD, ids=shown)
async def test_nothing_is_loaded_by_a_name_that_nothing_has(store: Store, text: str) -> None:
    await write(store, new_records(flow_record(flow_id="work"), step_run(flow_id="work"), work_item(flow_id="work")))
    keys = {text, "work"}
    unit = await load(store, ReadSet(work=keys, flows=keys, steps=keys, calls=keys, open_flows=keys, inputs=keys))
    assert unit.find_work(text) is None
    assert unit.find_flow(text) is None
    assert unit.current_version(text) is None
    assert unit.call(text) is None
    assert unit.open_work(text) == []
    assert unit.work("work") == work_item(flow_id="work"), "it does not keep the others from being found"
    assert [work.work_id for work in unit.open_work("work")] == ["work"]


async def test_a_report_on_such_a_receipt_does_not_spoil_its_neighbours(store: Store, clock: StillClock) -> None:
    await register(store)
    await add_item(store, "work", WorkStatus.ACTIVE)
    node = Node("node", store, clock)
    await node.start()
    commands: list[Command[Any]] = [success("work"), *map(success, AWKWARD), *map(Cancel, AWKWARD)]
    assert await node.outcomes(*commands) == {
        "accepted": 1,
        UnknownReceipt.code: len(AWKWARD),
        UnknownFlow.code: len(AWKWARD),
    }
    await node.stop()
