"""Claiming: what is due, what there is room for, and no more of a step than it may have out."""

from __future__ import annotations

import asyncio
from typing import Any

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import StepResult
from counterfoil.engine import Limits
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.claim import ClaimDue
from counterfoil.testing.simulator import Simulator, answered
from counterfoil.wire.work import WorkDocument
from tests.by_hand import Place
from tests.store.records import definition


async def start(simulator: Simulator, *goals: str, flow_id: str | None = None) -> str:
    document = await simulator.engine.flows.start(StartFlow(goals=list(goals) or ["step"], flow_id=flow_id))
    return str(document["flow_id"])


async def put(simulator: Simulator, step_id: str = "step", **fields: Any) -> None:
    await simulator.engine.steps.put(step_id, definition(**{"endpoint": f"http://{step_id}.test/", **fields}))


async def work_of(simulator: Simulator, flow_id: str, step_id: str = "step") -> WorkDocument:
    document = await simulator.engine.queries.flow(flow_id)
    return document["steps"][step_id]["work"][0]


async def claim(simulator: Simulator, flow_id: str) -> bool:
    work = await work_of(simulator, flow_id)
    return await simulator.engine.commit.submit(ClaimDue(work["work_id"], flow_id))


async def test_a_flow_is_sent_as_it_starts(simulator: Simulator) -> None:
    await put(simulator)
    flow_id = await start(simulator)
    [call] = simulator.network.waiting()
    assert (call.metadata["flow_id"], call.attempt) == (flow_id, 1)
    assert (await work_of(simulator, flow_id))["status"] == "active"


async def test_what_is_out_is_not_claimed(simulator: Simulator) -> None:
    await put(simulator)
    flow_id = await start(simulator)
    assert not await claim(simulator, flow_id)
    assert len(simulator.network.calls) == 1


async def test_what_is_not_due_is_not_claimed(simulator: Simulator) -> None:
    await put(simulator)
    flow_id = await start(simulator)
    await simulator.network.answer(simulator.network.waiting()[0], answered(503))
    assert not await claim(simulator, flow_id)
    simulator.clock.advance(999)
    assert not await claim(simulator, flow_id)
    simulator.clock.advance(1)
    assert await claim(simulator, flow_id)
    assert [call.attempt for call in simulator.network.calls] == [1, 2]


async def test_what_has_ended_is_not_claimed(simulator: Simulator) -> None:
    await put(simulator)
    flow_id = await start(simulator)
    await simulator.network.answer(simulator.network.waiting()[0], answered(400))
    assert not await claim(simulator, flow_id)


async def test_without_room_work_waits_for_its_turn(place: Place) -> None:
    async with Simulator(place, limits=Limits(dispatches=1)) as simulator:
        await put(simulator)
        first, second = await start(simulator), await start(simulator)
        assert len(simulator.network.waiting()) == 1
        assert (await work_of(simulator, second))["status"] == "pending"
        assert await simulator.sweep(SweepName.REQUEUE) == 0, "there is no room yet"
        assert not await claim(simulator, second)
        await simulator.network.answer(simulator.network.waiting()[0], answered())
        assert (SweepName.REQUEUE, None) in simulator.wakeups, "a place that became free wakes the sweep"
        assert await simulator.sweep(SweepName.REQUEUE) == 1
        assert [call.metadata["flow_id"] for call in simulator.network.calls] == [first, second]


async def test_a_slow_host_leaves_room_for_others(place: Place) -> None:
    limits = Limits(dispatches=10, dispatches_per_host=2)
    async with Simulator(place, limits=limits) as simulator:
        await put(simulator, "slow")
        await put(simulator, "quick")
        for _ in range(5):
            await start(simulator, "slow")
        await start(simulator, "quick")
        urls = [call.url for call in simulator.network.waiting()]
        assert sorted(urls) == ["http://quick.test/"] + ["http://slow.test/"] * 2
        assert await simulator.sweep(SweepName.REQUEUE) == 0


async def test_new_work_does_not_overtake_what_waits(place: Place) -> None:
    async with Simulator(place, limits=Limits(dispatches=1)) as simulator:
        await put(simulator)
        await start(simulator)
        second = await start(simulator)
        await simulator.network.answer(simulator.network.waiting()[0], answered())
        third = await start(simulator)
        assert (await work_of(simulator, third))["status"] == "pending", "though there is room"
        simulator.clock.advance(1)
        await simulator.sweep(SweepName.REQUEUE)
        [call] = simulator.network.waiting()
        assert call.metadata["flow_id"] == second


async def test_no_more_of_a_step_than_its_parallelism(simulator: Simulator) -> None:
    await put(simulator, work={"parallelism": 2})
    flows = [await start(simulator) for _ in range(5)]
    assert simulator.network.waiting() == [], "they are claimed by the sweep, which counts"
    assert await simulator.sweep(SweepName.REQUEUE) == 2
    assert await simulator.sweep(SweepName.REQUEUE) == 0
    first, second = simulator.network.waiting()
    for call in (first, second):
        await simulator.network.answer(call, answered())
    assert await simulator.sweep(SweepName.REQUEUE) == 0, "those that wait for a callback are out, too"
    simulator.wakeups.clear()
    await simulator.engine.reports.complete(first.metadata["work_id"], StepResult(success=True))
    assert (SweepName.REQUEUE, None) in simulator.wakeups, "one that came back makes room"
    assert await simulator.sweep(SweepName.REQUEUE) == 1
    assert len({call.metadata["flow_id"] for call in simulator.network.calls}) == 3
    assert len(flows) == 5


async def test_claims_of_one_batch_count_each_other(simulator: Simulator) -> None:
    await put(simulator, work={"parallelism": 2})
    flows = [await start(simulator) for _ in range(4)]
    assert sum(await asyncio.gather(*(claim(simulator, flow_id) for flow_id in flows))) == 2
    assert len(simulator.network.waiting()) == 2


async def test_a_full_step_does_not_keep_others_waiting(simulator: Simulator) -> None:
    await put(simulator, "narrow", work={"parallelism": 1})
    await put(simulator, "other", work={"parallelism": 1})
    for _ in range(3):
        await start(simulator, "narrow")
    assert await simulator.sweep(SweepName.REQUEUE) == 1
    assert await simulator.sweep(SweepName.REQUEUE) == 0
    await start(simulator, "other")
    assert await simulator.sweep(SweepName.REQUEUE) == 1


async def test_new_work_of_a_full_step_wakes_no_sweep(simulator: Simulator) -> None:
    """Thousands may wait behind a limit: each one more of them costs nothing."""
    await put(simulator, work={"parallelism": 1})
    await start(simulator)
    await start(simulator)
    await simulator.sweep(SweepName.REQUEUE)
    assert set(simulator.engine.slots.full) == {"step"}
    await start(simulator)
    assert set(simulator.engine.slots.full) == {"step"}


async def test_a_limit_that_is_raised_counts_at_once(simulator: Simulator) -> None:
    """Not only when one of those that are out comes back, which may take days."""
    await put(simulator, work={"parallelism": 1})
    await start(simulator)
    assert await simulator.sweep(SweepName.REQUEUE) == 1
    await start(simulator)
    assert await simulator.sweep(SweepName.REQUEUE) == 0
    simulator.wakeups.clear()
    await put(simulator, work={"parallelism": 3})
    assert (SweepName.REQUEUE, None) in simulator.wakeups
    third = await start(simulator)
    await simulator.sweep(SweepName.REQUEUE)
    assert (await work_of(simulator, third))["status"] == "active"


async def test_an_older_version_with_a_smaller_limit_does_not_block_a_newer_one(simulator: Simulator) -> None:
    """However much of the older one waits, and though the newer one comes after it was found to be full."""
    await put(simulator, work={"parallelism": 1})
    old = [await start(simulator) for _ in range(10)]
    assert await simulator.sweep(SweepName.REQUEUE) == 1
    await put(simulator, work={"parallelism": 4})
    new = [await start(simulator)]
    assert await simulator.sweep(SweepName.REQUEUE, limit=4) == 1
    new.append(await start(simulator))
    assert await simulator.sweep(SweepName.REQUEUE, limit=4) == 1
    assert [(await work_of(simulator, flow_id))["status"] for flow_id in new] == ["active"] * 2
    for call in simulator.network.waiting():
        await simulator.network.answer(call, answered(400))
    assert await simulator.sweep(SweepName.REQUEUE, limit=4) == 1, "and the older one goes on within its own limit"
    assert len([flow_id for flow_id in old if (await work_of(simulator, flow_id))["status"] == "pending"]) == 8
