"""Polls that wait for results: how often each reads the store, and that none is missed, on both stores."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from counterfoil.domain.errors import Unavailable, UnknownFlow
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine import Limits
from counterfoil.engine.queries.results import READ_TOGETHER
from counterfoil.store.group_commit.commit import StoreFailure
from counterfoil.store.protocol import Row
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place, by_hand
from tests.eventually import eventually
from tests.store.records import DEFAULTS, definition
from tests.store_reads import noted_reads

LONG_MS = 60_000
SECONDS = 10.0
VALUES = {
    "whole": 123456789012345678901234567890,
    "fraction": 0.1,
    "text": 'ünï "quoted" \u2028 \\ \x01 🎟',
    "nested": [{"a": [1, [2, {"b": None}]]}, True],
    "empty": {},
}
ATTRIBUTES = {"x": {"role": "output"}}
TAKES_X = {"x": {"role": "required"}, "y": {"role": "output"}}
TAKES_Y = {"y": {"role": "required"}, "z": {"role": "output"}}


@pytest.fixture
async def simulator(place: Place) -> AsyncIterator[Simulator]:
    async with Simulator(place, defaults=DEFAULTS, limits=Limits(dispatches_per_host=256)) as simulator:
        await simulator.engine.steps.put("one", definition())
        await simulator.engine.steps.put("first", definition(attributes=ATTRIBUTES))
        await simulator.engine.steps.put("second", definition(attributes=TAKES_X))
        await simulator.engine.steps.put("third", definition(attributes=TAKES_Y))
        yield simulator


async def start(simulator: Simulator, flow_id: str = "flow", goal: str = "one") -> None:
    await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=[goal]))


async def report(simulator: Simulator, flow_id: str = "flow", step_id: str = "one", **result: Any) -> None:
    """The result of the last call of a step."""
    calls = [call.metadata for call in simulator.network.calls]
    work_id = [each["work_id"] for each in calls if (each["flow_id"], each["step_id"]) == (flow_id, step_id)][-1]
    await simulator.engine.reports.complete(work_id, StepResult.model_validate({"success": True, **result}))


async def until_last(simulator: Simulator, flow_id: str = "flow") -> None:
    """The first two steps of a flow of three have completed."""
    await report(simulator, flow_id, "first", outputs={"x": flow_id})
    await report(simulator, flow_id, "second", outputs={"y": 2})


def poll(simulator: Simulator, flow_id: str = "flow", wait_ms: int = LONG_MS) -> asyncio.Task[Any]:
    return asyncio.create_task(simulator.engine.queries.result(flow_id, wait_ms))


async def waiting(simulator: Simulator, *flow_ids: str) -> list[asyncio.Task[Any]]:
    """Polls that have looked, and wait."""
    polls = [poll(simulator, flow_id) for flow_id in flow_ids]
    await eventually(lambda: len(simulator.engine.results) == len(polls), what="the polls")
    await at_rest(simulator)
    return polls


async def at_rest(simulator: Simulator) -> None:
    """Whatever was read for polls has been read: the readers answer in the order in which they are asked."""
    for _ in range(4):
        await simulator.store.read("flow_exists", flow_id="flow")


async def answer_of(poll: asyncio.Task[Any]) -> tuple[dict[str, Any], bool]:
    document, final = await asyncio.wait_for(poll, SECONDS)
    return json.loads(orjson.dumps(document)), final


async def test_a_poll_of_a_flow_with_one_step_reads_nothing(simulator: Simulator) -> None:
    """From the start of the flow to its end, whatever is committed meanwhile: before, each commit cost a read."""
    await start(simulator)
    with noted_reads(simulator.engine.store) as reads:
        waits = poll(simulator)
        await asyncio.sleep(0)
        [call] = simulator.network.waiting()
        await simulator.network.answer(call, answered())
        for progress in (0.1, 0.5, 0.9):
            await simulator.engine.reports.heartbeat(call.metadata["work_id"], Heartbeat(progress=progress))
        assert not waits.done()
        await report(simulator, outputs=VALUES)
        document, final = await answer_of(waits)
    assert reads == []
    assert (document, final) == ({"flow_id": "flow", "status": "completed", "outputs": VALUES, "error": None}, True)


@pytest.mark.parametrize("result", [{"outputs": VALUES}, {"success": False, "error": "no \u2028 luck"}, {}])
async def test_a_poll_is_told_what_a_later_one_reads(simulator: Simulator, result: dict[str, Any]) -> None:
    await start(simulator)
    [waits] = await waiting(simulator, "flow")
    await report(simulator, **result)
    told = await answer_of(waits)
    with noted_reads(simulator.engine.store) as reads:
        assert await answer_of(poll(simulator)) == told
    assert reads == ["results_of_flows"]


@pytest.mark.parametrize(("goal", "reads_of_all"), [("second", []), ("third", ["results_of_flows"])])
async def test_a_flow_of_several_steps_is_read_once_for_all_its_polls(
    simulator: Simulator, goal: str, reads_of_all: list[str]
) -> None:
    """And not at all if the batch that ends it has seen what all its steps gave: the last one, and those before it."""
    steps = ["first", "second", "third"][: 2 if goal == "second" else 3]
    await start(simulator, goal=goal)
    with noted_reads(simulator.engine.store) as reads:
        polls = await waiting(simulator, *["flow"] * 50)
        for step_id, name in zip(steps, "xyz", strict=False):
            assert reads == []
            await report(simulator, step_id=step_id, outputs={name: step_id})
        answers = [await answer_of(each) for each in polls]
    assert reads == reads_of_all
    outputs = dict(zip("xyz", steps, strict=False))
    document = {"flow_id": "flow", "status": "completed", "outputs": outputs, "error": None}
    assert answers == [(document, True)] * 50


async def test_flows_that_end_together_are_read_together(simulator: Simulator) -> None:
    names = [f"flow-{number}" for number in range(READ_TOGETHER + 1)]
    for name in names:
        await start(simulator, name, goal="third")
        await until_last(simulator, name)
    polls = await waiting(simulator, *names)
    simulator.engine.results.read_ended(names)  # one that has not ended is waited for
    await at_rest(simulator)
    assert not any(each.done() for each in polls)
    with noted_reads(simulator.engine.store) as reads:
        await asyncio.gather(*(report(simulator, name, "third", outputs={"z": 3}) for name in names))
        documents = [(await answer_of(each))[0] for each in polls]
    assert [document["outputs"] for document in documents] == [{"x": name, "y": 2, "z": 3} for name in names]
    assert 2 <= len(reads) < len(names) // 2


async def test_a_flow_that_the_node_has_not_started_is_read_once_when_the_poll_comes(simulator: Simulator) -> None:
    await start(simulator)
    await simulator.crash()
    await simulator.start()
    with noted_reads(simulator.engine.store) as reads:
        [waits] = await waiting(simulator, "flow")
        await simulator.engine.flows.cancel("flow")
        document, final = await answer_of(waits)
    assert (document["status"], final) == ("cancelled", True)
    assert reads.count("results_of_flows") == 1


async def test_an_end_between_the_reading_and_the_answer_is_not_missed(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll is registered before it reads: what it reads is out of date when it gets it."""
    await start(simulator)
    simulator.engine.results.look_again()  # it no longer knows that the flow is open
    read = simulator.engine.store.read

    async def late(query: str, **parameters: Any) -> list[Row]:
        rows = await read(query, **parameters)
        if simulator.engine.results.awaited(["flow"]):
            await report(simulator, outputs={"x": 1})
        return rows

    monkeypatch.setattr(simulator.engine.store, "read", late)
    document, final = await answer_of(poll(simulator))
    assert (document["status"], document["outputs"], final) == ("completed", {"x": 1}, True)


async def test_a_redriven_flow_is_waited_for_again(simulator: Simulator) -> None:
    await start(simulator)
    [first] = await waiting(simulator, "flow")
    await report(simulator, success=False, error="broken")
    assert (await answer_of(first))[0]["status"] == "failed"
    await simulator.engine.flows.redrive("flow")
    [second] = await waiting(simulator, "flow")
    assert not second.done()
    await report(simulator, outputs={"x": 1})
    assert (await answer_of(second))[0]["status"] == "completed"


async def test_what_was_read_before_a_redrive_does_not_answer_a_poll_after_it(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(simulator, goal="third")
    await until_last(simulator)
    [before] = await waiting(simulator, "flow")
    read, after = simulator.engine.store.read, list[asyncio.Task[Any]]()

    async def slow(query: str, **parameters: Any) -> list[Row]:
        rows = await read(query, **parameters)
        if not after:
            monkeypatch.setattr(simulator.engine.store, "read", read)
            await simulator.engine.flows.redrive("flow")
            after.append(poll(simulator))
            await eventually(lambda: len(simulator.engine.results) == 2, what="the second poll")
            await at_rest(simulator)
        return rows

    monkeypatch.setattr(simulator.engine.store, "read", slow)
    await report(simulator, step_id="third", success=False, error="broken")
    assert (await answer_of(before))[0]["status"] == "failed"
    await at_rest(simulator)
    assert not after[0].done()
    await report(simulator, step_id="third", outputs={"z": 3})
    assert (await answer_of(after[0]))[0]["outputs"] == {"x": "flow", "y": 2, "z": 3}


async def test_the_time_is_over(simulator: Simulator) -> None:
    """One read, with the outputs so far."""
    await start(simulator, goal="third")
    await report(simulator, step_id="first", outputs={"x": 1})
    with noted_reads(simulator.engine.store) as reads:
        document, final = await answer_of(poll(simulator, wait_ms=20))
    assert (document["status"], document["outputs"], final) == ("active", {"x": 1}, False)
    assert reads == ["results_of_flows"]


async def test_a_flow_that_does_not_exist(simulator: Simulator) -> None:
    with pytest.raises(UnknownFlow):
        await answer_of(poll(simulator, "nothing"))
    assert len(simulator.engine.results) == 0


async def test_callers_that_leave_are_forgotten_and_do_not_take_others_along(simulator: Simulator) -> None:
    await start(simulator)
    leaves, stays = await waiting(simulator, "flow", "flow")
    leaves.cancel()
    await asyncio.wait({leaves})
    assert len(simulator.engine.results) == 1
    await report(simulator)
    assert (await answer_of(stays))[1]
    assert len(simulator.engine.results) == 0


async def test_stopping_ends_every_wait(simulator: Simulator) -> None:
    names = ["a", "b", "c"]
    for name in names:
        await start(simulator, name)
    polls = await waiting(simulator, *names, *names)
    simulator.engine.end_waiting()
    assert {(await answer_of(each))[1] for each in polls} == {False}
    assert not (await answer_of(poll(simulator, "a")))[1], "and none begins"


# ------------------------------------------------------------------------------------------------ ended elsewhere


async def test_one_query_finds_what_has_ended_elsewhere(simulator: Simulator) -> None:
    names = [f"flow-{number}" for number in range(20)]
    for name in names:
        await start(simulator, name)
    polls = await waiting(simulator, *names)
    with noted_reads(simulator.engine.store) as reads:
        simulator.engine.results.look_again()
        await eventually(lambda: reads, what="the look")
        await at_rest(simulator)
        assert reads == ["flows_not_open"]
        by_hand(simulator.place, "UPDATE flows SET status = 'cancelled', finished_at = 1 WHERE flow_id = 'flow-7'")
        simulator.engine.results.look_again()
        document, final = await answer_of(polls[7])
    assert (document["status"], final) == ("cancelled", True)
    assert reads == ["flows_not_open", "flows_not_open", "results_of_flows"]
    assert sum(each.done() for each in polls) == 1


async def test_a_flow_that_is_gone_is_not_waited_for(simulator: Simulator) -> None:
    """It ended elsewhere and was pruned before this node looked."""
    await start(simulator)
    [waits] = await waiting(simulator, "flow")
    tables: tuple[str, ...] = ("open_work", "open_flows") if isinstance(simulator.place, str) else ()
    tables += ("journal", "work", "flow_steps", "flow_inputs", "flows")
    by_hand(simulator.place, *(f"DELETE FROM {table} WHERE flow_id = 'flow'" for table in tables))
    simulator.engine.results.look_again()
    with pytest.raises(UnknownFlow):
        await answer_of(waits)


async def test_a_look_that_fails_leaves_the_polls_waiting(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(simulator)
    [waits] = await waiting(simulator, "flow")
    with monkeypatch.context() as broken:
        failed = unreadable(simulator, broken)
        simulator.engine.results.look_again()
        await eventually(lambda: failed, what="the look")
    assert not waits.done()
    await report(simulator)
    assert (await answer_of(waits))[1]


async def test_a_result_that_cannot_be_read_is_unavailable(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(simulator, goal="third")
    await until_last(simulator)
    polls = await waiting(simulator, "flow", "flow")
    with monkeypatch.context() as broken:
        unreadable(simulator, broken)
        await report(simulator, step_id="third", outputs={"z": 3})
        for each in polls:
            with pytest.raises(Unavailable):
                await answer_of(each)
    assert (await answer_of(poll(simulator)))[0]["outputs"] == {"x": "flow", "y": 2, "z": 3}


def unreadable(simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every read fails from now on; which were tried."""
    tried: list[str] = []

    async def fail(query: str, **parameters: Any) -> list[Row]:
        tried.append(query)
        raise StoreFailure("unplugged")

    monkeypatch.setattr(simulator.engine.store, "read", fail)
    return tried
