"""Claiming under a rate limit: which items are claimed, which wait until when, and no needless searches meanwhile."""

from __future__ import annotations

import asyncio

from counterfoil.domain.work.results import StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.capacity import BatchCapacity, Rest, Slots
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import full_disk
from tests.eventually import eventually
from tests.unit.work.test_claim import claim, put, start, work_of

RATE = {"rate_limit": {"count": 2, "per_ms": 1_000}}


async def requeue(simulator: Simulator) -> int:
    return await simulator.sweep(SweepName.REQUEUE)


async def test_no_more_in_a_window_than_the_limit(simulator: Simulator) -> None:
    await put(simulator, work=RATE)
    flows = [await start(simulator) for _ in range(5)]
    begin = simulator.clock()
    assert simulator.network.waiting() == [], "they are claimed by the sweep, which counts"
    assert await requeue(simulator) == 2
    assert await requeue(simulator) == 0
    assert await simulator.next_due(SweepName.REQUEUE) == begin + 1_000
    simulator.clock.advance(999)
    assert await requeue(simulator) == 0
    simulator.clock.advance(1)
    assert await requeue(simulator) == 2
    assert await requeue(simulator) == 0
    assert await simulator.next_due(SweepName.REQUEUE) == begin + 2_000
    simulator.clock.advance(1_000)
    assert await requeue(simulator) == 1
    assert [call.metadata["flow_id"] for call in simulator.network.calls] == flows
    assert await requeue(simulator) == 0
    assert await simulator.next_due(SweepName.REQUEUE) is None, "nothing waits, so no search is needed"


async def test_claims_of_one_batch_count_each_other(simulator: Simulator) -> None:
    await put(simulator, work=RATE)
    flows = [await start(simulator) for _ in range(4)]
    assert sum(await asyncio.gather(*(claim(simulator, flow_id) for flow_id in flows))) == 2


async def test_retries_count(simulator: Simulator) -> None:
    await put(simulator, work={**RATE, "init_backoff_ms": 100})
    first, second = await start(simulator), await start(simulator)
    assert await requeue(simulator) == 2
    begin = simulator.clock()
    for call in simulator.network.waiting():
        await simulator.network.answer(call, answered(503))
    simulator.clock.advance(100)
    assert await requeue(simulator) == 0
    assert await simulator.next_due(SweepName.REQUEUE) == begin + 1_000
    simulator.clock.advance(900)
    assert await requeue(simulator) == 2
    assert [call.attempt for call in simulator.network.calls] == [1, 1, 2, 2]
    assert {call.metadata["flow_id"] for call in simulator.network.calls} == {first, second}


async def test_what_comes_back_makes_no_room(simulator: Simulator) -> None:
    """Unlike parallelism: only time does."""
    await put(simulator, work=RATE)
    for _ in range(3):
        await start(simulator)
    assert await requeue(simulator) == 2
    assert await requeue(simulator) == 0
    for call in simulator.network.waiting():
        await simulator.network.answer(call, answered())
        await simulator.engine.reports.complete(call.metadata["work_id"], StepResult(success=True))
        assert "step" in simulator.engine.slots.resting
        assert await requeue(simulator) == 0


async def test_a_step_that_rests_is_not_searched_for(simulator: Simulator) -> None:
    await put(simulator, work=RATE)
    for _ in range(3):
        await start(simulator)
    assert [await requeue(simulator) for _ in range(2)] == [2, 0]
    committed = simulator.engine.commit
    batches = 0
    enqueue = committed.enqueue

    def counted(command: object, resolve: object) -> bool:
        nonlocal batches
        batches += 1
        return enqueue(command, resolve)  # type: ignore[arg-type]

    committed.enqueue = counted  # type: ignore[method-assign]
    for _ in range(20):
        simulator.clock.advance(10)
        assert await requeue(simulator) == 0
    assert batches == 0


async def test_both_limits_hold(simulator: Simulator) -> None:
    await put(simulator, work={"parallelism": 3, "rate_limit": {"count": 2, "per_ms": 1_000}})
    for _ in range(6):
        await start(simulator)
    assert await requeue(simulator) == 2, "no more in this second"
    simulator.clock.advance(1_000)
    assert await requeue(simulator) == 1, "no more at once"
    simulator.clock.advance(1_000)
    assert await requeue(simulator) == 0
    await simulator.network.answer(simulator.network.waiting()[0], answered(400))
    assert await requeue(simulator) == 1


async def test_another_definition_counts_at_once(simulator: Simulator) -> None:
    """And sees what was sent under the one before."""
    day = {"rate_limit": {"count": 1, "per_ms": 86_400_000}}
    await put(simulator, work=day)
    old = [await start(simulator) for _ in range(2)]
    assert [await requeue(simulator) for _ in range(2)] == [1, 0]
    simulator.wakeups.clear()
    await put(simulator, work={"rate_limit": {"count": 2, "per_ms": 60_000}})
    assert (SweepName.REQUEUE, None) in simulator.wakeups
    assert await requeue(simulator) == 0, "what waits is of the old one"
    new = [await start(simulator) for _ in range(2)]
    assert await requeue(simulator) == 1, "the new one may have two in its window, and one is in it"
    assert (await work_of(simulator, new[0]))["status"] == "active"
    assert (await work_of(simulator, old[1]))["status"] == "pending"
    await put(simulator)
    free = await start(simulator)
    assert (await work_of(simulator, free))["status"] == "active", "no limit, so it need not wait behind the others"


async def test_other_steps_of_the_host_go_on(simulator: Simulator) -> None:
    await put(simulator, "slow", endpoint="http://host.test/slow", work=RATE)
    await put(simulator, "quick", endpoint="http://host.test/quick", work={"parallelism": 100})
    for _ in range(50):
        await start(simulator, "slow")
    assert [await requeue(simulator) for _ in range(2)] == [2, 0]
    for _ in range(3):
        await start(simulator, "quick")
    assert await requeue(simulator) == 3


async def test_the_limit_holds_over_a_crash(simulator: Simulator) -> None:
    await put(simulator, work=RATE)
    for _ in range(4):
        await start(simulator)
    assert await requeue(simulator) == 2
    simulator.clock.advance(10)
    await simulator.crash()
    await simulator.start()
    assert await requeue(simulator) == 0
    assert await simulator.next_due(SweepName.REQUEUE) == simulator.clock() + 990


async def test_a_batch_that_failed_has_used_up_nothing(simulator: Simulator) -> None:
    """Neither of the limit, nor of what the node believes about it."""
    await put(simulator, work=RATE)
    flows = [await start(simulator) for _ in range(3)]
    with full_disk(simulator.place):
        answers = await asyncio.gather(*(claim(simulator, flow_id) for flow_id in flows), return_exceptions=True)
        assert not [answer for answer in answers if answer is True]
    assert simulator.engine.slots.resting == {}
    await eventually(lambda: requeue(simulator), what="a writer that works again")
    assert len(simulator.network.calls) == 2


# ------------------------------------------------------------------------------------------------ what a node believes


def test_what_a_batch_noted_is_retracted_with_it() -> None:
    slots = Slots(1, 1)
    slots.note_full("other@x")
    capacity = BatchCapacity(slots)
    capacity.note_full("full@x")
    capacity.note_rest("resting@x", "version", 5)
    assert slots.full == {"full": {"full@x"}, "other": {"other@x"}}
    assert slots.resting == {"resting": {"resting@x": Rest(5, "version")}}
    capacity.retract()
    assert (slots.full, slots.resting) == ({"other": {"other@x"}}, {})


def test_a_rest_ends_by_itself() -> None:
    slots = Slots(1, 1)
    BatchCapacity(slots).note_rest("step@x", "version", 5)
    assert [slots.may_send("step@x", now) for now in (4, 5, 4)] == [False, True, True]
    slots.note_full("step@x")
    assert not slots.may_send("step@x", 9)
    assert slots.may_send("step@x#parallelism=9", 9), "another limit of the same step"


def test_a_rest_is_of_one_version() -> None:
    slots = Slots(1, 1)
    BatchCapacity(slots).note_rest("step@x", "old", 5)
    slots.wake_for("step@x", "old")
    assert not slots.may_send("step@x", 1)
    slots.wake_for("step@x", "new")
    assert slots.may_send("step@x", 1)
