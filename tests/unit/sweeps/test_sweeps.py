"""Sweeps: each round does what is due and no more, and the loop runs them when something is due, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from counterfoil.domain.errors import Unavailable
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import StepResult
from counterfoil.engine import Limits
from counterfoil.engine.flows.clocks import LookAtFlow
from counterfoil.engine.sweeps.loop import SweepLoop, SweepRunner
from counterfoil.engine.sweeps.progress import SweepProgress
from counterfoil.engine.sweeps.sweep import Sweep
from counterfoil.engine.wakeups import SweepName, Wakeups
from counterfoil.store.group_commit.batch import ForEach
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.unit_of_work.read_set import Find
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place
from tests.eventually import eventually
from tests.store.records import definition

NEVER_MS = 600_000


async def start(simulator: Simulator, count: int = 1, step_id: str = "step", **fields: Any) -> None:
    await simulator.engine.steps.put(step_id, definition(**fields))
    for _ in range(count):
        await simulator.engine.flows.start(StartFlow(goals=[step_id]))


async def refuse_all(simulator: Simulator) -> None:
    for call in simulator.network.waiting():
        await simulator.network.answer(call, answered(503))


# One round -----------------------------------------------------------------------------------------------------------


async def test_a_round_treats_no_more_than_its_limit(simulator: Simulator) -> None:
    await start(simulator, 5)
    simulator.clock.advance(60_000)
    assert [await simulator.sweep(SweepName.DEADLINES, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    simulator.clock.advance(1_000)
    assert [await simulator.sweep(SweepName.REQUEUE, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    await simulator.crash()
    await simulator.start()
    assert [await simulator.sweep(SweepName.ORPHANS, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_sweep_tells_when_it_is_needed_next(simulator: Simulator) -> None:
    others = [name for name in SweepName if name is not SweepName.LEASE]
    assert {name: await simulator.next_due(name) for name in others} == dict.fromkeys(others)
    await start(simulator)
    now = simulator.clock()
    assert await simulator.next_due(SweepName.DEADLINES) == now + 60_000
    await refuse_all(simulator)
    await simulator.sweep(SweepName.REQUEUE)
    assert await simulator.next_due(SweepName.REQUEUE) == now + 1_000
    assert await simulator.next_due(SweepName.DEADLINES) is None
    assert await simulator.next_due(SweepName.ORPHANS) is None


async def test_nothing_is_claimed_while_stopping(simulator: Simulator) -> None:
    await start(simulator, work={"parallelism": 5})
    simulator.engine.context.accepting = False
    assert await simulator.sweep(SweepName.REQUEUE) == 0
    simulator.engine.context.accepting = True
    assert await simulator.sweep(SweepName.REQUEUE) == 1


async def test_lanes_share_what_room_there_is(place: Place) -> None:
    async with Simulator(place, limits=Limits(dispatches=4)) as simulator:
        await start(simulator, 9, "crowded", endpoint="http://crowded.test/", work={"parallelism": 100})
        await start(simulator, 2, "quiet", endpoint="http://quiet.test/", work={"parallelism": 100})
        assert await simulator.sweep(SweepName.REQUEUE) == 4
        hosts = [call.url for call in simulator.network.waiting()]
        assert sorted(hosts) == ["http://crowded.test/"] * 2 + ["http://quiet.test/"] * 2


async def test_two_rounds_at_once_do_not_do_anything_twice(simulator: Simulator) -> None:
    await start(simulator, 4, work={"parallelism": 10})
    assert sum(await asyncio.gather(*(simulator.sweep(SweepName.REQUEUE) for _ in range(3)))) == 4
    assert len(simulator.network.calls) == 4
    simulator.clock.advance(60_000)
    await asyncio.gather(*(simulator.sweep(SweepName.DEADLINES) for _ in range(3)))
    states = await simulator.engine.queries.open_work_by_state()
    assert (states["not_completed"], states["active"]) == (4, 0)


async def test_what_turned_out_not_to_be_due_is_not_counted(simulator: Simulator) -> None:
    """Or the loop would look again at once, and again: a clock that was set back must not make it spin."""
    await start(simulator, 2)
    late = simulator.clock() + 60_000
    sweep = simulator._sweeps[SweepName.DEADLINES]
    assert await sweep.run_once(simulator.engine.commit, late, 10) == 0, (
        "when it comes to deciding, it is earlier than the sweep was told"
    )


# The runner of one sweep ---------------------------------------------------------------------------------------------


class Script:
    """Rounds of a sweep that do what the test says: a number of items, or an error."""

    def __init__(self, *script: int | Exception, name: SweepName = SweepName.REQUEUE, pauses: bool = False) -> None:
        self.script = list(script)
        self.items = 0
        self.rounds = 0
        self.due: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()

        self.sweep = Sweep(name, search=self.search, follow_up=self.follow_up, next_due=self.next_due, pauses=pauses)

    async def search(self, now: int, limit: int) -> AsyncIterator[ForEach[Any]]:
        self.rounds += 1
        await self.gate.wait()
        step = self.script.pop(0) if self.script else 0
        if isinstance(step, Exception):
            raise step
        if step:
            self.items = step
            yield ForEach(Find.of("find_due_flows", now=0, limit=1), LookAtFlow)

    async def follow_up(self, answers: list[Any]) -> int:
        return self.items

    async def next_due(self) -> int | None:
        return self.due


async def ring(simulator: Simulator, script: Script, loop: SweepLoop | None = None) -> SweepRunner:
    runner = SweepRunner(script.sweep, simulator.engine, loop or SweepLoop(simulator.engine, NEVER_MS))
    runner.ring()
    await settled(runner)
    return runner


async def settled(runner: SweepRunner) -> None:
    assert runner._task is not None
    await asyncio.wait({runner._task}, timeout=10)


async def test_a_sweep_runs_until_nothing_is_left(simulator: Simulator) -> None:
    sweep = Script(5, 3)
    await ring(simulator, sweep)
    assert sweep.rounds == 3


async def test_a_sweep_that_does_not_hurry_pauses_though_more_is_left(simulator: Simulator) -> None:
    sweep = Script(5, 3, name=SweepName.RETENTION, pauses=True)
    sweep.due = simulator.clock() + 50
    loop, woken = SweepLoop(simulator.engine, NEVER_MS), list[tuple[SweepName, int | None]]()
    loop.wake = lambda name, due_at: woken.append((name, due_at))  # type: ignore[method-assign]
    await ring(simulator, sweep, loop)
    assert (sweep.rounds, woken) == (1, [(SweepName.RETENTION, sweep.due)])


async def test_rings_during_a_round_are_worth_one_more(simulator: Simulator) -> None:
    sweep = Script()
    sweep.gate.clear()
    runner = SweepRunner(sweep.sweep, simulator.engine, SweepLoop(simulator.engine, NEVER_MS))
    runner.ring()
    await eventually(lambda: sweep.rounds)
    for _ in range(3):
        runner.ring()
    sweep.gate.set()
    await settled(runner)
    assert sweep.rounds == 2


@pytest.mark.parametrize("error", [StoreFailure("disk full"), Unavailable(), ZeroDivisionError()], ids=repr)
async def test_a_round_that_fails_is_not_the_last(simulator: Simulator, error: Exception) -> None:
    sweep = Script(error)
    runner = await ring(simulator, sweep)
    assert simulator.engine.sweep_progress.document(simulator.clock()) == {}, "only a round that succeeded counts"
    simulator.clock.advance(5)
    runner.ring()
    await settled(runner)
    assert sweep.rounds == 2
    document = simulator.engine.sweep_progress.document(simulator.clock())
    assert document == {"requeue": {"finished_ms_ago": 0}}


def test_a_sweep_that_does_not_run_is_what_readiness_names() -> None:
    progress = SweepProgress()
    progress.expect([SweepName.REQUEUE], 1_000, now=0)
    assert progress.document(20_000) == {"requeue": {"finished_ms_ago": 20_000}}
    with pytest.raises(Unavailable, match="sweeps are not running: requeue") as caught:
        progress.document(20_001)
    assert caught.value.details == {"failed": "sweeps"}


async def test_a_runner_that_never_ran_can_be_stopped(simulator: Simulator) -> None:
    await SweepRunner(Script().sweep, simulator.engine, SweepLoop(simulator.engine, NEVER_MS)).stop()


async def test_a_round_under_way_is_given_up_at_the_end(simulator: Simulator) -> None:
    sweep = Script()
    sweep.gate.clear()
    runner = SweepRunner(sweep.sweep, simulator.engine, SweepLoop(simulator.engine, NEVER_MS))
    runner.ring()
    await eventually(lambda: sweep.rounds)
    await asyncio.wait_for(runner.stop(), 10)


# The loop ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def loop(simulator: Simulator) -> AsyncIterator[SweepLoop]:
    """A loop that does nothing by itself for ten minutes: what happens was woken."""
    loop = SweepLoop(simulator.engine, NEVER_MS)
    yield loop
    if loop._scheduler.running:
        await loop.stop()


async def test_at_the_start_everything_is_looked_at(simulator: Simulator, loop: SweepLoop) -> None:
    await start(simulator, work={"parallelism": 1})
    loop.start()
    await eventually(simulator.network.waiting, what="the attempt")


async def test_a_due_time_known_in_advance_is_kept(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    await start(simulator, work={"init_backoff_ms": 30})
    await refuse_all(simulator)
    simulator.clock.advance(30)
    second = await eventually(simulator.network.waiting, what="the second attempt")
    assert second[0].attempt == 2


async def test_a_deadline_is_kept(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    await start(simulator, work={"deadline_ms": 30, "max_retries": 0})
    simulator.clock.advance(30)
    await eventually(lambda: count(simulator, "failed"), what="the failure")


async def count(simulator: Simulator, status: str) -> int:
    return len((await simulator.engine.queries.work_items(status=status))["work"])


async def test_room_that_became_free_is_used_at_once(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    await start(simulator, 2, work={"parallelism": 1})
    [first] = await eventually(simulator.network.waiting, what="the first attempt")
    await simulator.engine.reports.complete(first.metadata["work_id"], StepResult(success=True))
    await eventually(lambda: len(simulator.network.calls) == 2, what="the second item")


async def test_workers_are_told_of_a_cancellation_at_once(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    await start(simulator, cancel_url="http://worker.test/cancel")
    flow_id = simulator.network.calls[0].metadata["flow_id"]
    await simulator.engine.flows.cancel(flow_id)
    calls = await eventually(lambda: simulator.network.waiting("http://worker.test/cancel"), what="the cancel call")
    await simulator.network.answer(calls[0], answered())


async def test_the_interval_is_the_safety_net(simulator: Simulator) -> None:
    loop = SweepLoop(simulator.engine, 20)
    loop.start()
    await start(simulator)
    simulator.engine.wakeups.stop_listening()
    await refuse_all(simulator)
    simulator.clock.advance(1_000)
    await eventually(simulator.network.waiting, what="the second attempt")
    await loop.stop()


async def test_a_later_time_does_not_put_off_an_earlier_one(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    await start(simulator, work={"init_backoff_ms": 50})
    await refuse_all(simulator)
    loop.wake(SweepName.REQUEUE, simulator.clock() + 300_000)
    simulator.clock.advance(50)
    await eventually(simulator.network.waiting, what="the second attempt")


async def test_a_loop_that_is_stopped_is_not_woken(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    await loop.stop()
    await start(simulator, work={"parallelism": 1})
    simulator.engine.wakeups.now(SweepName.REQUEUE)
    assert simulator.network.calls == []


@pytest.mark.parametrize("rounds_of_the_loop", range(4))
async def test_a_tick_at_the_very_moment_of_the_stop_is_no_error(
    simulator: Simulator, caplog: pytest.LogCaptureFixture, rounds_of_the_loop: int
) -> None:
    interval_ms = 20
    loop = SweepLoop(simulator.engine, interval_ms)
    loop.start()
    await eventually(lambda: all(runner._task and runner._task.done() for runner in loop._runners.values()))
    due_at = asyncio.get_running_loop().time() + 2 * interval_ms / 1000
    while asyncio.get_running_loop().time() < due_at:
        pass  # the loop is kept from looking at the clock: all ticks are due when it does
    for _ in range(rounds_of_the_loop):
        await asyncio.sleep(0)
    await loop.stop()
    await asyncio.sleep(0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert [runner for runner in loop._runners.values() if runner._task and not runner._task.done()] == []


async def test_readiness_tells_how_long_ago_each_sweep_finished(simulator: Simulator, loop: SweepLoop) -> None:
    loop.start()
    simulator.clock.advance(500)
    document = (await simulator.engine.operations.health())["sweeps"]
    assert set(document) == {str(name) for name in SweepName}
    assert all(0 <= each["finished_ms_ago"] <= 500 for each in document.values())


async def test_sweeps_that_have_stopped_make_the_engine_unready(simulator: Simulator) -> None:
    SweepLoop(simulator.engine, 1_000)
    simulator.engine.sweep_progress.expect(SweepName, 1_000, simulator.clock())
    simulator.clock.advance(20_000)
    await simulator.engine.operations.health()
    simulator.clock.advance(1)
    with pytest.raises(Unavailable, match=", ".join(SweepName)):
        await simulator.engine.operations.health()


def test_without_a_listener_no_progress_is_reported() -> None:
    wakeups = Wakeups()
    wakeups.now(SweepName.REQUEUE)
    wakeups.at(SweepName.REQUEUE, 5)
