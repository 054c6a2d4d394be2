"""Schedules in an engine whose clock the test moves: each tick starts one flow, whatever is missed or refused."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
import pytest

from counterfoil.domain.errors import UnknownSchedule
from counterfoil.domain.schedules import GRACE_MS, ScheduleDefinition
from counterfoil.domain.time import rfc3339
from counterfoil.engine import schedules as firing
from counterfoil.engine.flows.start import Start
from counterfoil.engine.sweeps.loop import SweepLoop
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import CrashPoint, Simulator
from counterfoil.wire.flows import FlowStarted
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.store.records import definition as step_definition

MINUTE = 60_000


async def put(simulator: Simulator, schedule_id: str = "nightly", **fields: Any) -> dict[str, Any]:
    """A schedule of every minute, unless something else is said."""
    rhythm = {} if "cron" in fields else {"every_ms": MINUTE}
    given = {**rhythm, "flow": {"goals": ["step"]}, **fields}
    document, _ = await simulator.engine.schedules.put(schedule_id, ScheduleDefinition.model_validate(given))
    return {**document}


async def register(simulator: Simulator, step_id: str = "step", **fields: Any) -> None:
    await simulator.engine.steps.put(step_id, step_definition(**fields))


async def shown(simulator: Simulator, schedule_id: str = "nightly") -> dict[str, Any]:
    return {**await simulator.engine.queries.schedule(schedule_id)}


async def flows(simulator: Simulator) -> list[str]:
    """The ticks of all flows that schedules have started, the oldest first."""
    page = await simulator.engine.queries.flows(limit=1_000)
    ids = [flow["flow_id"] for flow in page["flows"]]
    found = [await simulator.engine.queries.flow(flow_id) for flow_id in ids]
    return sorted(orjson.loads(orjson.dumps(flow["metadata"]))["scheduled_at"] for flow in found)


async def fire(simulator: Simulator) -> int:
    """Run rounds until nothing is due; how many schedules were fired."""
    fired = 0
    while count := await simulator.sweep(SweepName.SCHEDULES):
        fired += count
    return fired


async def test_each_tick_starts_a_flow_that_is_sent_at_once(simulator: Simulator) -> None:
    await register(simulator)
    began = simulator.clock()
    document = await put(simulator, flow={"goals": ["step"], "init": {"a": 1}, "labels": {"by": "clock"}})
    assert (document["next_at"], document["last_at"]) == (rfc3339(began + MINUTE), None)
    assert (SweepName.SCHEDULES, began + MINUTE) in simulator.wakeups
    assert await simulator.sweep(SweepName.SCHEDULES) == 0
    assert await simulator.next_due(SweepName.SCHEDULES) == began + MINUTE
    for number in (1, 2, 3):
        simulator.clock.advance(MINUTE)
        assert await simulator.sweep(SweepName.SCHEDULES) == 1
        assert await simulator.sweep(SweepName.SCHEDULES) == 0
        assert (SweepName.SCHEDULES, began + (number + 1) * MINUTE) in simulator.wakeups
        call = simulator.network.calls[-1]
        assert call.body["arguments"] == {"a": 1}
        tick = rfc3339(began + number * MINUTE)
        assert (call.metadata["schedule_id"], call.metadata["scheduled_at"]) == ("nightly", tick)
        document = await shown(simulator)
        assert (document["last_at"], document["last_flow_id"]) == (tick, call.metadata["flow_id"])
        assert document["next_at"] == rfc3339(began + (number + 1) * MINUTE)
    assert len(simulator.network.calls) == 3


async def test_a_late_round_does_not_move_the_rhythm(simulator: Simulator) -> None:
    await register(simulator)
    began = simulator.clock()
    await put(simulator)
    for late in (700, 1_900, 3):
        simulator.clock.now = began + MINUTE + late
        await fire(simulator)
        began += MINUTE
    assert (await shown(simulator))["next_at"] == rfc3339(began + MINUTE)


@pytest.mark.parametrize(("catch_up", "caught_up"), [("skip", []), ("one", [250]), ("all", range(1, 251))])
async def test_what_was_missed_while_the_engine_was_down(
    simulator: Simulator, catch_up: str, caught_up: list[int]
) -> None:
    await register(simulator)
    began = simulator.clock()
    await put(simulator, catch_up=catch_up)
    await simulator.crash()
    simulator.clock.advance(250 * MINUTE + GRACE_MS + 1)
    await simulator.start()
    rounds = 0
    while await simulator.sweep(SweepName.SCHEDULES):
        rounds += 1
    assert rounds == (3 if catch_up == "all" else 1), "a hundred ticks to a round"
    assert await flows(simulator) == [rfc3339(began + MINUTE * number) for number in caught_up]
    assert (await shown(simulator))["next_at"] == rfc3339(began + 251 * MINUTE)
    simulator.clock.now = began + 251 * MINUTE
    await fire(simulator)
    assert len(await flows(simulator)) == len(caught_up) + 1


async def test_cron_in_a_time_zone(simulator: Simulator) -> None:
    """1,800,000,000 seconds after 1970 it is 08:00 UTC on a Friday."""
    await register(simulator)
    document = await put(simulator, cron="0 6 * * MON-FRI", timezone="Europe/Vienna")
    assert document["upcoming"][:2] == ["2027-01-18T05:00:00.000Z", "2027-01-19T05:00:00.000Z"]
    simulator.clock.advance(3 * 24 * 60 * MINUTE)
    assert await fire(simulator) == 1
    assert await flows(simulator) == ["2027-01-18T05:00:00.000Z"]


async def test_pause_and_resume(simulator: Simulator) -> None:
    await register(simulator)
    began = simulator.clock()
    await put(simulator, catch_up="all")
    paused = await put(simulator, catch_up="all", enabled=False)
    assert (paused["next_at"], paused["upcoming"], paused["enabled"]) == (None, [], False)
    assert await simulator.next_due(SweepName.SCHEDULES) is None
    simulator.clock.advance(10 * MINUTE + 1)
    assert await fire(simulator) == 0
    resumed = await put(simulator, catch_up="all")
    assert resumed["next_at"] == rfc3339(began + 11 * MINUTE)
    assert await fire(simulator) == 0
    simulator.clock.advance(MINUTE)
    assert await fire(simulator) == 1


async def test_a_schedule_that_is_deleted_starts_nothing_more(simulator: Simulator) -> None:
    await register(simulator)
    await put(simulator)
    await put(simulator, "other")
    simulator.clock.advance(MINUTE)
    await simulator.engine.schedules.delete("nightly")
    assert await fire(simulator) == 1
    assert [call.metadata["schedule_id"] for call in simulator.network.calls] == ["other"]
    with pytest.raises(UnknownSchedule):
        await shown(simulator)
    with pytest.raises(UnknownSchedule):
        await simulator.engine.schedules.delete("nightly")


# ------------------------------------------------------------------------------------------------ refusals


async def test_a_start_that_is_refused_does_not_hold_the_schedule_up(simulator: Simulator) -> None:
    began = simulator.clock()
    for step_id in ("step", "other"):
        await register(simulator, step_id)
    await put(simulator)
    await put(simulator, "sound", flow={"goals": ["other"]})
    await simulator.engine.steps.delete("step")
    simulator.clock.advance(MINUTE)
    assert await fire(simulator) == 2
    assert [call.metadata["schedule_id"] for call in simulator.network.calls] == ["sound"]
    document = await shown(simulator)
    assert document["last_error"]["code"] == "UNKNOWN_STEP"
    assert document["last_error"]["at"] == rfc3339(simulator.clock())
    assert (document["last_at"], document["last_flow_id"]) == (None, None)
    assert document["next_at"] == rfc3339(began + 2 * MINUTE)
    await register(simulator)
    simulator.clock.advance(MINUTE)
    assert await fire(simulator) == 2
    document = await shown(simulator)
    assert (document["last_error"], document["last_at"]) == (None, rfc3339(began + 2 * MINUTE))
    text = simulator.engine.metrics.render()[0].decode()
    assert 'counterfoil_schedule_firings_total{outcome="started"} 3.0' in text
    assert 'counterfoil_schedule_firings_total{outcome="refused"} 1.0' in text


async def test_inputs_that_do_not_fit_are_refused_as_at_any_start(simulator: Simulator) -> None:
    await register(simulator)
    await put(simulator, "lacking")
    await put(simulator, "mistyped", flow={"goals": ["step"], "init": {"n": "three"}})
    await register(simulator, attributes={"n": {"role": "required", "type": "number"}})
    simulator.clock.advance(MINUTE)
    await fire(simulator)
    assert (await shown(simulator, "lacking"))["last_error"]["code"] == "UNREACHABLE_GOAL"
    assert (await shown(simulator, "mistyped"))["last_error"]["code"] == "INVALID_INPUT"
    assert await flows(simulator) == []


async def test_a_start_that_fails_halfway_leaves_nothing_of_itself(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in one schedule's flows must not keep the others from being fired, nor itself from the next tick."""

    class Faulty(Start):
        def decide(self, unit: Any, now: int) -> FlowStarted:
            document = cast(FlowStarted, super().decide(unit, now))
            if document["goals"] == ["faulty"]:
                raise ZeroDivisionError("a bug")
            return document

    monkeypatch.setattr(firing, "Start", Faulty)
    for step_id in ("step", "faulty"):
        await register(simulator, step_id)
    await put(simulator)
    await put(simulator, "broken", flow={"goals": ["faulty"]}, catch_up="all")
    simulator.clock.advance(3 * MINUTE)
    assert await fire(simulator) == 2
    assert [call.metadata["schedule_id"] for call in simulator.network.calls] == ["nightly"]
    assert len((await simulator.engine.queries.flows())["flows"]) == 1
    assert (await shown(simulator, "broken"))["last_error"]["code"] == "INTERNAL"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ('flow = \'{"goals": [], "gone": 1}\'', "INVALID_INPUT"),
        ("timezone = 'Mars/Olympus'", "INVALID_SCHEDULE"),
        ("cron = 'now and then'", "INVALID_SCHEDULE"),
    ],
)
async def test_what_another_version_or_machine_has_left_is_told(simulator: Simulator, change: str, code: str) -> None:
    await register(simulator)
    await put(simulator, cron="* * * * *")
    by_hand(simulator.place, f"UPDATE schedules SET {change}")
    simulator.clock.advance(MINUTE)
    assert await fire(simulator) == 1
    document = await shown(simulator)
    assert document["last_error"]["code"] == code
    assert (document["next_at"] is None) is (code == "INVALID_SCHEDULE"), "without times it rests"
    assert (await simulator.engine.queries.schedules())["schedules"] == [document]


# ------------------------------------------------------------------------------------------------ exactly once


async def test_rounds_at_once_fire_each_tick_once(simulator: Simulator) -> None:
    await register(simulator)
    for number in range(50):
        await put(simulator, f"schedule-{number}")
    simulator.clock.advance(MINUTE)
    fired_at_once = sum(await asyncio.gather(*(simulator.sweep(SweepName.SCHEDULES) for _ in range(4))))
    assert fired_at_once + await fire(simulator) == 50
    fired = [call.metadata["schedule_id"] for call in simulator.network.calls]
    assert sorted(fired) == sorted(f"schedule-{number}" for number in range(50))


@pytest.mark.parametrize("point", CrashPoint)
async def test_a_crash_around_the_commit_loses_no_tick_and_repeats_none(
    simulator: Simulator, point: CrashPoint
) -> None:
    await register(simulator)
    began = simulator.clock()
    await put(simulator, catch_up="all")
    simulator.clock.advance(2 * MINUTE)
    assert await simulator.crash_during(simulator.sweep(SweepName.SCHEDULES), point)
    await simulator.start()
    simulator.clock.advance(MINUTE)
    await fire(simulator)
    assert await flows(simulator) == [rfc3339(began + MINUTE * number) for number in (1, 2, 3)]


async def test_nothing_is_fired_while_stopping(simulator: Simulator) -> None:
    await register(simulator)
    await put(simulator)
    simulator.clock.advance(MINUTE)
    simulator.engine.context.accepting = False
    assert await simulator.sweep(SweepName.SCHEDULES) == 0
    assert await simulator.next_due(SweepName.SCHEDULES) is None
    simulator.engine.context.accepting = True
    assert await simulator.sweep(SweepName.SCHEDULES) == 1


async def test_a_sweep_that_was_told_too_late_a_time_fires_nothing(simulator: Simulator) -> None:
    await register(simulator)
    await put(simulator)
    sweep = simulator._sweeps[SweepName.SCHEDULES]
    assert await sweep.run_once(simulator.engine.commit, simulator.clock() + MINUTE, 10) == 0
    assert simulator.network.calls == []


async def test_a_tick_known_in_advance_wakes_the_sweep(simulator: Simulator) -> None:
    loop = SweepLoop(simulator.engine, 600_000)
    loop.start()
    await register(simulator)
    await put(simulator, every_ms=100)
    simulator.clock.advance(100)
    await eventually(lambda: simulator.network.calls, what="the flow of the first tick")
    simulator.clock.advance(100)
    await eventually(lambda: len(simulator.network.calls) == 2, what="the flow of the second")
    await loop.stop()
