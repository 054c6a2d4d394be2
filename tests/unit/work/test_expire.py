"""Clocks that run out and senders that are gone: the outcome is unknown, and whatever was recorded first wins."""

from __future__ import annotations

from typing import Any

from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.decisions import SYNC_GRACE_MS
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.wakeups import SweepName
from counterfoil.engine.work.expire import ExpireOverdue, ReclaimOrphan
from counterfoil.testing.simulator import Simulator, answered
from tests.store.records import ENDPOINT, RETRY, definition


async def sent(simulator: Simulator, **fields: Any) -> str:
    """A work item on its way; its id."""
    await simulator.engine.steps.put("step", definition(**fields))
    await simulator.engine.flows.start(StartFlow(goals=["step"]))
    return str(simulator.network.calls[-1].metadata["work_id"])


async def look(simulator: Simulator, work_id: str) -> dict[str, Any]:
    return {**await simulator.engine.queries.work_item(work_id)}


async def state(simulator: Simulator, work_id: str) -> str:
    return str((await look(simulator, work_id))["status"])


async def acknowledge(simulator: Simulator) -> None:
    await simulator.network.answer(simulator.network.waiting(ENDPOINT)[0], answered())


async def test_silence_past_the_deadline_is_an_attempt_without_outcome(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    await acknowledge(simulator)
    simulator.clock.advance(59_999)
    assert await simulator.sweep(SweepName.DEADLINES) == 0
    simulator.clock.advance(1)
    assert await simulator.sweep(SweepName.DEADLINES) == 1
    assert await state(simulator, work_id) == "not_completed"
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert (attempt["outcome"], attempt["delivery"]) == ("not_completed", "delivered")
    assert attempt["error"] == {"code": "DEADLINE_EXCEEDED", "message": "no callback came before the deadline"}


async def test_the_last_silence_is_a_failure(simulator: Simulator) -> None:
    work_id = await sent(simulator, work={"max_retries": 0})
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.DEADLINES)
    assert await state(simulator, work_id) == "failed"


async def test_a_heartbeat_keeps_the_clock_running(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    await acknowledge(simulator)
    simulator.clock.advance(59_000)
    await simulator.engine.reports.heartbeat(work_id, Heartbeat())
    simulator.clock.advance(59_000)
    assert await simulator.sweep(SweepName.DEADLINES) == 0
    simulator.clock.advance(1_000)
    assert await simulator.sweep(SweepName.DEADLINES) == 1


async def test_a_sync_call_that_never_ended_is_given_up(simulator: Simulator) -> None:
    work_id = await sent(simulator, kind="sync")
    simulator.clock.advance(2_000 + SYNC_GRACE_MS - 1)
    assert await simulator.sweep(SweepName.DEADLINES) == 0
    simulator.clock.advance(1)
    await simulator.sweep(SweepName.DEADLINES)
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert attempt["error"]["message"] == "no answer came before the deadline"


async def test_the_answer_of_an_attempt_that_was_given_up_comes_too_late(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    [call] = simulator.network.waiting()
    simulator.clock.advance(60_000)
    await simulator.sweep(SweepName.DEADLINES)
    await simulator.network.answer(call, answered(400))
    assert await state(simulator, work_id) == "not_completed"


async def test_what_was_recorded_first_wins(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    simulator.clock.advance(60_000)
    await simulator.engine.reports.complete(work_id, StepResult(success=True))
    assert not await simulator.engine.commit.submit(ExpireOverdue(work_id, RETRY))
    assert await state(simulator, work_id) == "succeeded"


async def test_a_clock_that_was_moved_on_has_not_run_out(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    assert not await simulator.engine.commit.submit(ExpireOverdue(work_id, RETRY))


async def test_a_restart_makes_the_outcome_of_what_was_being_sent_unknown(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    await simulator.crash()
    await simulator.start()
    assert await state(simulator, work_id) == "active", "nothing moves by itself"
    assert await simulator.sweep(SweepName.ORPHANS) == 1
    [attempt] = (await look(simulator, work_id))["attempts"]
    assert (attempt["outcome"], attempt["delivery"], attempt["error"]["code"]) == (
        "not_completed",
        "unknown",
        "INTERRUPTED",
    )
    assert await simulator.sweep(SweepName.ORPHANS) == 0


async def test_a_restart_does_not_touch_what_waits_for_a_callback(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    await acknowledge(simulator)
    await simulator.crash()
    await simulator.start()
    assert await simulator.sweep(SweepName.ORPHANS) == 0
    assert await simulator.sweep(SweepName.REQUEUE) == 0
    assert await state(simulator, work_id) == "active"
    await simulator.engine.reports.complete(work_id, StepResult(success=True))
    assert await state(simulator, work_id) == "succeeded"


async def test_what_this_node_is_sending_is_not_orphaned(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    assert await simulator.sweep(SweepName.ORPHANS) == 0
    assert not await simulator.engine.commit.submit(ReclaimOrphan(work_id, "another-node", RETRY))


async def test_an_orphan_that_has_ended_meanwhile_is_left_alone(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    await simulator.crash()
    await simulator.start()
    await simulator.engine.reports.complete(work_id, StepResult(success=True))
    assert not await simulator.engine.commit.submit(ReclaimOrphan(work_id, "any-node", RETRY))
    assert await state(simulator, work_id) == "succeeded"


async def test_attempts_cut_short_count(simulator: Simulator) -> None:
    work_id = await sent(simulator)
    for attempt in (1, 2, 3):
        assert (await look(simulator, work_id))["attempt"] == attempt
        await simulator.crash()
        await simulator.start()
        await simulator.sweep(SweepName.ORPHANS)
        simulator.clock.advance(1_000)
        await simulator.sweep(SweepName.REQUEUE)
    document = await look(simulator, work_id)
    assert (document["status"], document["attempt"]) == ("failed", 3)
    assert len(simulator.network.calls) == 3
