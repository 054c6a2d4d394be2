"""What is remembered of open flows: as the last commit left them, never while a batch is at work on them."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.domain.states import WorkStatus
from counterfoil.store.cache.open_flows import Memory, Remembered
from counterfoil.store.unit_of_work.read_set import Needs
from counterfoil.store.unit_of_work.world import World
from tests.store.records import NOW, flow_record, step_run, work_item


def loaded(*names: str, items: int = 1) -> World:
    """A world that has loaded flows of these names, each with a step and so many items."""
    world = World({})
    for name in names:
        world.add_flow(name, flow_record(flow_id=name))
        world.add_step_run(step_run(flow_id=name, items=items, open_items=items))
        for number in range(items):
            work_id = f"{name}/{number}"
            world.add_work(work_id, work_item(work_id=work_id, flow_id=name, item=number))
        world.revisions[name] = 1
    return world


def acknowledge(world: World, *work_ids: str) -> None:
    for work_id in work_ids:
        work = world.work(work_id)
        event = Event(EventType.WORK_ACKNOWLEDGED, NOW, work.flow_id, work.step_id, work_id, 1)
        world.record(event)
        world.keep()


def end(world: World, work_id: str, *, with_flow: bool = True) -> None:
    work = world.work(work_id)
    data = {"result": {"success": True}}
    world.record(Event(EventType.WORK_SUCCEEDED, NOW, work.flow_id, work.step_id, work_id, 1, data))
    if with_flow:
        world.record(Event(EventType.STEP_COMPLETED, NOW, work.flow_id, work.step_id, data={"outputs": {}}))
        world.record(Event(EventType.FLOW_COMPLETED, NOW, work.flow_id))
    world.keep()


def commit(memory: Memory, world: World) -> dict[str, Remembered]:
    taken = memory.take_out(world.changes.touched())
    memory.learn(world, taken)
    return taken


def recalled(memory: Memory, *work_ids: str, revisions: dict[str, int] | None = None) -> World:
    world = World({})
    assert memory.recall(world, Needs(work=set(work_ids)), revisions).work == set()
    return world


def knows(memory: Memory, work_ids: set[str]) -> bool:
    """Whether none of these would have to be loaded."""
    return not memory.recall(World({}), Needs(work=work_ids)).work


@pytest.fixture
def memory() -> Memory:
    """It has seen the items of flows a and b acknowledged."""
    memory = Memory(alone=False)
    world = loaded("a", "b")
    acknowledge(world, "a/0", "b/0")
    commit(memory, world)
    return memory


def test_it_gives_what_was_committed(memory: Memory) -> None:
    world = recalled(memory, "a/0")
    assert world.work("a/0").acknowledged_at == NOW
    assert world.step_run("a", "step").open_items == 1
    assert world.flow("a").open_steps == 1
    assert world.revisions == {"a": 2}, "one more than the batch had found"


def test_what_it_does_not_know_is_left_to_be_loaded(memory: Memory) -> None:
    needs = Needs(work={"a/0", "c/0"}, inputs={"a"})
    left = memory.recall(World({}), needs)
    assert (left.work, left.inputs) == ({"c/0"}, {"a"})
    assert needs.work == {"a/0", "c/0"}, "what the batch needs stays what it is"


def test_a_new_flow_begins_with_revision_nought() -> None:
    memory, world = Memory(alone=False), loaded("a")
    world.revisions.clear()
    acknowledge(world, "a/0")
    commit(memory, world)
    assert recalled(memory, "a/0").revisions == {"a": 0}


def test_a_flow_that_has_another_revision_now_is_forgotten(memory: Memory) -> None:
    recalled(memory, "a/0", revisions={"a": 2})
    assert memory.recall(World({}), Needs(work={"a/0"}), {"a": 3}).work == {"a/0"}
    assert not knows(memory, {"a/0"})
    assert knows(memory, {"b/0"})


def test_a_flow_that_is_not_there_any_more_is_forgotten(memory: Memory) -> None:
    assert memory.recall(World({}), Needs(work={"a/0"}), {}).work == {"a/0"}
    assert len(memory) == 1


def test_what_a_batch_changes_is_not_remembered_until_it_is_durable(memory: Memory) -> None:
    world = recalled(memory, "a/0")
    acknowledge(world, "a/0")
    taken = memory.take_out(world.changes.touched())
    assert not knows(memory, {"a/0"})
    memory.learn(world, taken)
    assert recalled(memory, "a/0").revisions == {"a": 3}


def test_a_flow_that_has_ended_is_forgotten(memory: Memory) -> None:
    world = recalled(memory, "a/0")
    end(world, "a/0")
    commit(memory, world)
    assert not knows(memory, {"a/0"})
    assert len(memory) == 1


def test_of_many_items_those_that_have_ended_are_forgotten_and_the_others_kept() -> None:
    memory, world = Memory(alone=False), loaded("a", items=3)
    acknowledge(world, "a/0", "a/1", "a/2")
    commit(memory, world)
    world = recalled(memory, "a/1")
    end(world, "a/1", with_flow=False)
    commit(memory, world)
    assert not knows(memory, {"a/1"})
    world = recalled(memory, "a/0", "a/2")
    assert world.step_run("a", "step").open_items == 2
    assert world.work("a/2").status is WorkStatus.ACTIVE


@pytest.mark.parametrize("alone", [True, False])
def test_what_was_remembered_of_other_items_before_somebody_else_changed_the_flow_is_forgotten(alone: bool) -> None:
    """A batch that had to load one item finds the flow changed: then nothing else that is remembered of it is true."""
    memory, world = Memory(alone=alone), loaded("a", items=2)
    acknowledge(world, "a/0")
    commit(memory, world)
    world = loaded("a", items=2)
    world.revisions["a"] = 5
    acknowledge(world, "a/1")
    commit(memory, world)
    assert knows(memory, {"a/1"})
    assert knows(memory, {"a/0"}) is alone, "there is nobody else"


def test_the_flows_that_changed_longest_ago_are_forgotten_first() -> None:
    memory = Memory(alone=False, most_items=4)
    for name in "abcdae":
        world = loaded(name)
        acknowledge(world, f"{name}/0")
        commit(memory, world)
    assert len(memory) == 4
    assert not knows(memory, {"b/0"})
    assert knows(memory, {"a/0", "c/0", "d/0", "e/0"})


@pytest.mark.parametrize(("items", "kept"), [(256, 256), (257, 0)])
def test_a_flow_with_many_open_items_is_not_kept(items: int, kept: int) -> None:
    """Whatever changes it would have to put all of them back."""
    memory, world = Memory(alone=False), loaded("a", items=items)
    acknowledge(world, *(f"a/{number}" for number in range(items)))
    commit(memory, world)
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
    memory, world = Memory(alone=False), loaded("a", items=2)
    for name, value in said.items():
        setattr(world.work("a/0"), name, value)
    acknowledge(world, "a/0", "a/1")
    commit(memory, world)
    assert not knows(memory, {"a/0"})
    assert knows(memory, {"a/1"})


def test_it_can_be_made_to_forget_everything(memory: Memory) -> None:
    memory.clear()
    assert len(memory) == 0
    assert memory.take_out(["a"]) == {}
