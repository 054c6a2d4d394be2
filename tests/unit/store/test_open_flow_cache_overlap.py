"""Two batches that change one flow at once, each on a connection of its own: which of them is remembered."""

from __future__ import annotations

import pytest

from counterfoil.domain.journal.events import Event, EventType
from counterfoil.store.cache.open_flows import OpenFlowCache
from counterfoil.store.kinds.flows import FLOWS
from counterfoil.store.kinds.steps import STEPS
from counterfoil.store.unit_of_work.read_set import ReadSet
from counterfoil.store.unit_of_work.unit import UnitOfWork
from tests.store.records import NOW, flow_record, step_run, work_item

FLOW = "a"
ITEMS = ("a/0", "a/1")


def acknowledging(work_id: str, revision: int) -> UnitOfWork:
    """The unit of a batch that found the flow at this revision, and changes one of its items."""
    unit = UnitOfWork({})
    unit.records(FLOWS).add(FLOW, flow_record(flow_id=FLOW))
    unit.add(STEPS, step_run(flow_id=FLOW, items=2, open_items=2))
    for number, item in enumerate(ITEMS):
        unit.add_work(work_item(work_id=item, flow_id=FLOW, item=number))
    unit.revisions[FLOW] = revision
    work = unit.work(work_id)
    unit.record(Event(EventType.WORK_ACKNOWLEDGED, NOW, FLOW, work.step_id, work_id, 1))
    unit.keep()
    return unit


@pytest.mark.parametrize("heard_first", [0, 1])
def test_the_later_of_two_batches_is_remembered_whichever_was_heard_of_first(heard_first: int) -> None:
    memory = OpenFlowCache(alone=False)
    batches = [acknowledging(ITEMS[0], revision=1), acknowledging(ITEMS[1], revision=2)]
    for unit in batches:
        memory.take_out(unit.changes.touched())
    memory.learn(batches[heard_first], {})
    memory.learn(batches[1 - heard_first], {})
    unit = UnitOfWork({})
    left = memory.recall(unit, ReadSet(work=set(ITEMS)))
    assert left.work == {ITEMS[0]}, "what the later one did not touch is loaded anew"
    assert unit.revisions == {FLOW: 3}
    assert len(memory) == 1
    memory.take_out([FLOW])
    assert len(memory) == 0
