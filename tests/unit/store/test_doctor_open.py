"""The doctor on PostgreSQL and the tables of what is open: they tell the same as those that keep everything."""

from __future__ import annotations

import pytest

from counterfoil.domain.work.results import StepResult
from counterfoil.testing.simulator import Simulator
from tests.by_hand import break_it, by_hand
from tests.databases import NewDatabase
from tests.store.records import DEFAULTS
from tests.unit.store.test_doctor import examine, fill


@pytest.fixture
async def filled(new_database: NewDatabase) -> str:
    place = new_database()
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        await fill(simulator)
    return place


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("DELETE FROM open_flows WHERE flow_id = 'active'", "active"),
        ("UPDATE open_flows SET status = 'failed' WHERE flow_id = 'active'", "active"),
        ("INSERT INTO open_flows (flow_id, status, ordinal) VALUES ('completed', 'active', 1)", "completed"),
        ("DELETE FROM open_work WHERE flow_id = 'active'", "active"),
        ("UPDATE open_work SET due_at = due_at + 1 WHERE flow_id = 'active'", "active"),
        ("UPDATE open_work SET owner = 'forged' WHERE flow_id = 'failed'", "failed"),
    ],
)
def test_tables_of_what_is_open_that_tell_something_else(filled: str, change: str, subject: str) -> None:
    break_it(filled, change)
    [finding] = examine(filled)
    assert finding.invariant == "open"
    assert finding.subject == subject or finding.message.endswith(f"of flow {subject}")


async def test_an_item_that_is_missing_there_ends_all_the_same(filled: str) -> None:
    break_it(filled, "DELETE FROM open_flows WHERE flow_id = 'active'")
    break_it(filled, "DELETE FROM open_work WHERE flow_id = 'active'")
    [(work_id,)] = by_hand(filled, "SELECT work_id FROM work WHERE flow_id = 'active'")
    async with Simulator(filled, defaults=DEFAULTS) as simulator:
        await simulator.engine.reports.complete(work_id, StepResult(success=True))
        assert (await simulator.engine.queries.flow("active"))["status"] == "completed"
        assert simulator.examine() == []
