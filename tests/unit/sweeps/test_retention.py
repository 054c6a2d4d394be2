"""The retention sweep: what ended long ago goes, in small rounds with pauses, and nothing is looked at in vain."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from counterfoil.domain.errors import AlreadyFailed, AlreadySucceeded, CounterfoilError, UnknownFlow, UnknownReceipt
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import StepResult
from counterfoil.engine import Retention
from counterfoil.engine.sweeps.retention import (
    ANEW_MS,
    FLOWS_A_ROUND,
    ITEMS_A_ROUND,
    LONGEST_REST_MS,
    PAUSE_MS,
    ROWS_A_ROUND,
    RetentionSearch,
    Walk,
    _choose,
)
from counterfoil.engine.wakeups import SweepName
from counterfoil.store.protocol import Row
from counterfoil.testing.simulator import Simulator
from tests.by_hand import Place, by_hand
from tests.store.records import DEFAULTS, definition

DAY = 86_400_000
KEPT = 10 * DAY


@contextlib.asynccontextmanager
async def kept(place: Place, flows_ms: int | None = KEPT, payloads_ms: int | None = None) -> AsyncIterator[Simulator]:
    """An engine that keeps flows so long."""
    async with Simulator(place, defaults=DEFAULTS, retention=Retention(flows_ms, payloads_ms)) as simulator:
        await simulator.engine.steps.put("step", definition())
        yield simulator


async def start(simulator: Simulator, *names: str, **fields: object) -> dict[str, str]:
    """Start flows; the work item of each."""
    work = {}
    for name in names:
        request = StartFlow.model_validate({"goals": ["step"], "flow_id": name, "labels": {"k": "v"}, **fields})
        await simulator.engine.flows.start(request)
        [row] = await simulator.store.read("work_of_flow", flow_id=name)
        work[name] = row[1]
    return work


async def end(simulator: Simulator, *work_ids: str, success: bool = True) -> None:
    for work_id in work_ids:
        await simulator.engine.reports.complete(work_id, StepResult(success=success, outputs={"a": 1}, error="no"))


async def sweep(simulator: Simulator, limit: int = 256) -> int:
    pruned = await simulator.sweep(SweepName.RETENTION, limit)
    assert simulator.examine() == []
    return pruned


async def flows(simulator: Simulator) -> list[str]:
    return [flow["flow_id"] for flow in (await simulator.engine.queries.flows())["flows"]]


async def refusal(simulator: Simulator, work_id: str, result: StepResult) -> CounterfoilError:
    with pytest.raises(CounterfoilError) as refused:
        await simulator.engine.reports.complete(work_id, result)
    return refused.value


# ------------------------------------------------------------------------------------------------ what goes, and when


async def test_a_flow_goes_when_its_time_has_come(place: Place) -> None:
    async with kept(place) as simulator:
        work = await start(simulator, "ended", "open")
        simulator.clock.advance(5 * DAY)
        await end(simulator, work["ended"])
        simulator.clock.advance(KEPT - 1)
        assert await sweep(simulator) == 0
        simulator.clock.advance(DAY)
        assert await sweep(simulator) == 1
        assert await flows(simulator) == ["open"]
        with pytest.raises(UnknownFlow):
            await simulator.engine.queries.flow("ended")
        assert isinstance(await refusal(simulator, work["ended"], StepResult(success=True)), UnknownReceipt)
        await start(simulator, "ended")
        assert await flows(simulator) == ["ended", "open"], "the id is free again"


@pytest.mark.parametrize("success", [True, False])
async def test_what_a_flow_carried_goes_first(place: Place, success: bool) -> None:
    async with kept(place, payloads_ms=DAY) as simulator:
        work = await start(simulator, "flow", init={"a": 1}, metadata={"m": 1})
        await end(simulator, work["flow"], success=success)
        before = await simulator.engine.queries.flow("flow")
        assert before["pruned_at"] is None
        simulator.clock.advance(DAY)
        assert await sweep(simulator) == 1
        simulator.clock.advance(DAY)
        assert await sweep(simulator) == 0
        after = await simulator.engine.queries.flow("flow")
        assert after["pruned_at"] is not None
        assert {name: after[name] for name in ("status", "created_at", "finished_at")} == {
            name: before[name] for name in ("status", "created_at", "finished_at")
        }
        assert await simulator.engine.queries.events("flow") == {"events": [], "next_cursor": None}
        assert (await simulator.engine.queries.work_item(work["flow"]))["attempts"] == []
        for report in (StepResult(success=success, outputs={"a": 1}), StepResult(success=not success)):
            refused = await refusal(simulator, work["flow"], report)
            assert isinstance(refused, AlreadySucceeded if success else AlreadyFailed)
            assert refused.details["same_result"] is None
            assert refused.details["recorded_at"] is not None
        simulator.clock.advance(8 * DAY)
        assert await sweep(simulator) == 1
        assert await flows(simulator) == []


async def test_a_repeat_of_what_was_pruned_is_not_tolerated_blindly(place: Place) -> None:
    async with kept(place, payloads_ms=DAY) as simulator:
        await simulator.engine.steps.put("step", definition(duplicate_status=200))
        work = await start(simulator, "flow")
        await end(simulator, work["flow"])
        repeated = await simulator.engine.reports.complete(
            work["flow"], StepResult(success=True, outputs={"a": 1}, error="no")
        )
        assert repeated.verdict == "duplicate"
        simulator.clock.advance(DAY)
        assert await sweep(simulator) == 1
        refused = await refusal(simulator, work["flow"], StepResult(success=True, outputs={"a": 1}, error="no"))
        assert isinstance(refused, AlreadySucceeded)


@pytest.mark.parametrize(
    ("retention", "walks"),
    [((None, None), 0), ((KEPT, None), 1), ((None, KEPT), 1), ((KEPT, DAY), 2), ((DAY, KEPT), 1), ((DAY, DAY), 1)],
)
async def test_only_what_is_asked_for(place: Place, retention: tuple[int | None, int | None], walks: int) -> None:
    async with kept(place, *retention) as simulator:
        assert len(RetentionSearch(simulator.engine)._walks) == walks
        work = await start(simulator, "flow")
        await end(simulator, work["flow"])
        simulator.clock.advance(100 * KEPT)
        await sweep(simulator)
        assert (await flows(simulator) == []) is (retention[0] is not None)
        assert (await simulator.next_due(SweepName.RETENTION) is None) is (walks == 0)


async def test_nothing_is_pruned_while_stopping(place: Place) -> None:
    async with kept(place) as simulator:
        await end(simulator, *(await start(simulator, "flow")).values())
        simulator.clock.advance(KEPT)
        simulator.engine.context.accepting = False
        assert await sweep(simulator) == 0
        assert await simulator.next_due(SweepName.RETENTION) is None


# ------------------------------------------------------------------------------------------------ rounds


async def test_rounds_are_small_and_pause(place: Place) -> None:
    """Others wait for a round no longer than for any other batch, and have all the time between two."""
    async with kept(place) as simulator:
        work = await start(simulator, *(f"flow-{number:03}" for number in range(7)))
        await end(simulator, *work.values())
        simulator.clock.advance(KEPT)
        begin = simulator.clock()
        assert await sweep(simulator, limit=3) == 3
        assert await simulator.next_due(SweepName.RETENTION) == begin + PAUSE_MS
        assert await sweep(simulator, limit=3) == 0, "not before the pause is over"
        simulator.clock.advance(PAUSE_MS)
        assert await sweep(simulator, limit=3) == 3
        simulator.clock.advance(PAUSE_MS)
        assert await sweep(simulator, limit=3) == 1
        assert await simulator.next_due(SweepName.RETENTION) == simulator.clock() + LONGEST_REST_MS
        assert await flows(simulator) == []


async def test_a_round_that_failed_is_made_again(place: Place) -> None:
    async with kept(place) as simulator:
        await end(simulator, *(await start(simulator, "flow")).values())
        simulator.clock.advance(KEPT)
        by_hand(place, "ALTER TABLE flow_labels RENAME TO lost")
        with pytest.raises(CounterfoilError):
            await simulator.sweep(SweepName.RETENTION)
        by_hand(place, "ALTER TABLE lost RENAME TO flow_labels")
        assert await flows(simulator) == ["flow"]
        assert await sweep(simulator) == 1


async def test_long_lived_flows_are_not_looked_at_in_every_round(place: Place) -> None:
    async with kept(place) as simulator:
        work = await start(simulator, "long", "short")
        await end(simulator, work["short"])
        simulator.clock.advance(KEPT)
        reads: list[int] = []
        read = simulator.store.read

        async def counted(query: str, **parameters: object) -> list[Row]:
            if query == "walk_flows":
                reads.append(int(str(parameters["after"])))
            return await read(query, **parameters)

        simulator.engine.store.read = counted  # type: ignore[method-assign]
        assert await sweep(simulator) == 1
        await end(simulator, work["long"])
        for _ in range(3):
            simulator.clock.advance(LONGEST_REST_MS)
            assert await sweep(simulator) == 0
        assert len(set(reads[1:])) == 1
        assert reads[1] > 0, "from where it was"
        simulator.clock.advance(KEPT)
        assert await sweep(simulator) == 1, "and from time to time from the beginning"
        assert reads[-1] == 0


# ------------------------------------------------------------------------------------------------ choosing


def test_flows_are_chosen_up_to_the_first_that_is_too_young() -> None:
    rows: list[Row] = [(1, "a", 5, 1), (3, "b", 6, None), (4, "c", 7, 1), (6, "d", 11, 1), (7, "e", 8, 1)]
    assert _choose(rows, 0, 10, 100) == (["a", "c"], 4, True)


def test_no_more_flows_than_the_limit_are_chosen() -> None:
    rows: list[Row] = [(number, f"flow-{number}", 5, 1) for number in range(1, 300)]
    chosen, after, at_end = _choose(rows, 0, 10, FLOWS_A_ROUND)
    assert (len(chosen), after, at_end) == (FLOWS_A_ROUND, FLOWS_A_ROUND, False)


def test_no_more_items_than_a_round_may_have_unless_one_flow_has_more() -> None:
    rows: list[Row] = [(1, "a", 5, ITEMS_A_ROUND - 1), (2, "b", 5, 1), (3, "c", 5, 1)]
    assert _choose(rows, 0, 10, 100) == (["a", "b"], 2, False)
    assert _choose([(1, "a", 5, 10 * ITEMS_A_ROUND), (2, "b", 5, 1)], 0, 10, 100) == (["a"], 1, False)


def test_a_page_of_open_flows_is_passed_over() -> None:
    rows: list[Row] = [(number, f"flow-{number}", 5, None) for number in range(1, ROWS_A_ROUND + 1)]
    assert _choose(rows, 0, 10, 100) == ([], ROWS_A_ROUND, False)
    assert _choose(rows[:-1], 0, 10, 100) == ([], ROWS_A_ROUND - 1, True)
    assert _choose([], 7, 10, 100) == ([], 7, True)


def test_a_walk_begins_anew_only_after_it_came_to_its_end() -> None:
    walk = Walk(KEPT, payloads=False)
    walk.goes_on(DAY)
    walk.rests(DAY, 500, at_end=False)
    assert walk.rests_until == DAY + PAUSE_MS
    walk.goes_on(DAY + 2 * ANEW_MS)
    assert walk.after == 500
    walk.rests(DAY + 2 * ANEW_MS, 900, at_end=True)
    walk.goes_on(DAY + 2 * ANEW_MS + 1)
    assert walk.after == 0


def test_rests_fit_the_time_that_flows_are_kept() -> None:
    for kept_ms, rest_ms in ((1, 1_000), (500_000, 5_000), (KEPT, LONGEST_REST_MS)):
        walk = Walk(kept_ms, payloads=False)
        walk.rests(0, 1, at_end=True)
        assert walk.rests_until == rest_ms
