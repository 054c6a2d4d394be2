"""The simulator: what a crash leaves of an engine on either store, and that it takes nothing along of another one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import CrashPoint, Simulator, answered
from tests.by_hand import Place, by_hand
from tests.eventually import eventually
from tests.store.records import DEFAULTS, definition


async def sent(simulator: Simulator, flow_id: str = "flow") -> str:
    """A work item on its way; its id."""
    await simulator.engine.steps.put("step", definition())
    await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=["step"]))
    return str(simulator.network.calls[-1].metadata["work_id"])


async def state(simulator: Simulator, work_id: str) -> str:
    return str((await simulator.engine.queries.work_item(work_id))["status"])


def sessions(url: Place) -> int:
    """How many connections there are to a database, besides the one that asks."""
    [(count,)] = by_hand(
        url,
        """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()""",
    )
    return int(count)


@pytest.mark.parametrize(
    ("point", "expected"), [(CrashPoint.BEFORE_COMMIT, "active"), (CrashPoint.AFTER_COMMIT, "succeeded")]
)
async def test_a_crash_around_a_commit(simulator: Simulator, point: CrashPoint, expected: str) -> None:
    work_id = await sent(simulator)
    completing = simulator.engine.reports.complete(work_id, StepResult(success=True))
    assert await simulator.crash_during(completing, point)
    await simulator.start()
    assert await state(simulator, work_id) == expected


async def test_an_action_that_submits_nothing_ends_before_the_crash(simulator: Simulator) -> None:
    assert not await simulator.crash_during(simulator.engine.queries.steps(), CrashPoint.BEFORE_COMMIT)


async def test_after_a_crash_what_was_being_sent_is_found(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    before = simulator.engine.context.node_id
    await simulator.crash()
    await simulator.start()
    assert simulator.engine.context.node_id != before
    assert await simulator.sweep(SweepName.ORPHANS) == 1
    assert await state(simulator, work_id) == "not_completed"
    assert simulator.network.waiting() == [], "nothing waits for the answer of a request whose sender is gone"


async def test_time_that_passes_takes_no_lease(simulator: Simulator) -> None:
    """The simulated clock moves what is due; the node stays what it is."""
    node_id = simulator.engine.context.node_id
    simulator.clock.advance(10**9)
    await simulator.sweep(SweepName.LEASE)
    work_id = await sent(simulator)
    assert simulator.engine.context.node_id == node_id
    assert await simulator.sweep(SweepName.ORPHANS) == 0
    assert await state(simulator, work_id) == "active"


async def test_a_stop_leaves_nothing_to_wait_for(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    assert await simulator.stop() == 1
    await simulator.start()
    assert await simulator.sweep(SweepName.ORPHANS) == 1
    assert await state(simulator, work_id) == "not_completed"


@pytest.mark.postgresql_only
async def test_a_crash_in_the_middle_of_a_transaction_leaves_nothing_locked(place: Place) -> None:
    """The lock that keeps the transaction waiting is the test's; what the transaction itself held is free at once."""
    import asyncpg

    async with Simulator(place, defaults=DEFAULTS) as simulator:
        first, second = await sent(simulator, "first"), await sent(simulator, "second")
        other = await asyncpg.connect(str(place))
        await other.execute("BEGIN")
        await other.execute("SELECT 1 FROM flows WHERE flow_id = 'second' FOR UPDATE")
        completing = [
            asyncio.create_task(simulator.engine.reports.complete(work_id, StepResult(success=True)))
            for work_id in (first, second)
        ]
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        await eventually(lambda: by_hand(place, waiting), what="the transaction to wait for the lock")
        await simulator.crash()
        assert sessions(place) == 1, "only the test's own is left"
        await other.execute("ROLLBACK")
        await other.close()
        await asyncio.gather(*(cancelled(task) for task in completing))
        await simulator.start()
        assert [await state(simulator, work_id) for work_id in (first, second)] == ["active", "active"]
        assert await simulator.sweep(SweepName.ORPHANS) == 2


async def cancelled(task: asyncio.Task[Any]) -> None:
    """A caller of the dead engine is never answered."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.postgresql_only
async def test_the_crash_of_one_engine_leaves_its_neighbour_alone(place: Place) -> None:
    async with Simulator(place, defaults=DEFAULTS) as one, Simulator(place, defaults=DEFAULTS) as other:
        work_of_one = await sent(one, "one")
        work_of_other = await sent(other, "other")
        [call] = other.network.waiting()
        assert await other.sweep(SweepName.ORPHANS) == 0, "the neighbour lives"
        await one.crash()
        assert await other.sweep(SweepName.ORPHANS) == 1
        assert [await state(other, work_id) for work_id in (work_of_one, work_of_other)] == ["not_completed", "active"]
        await other.network.answer(call, answered(404))
        assert await state(other, work_of_other) == "failed", "and goes on with what it was sending"
        assert other.examine() == []


@pytest.mark.postgresql_only
async def test_a_database_without_a_schema_gets_one(new_database: Any) -> None:
    async with Simulator(new_database(empty=True) + "?sslmode=disable", defaults=DEFAULTS) as simulator:
        await sent(simulator)
        assert simulator.examine() == []
