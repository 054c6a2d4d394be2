"""What is remembered of open flows: as the last commit left them, never while a batch is at work on them."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.states import WorkStatus
from counterfoil.store.cache.open_flows import CachedFlow, OpenFlowCache
from counterfoil.store.kinds.flows import FLOWS
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.records import NOW, flow_record, step_run, step_version, work_item


def loaded(*names: str, items: int = 1) -> UnitOfWork:
    """A unit that has loaded flows of these names, each with a step and so many items."""
    unit = UnitOfWork({"version": step_version()})
    for name in names:
        unit.records(FLOWS).add(name, flow_record(flow_id=name))
        unit.add(STEPS, step_run(flow_id=name, items=items, open_items=items))
        for number in range(items):
            work_id = f"{name}/{number}"
            unit.add_work(work_item(work_id=work_id, flow_id=name, item=number))
        unit.revisions[name] = 1
    return unit


def acknowledge(unit: UnitOfWork, *work_ids: str) -> None:
    for work_id in work_ids:
        work = unit.work(work_id)
        event = Event(EventType.WORK_ACKNOWLEDGED, NOW, work.flow_id, work.step_id, work_id, 1)
        unit.record(event)
        unit.keep()


def end(unit: UnitOfWork, work_id: str, *, with_flow: bool = True) -> None:
    work = unit.work(work_id)
    data = {"result": {"success": True}}
    unit.record(Event(EventType.WORK_SUCCEEDED, NOW, work.flow_id, work.step_id, work_id, 1, data))
    if with_flow:
        unit.record(Event(EventType.STEP_COMPLETED, NOW, work.flow_id, work.step_id, data={"outputs": {}}))
        unit.record(Event(EventType.FLOW_COMPLETED, NOW, work.flow_id))
    unit.keep()


def commit(memory: OpenFlowCache, unit: UnitOfWork) -> dict[str, CachedFlow]:
    taken = memory.take_out(unit.changes.touched())
    memory.learn(unit, taken)
    return taken


def recalled(memory: OpenFlowCache, *work_ids: str, revisions: dict[str, int] | None = None) -> UnitOfWork:
    unit = UnitOfWork({"version": step_version()})
    assert memory.recall(unit, ReadSet(work=set(work_ids)), revisions).work == set()
    return unit


def knows(memory: OpenFlowCache, work_ids: set[str]) -> bool:
    """Whether none of these would have to be loaded."""
    return not memory.recall(UnitOfWork({}), ReadSet(work=work_ids)).work


@pytest.fixture
def memory() -> OpenFlowCache:
    """It has seen the items of flows a and b acknowledged."""
    memory = OpenFlowCache(alone=False)
    unit = loaded("a", "b")
    acknowledge(unit, "a/0", "b/0")
    commit(memory, unit)
    return memory


def test_it_gives_what_was_committed(memory: OpenFlowCache) -> None:
    unit = recalled(memory, "a/0")
    assert unit.work("a/0").acknowledged_at == NOW
    assert unit.step_run("a", "step").open_items == 1
    assert unit.flow("a").open_steps == 1
    assert unit.revisions == {"a": 2}, "one more than the batch had found"


def test_what_it_does_not_know_is_left_to_be_loaded(memory: OpenFlowCache) -> None:
    needs = ReadSet(work={"a/0", "c/0"}, inputs={"a"})
    left = memory.recall(UnitOfWork({}), needs)
    assert (left.work, left.inputs) == ({"c/0"}, {"a"})
    assert needs.work == {"a/0", "c/0"}, "what the batch needs stays what it is"


def test_a_new_flow_begins_with_revision_nought() -> None:
    memory, unit = OpenFlowCache(alone=False), loaded("a")
    unit.revisions.clear()
    acknowledge(unit, "a/0")
    commit(memory, unit)
    assert recalled(memory, "a/0").revisions == {"a": 0}


def test_a_flow_that_has_another_revision_now_is_forgotten(memory: OpenFlowCache) -> None:
    recalled(memory, "a/0", revisions={"a": 2})
    assert memory.recall(UnitOfWork({}), ReadSet(work={"a/0"}), {"a": 3}).work == {"a/0"}
    assert not knows(memory, {"a/0"})
    assert knows(memory, {"b/0"})


def test_a_flow_that_is_not_there_any_more_is_forgotten(memory: OpenFlowCache) -> None:
    assert memory.recall(UnitOfWork({}), ReadSet(work={"a/0"}), {}).work == {"a/0"}
    assert len(memory) == 1


def test_what_a_batch_changes_is_not_remembered_until_it_is_durable(memory: OpenFlowCache) -> None:
    unit = recalled(memory, "a/0")
    acknowledge(unit, "a/0")
    taken = memory.take_out(unit.changes.touched())
    assert not knows(memory, {"a/0"})
    memory.learn(unit, taken)
    assert recalled(memory, "a/0").revisions == {"a": 3}


def test_a_flow_that_has_ended_is_forgotten(memory: OpenFlowCache) -> None:
    unit = recalled(memory, "a/0")
    end(unit, "a/0")
    commit(memory, unit)
    assert not knows(memory, {"a/0"})
    assert len(memory) == 1


def test_of_many_items_those_that_have_ended_are_forgotten_and_the_others_kept() -> None:
    memory, unit = OpenFlowCache(alone=False), loaded("a", items=3)
    acknowledge(unit, "a/0", "a/1", "a/2")
    commit(memory, unit)
    unit = recalled(memory, "a/1")
    end(unit, "a/1", with_flow=False)
    commit(memory, unit)
    assert not knows(memory, {"a/1"})
    unit = recalled(memory, "a/0", "a/2")
    assert unit.step_run("a", "step").open_items == 2
    assert unit.work("a/2").status is WorkStatus.ACTIVE


@pytest.mark.parametrize("alone", [True, False])
def test_what_was_remembered_before_another_node_changed_the_flow_is_forgotten(alone: bool) -> None:
    """A batch that had to load one item finds the flow changed: then nothing else that is remembered of it is true."""
    memory, unit = OpenFlowCache(alone=alone), loaded("a", items=2)
    acknowledge(unit, "a/0")
    commit(memory, unit)
    unit = loaded("a", items=2)
    unit.revisions["a"] = 5
    acknowledge(unit, "a/1")
    commit(memory, unit)
    assert knows(memory, {"a/1"})
    assert knows(memory, {"a/0"}) is alone, "there is no other node"


def test_the_flows_that_changed_longest_ago_are_forgotten_first() -> None:
    memory = OpenFlowCache(alone=False, most_items=4)
    for name in "abcdae":
        unit = loaded(name)
        acknowledge(unit, f"{name}/0")
        commit(memory, unit)
    assert len(memory) == 4
    assert not knows(memory, {"b/0"})
    assert knows(memory, {"a/0", "c/0", "d/0", "e/0"})


@pytest.mark.parametrize(("items", "kept"), [(256, 256), (257, 0)])
def test_a_flow_with_many_open_items_is_not_kept(items: int, kept: int) -> None:
    """Whatever changes it would have to put all of them back."""
    memory, unit = OpenFlowCache(alone=False), loaded("a", items=items)
    acknowledge(unit, *(f"a/{number}" for number in range(items)))
    commit(memory, unit)
    assert len(memory) == kept


@pytest.mark.parametrize(
    "said",
    [
        {"message": "x" * 5_000},
        {"error": {"code": "NOT_COMPLETED", "message": "x" * 5_000}},
        {"arguments": {"text": "x" * 5_000}},
        {"message": "x" * 2_000, "error": {"message": "x" * 1_500}, "arguments": {"text": "x" * 1_500}},
    ],
)
def test_work_that_carries_much_text_is_not_kept(said: dict[str, Any]) -> None:
    """Ten thousand items are a bound only if each of them is small."""
    memory, unit = OpenFlowCache(alone=False), loaded("a", items=2)
    for name, value in said.items():
        setattr(unit.work("a/0"), name, value)
    acknowledge(unit, "a/0", "a/1")
    commit(memory, unit)
    assert not knows(memory, {"a/0"})
    assert knows(memory, {"a/1"})


def test_it_can_be_made_to_forget_everything(memory: OpenFlowCache) -> None:
    memory.clear()
    assert len(memory) == 0
    assert memory.take_out(["a"]) == {}
