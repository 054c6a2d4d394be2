"""What the API reads: every view of flows, work and journal, page by page, and honest about what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from counterfoil.domain.errors import (
    CounterfoilError,
    InvalidInput,
    InvalidSignature,
    InvalidStep,
    Unavailable,
    UnknownFlow,
    UnknownReceipt,
    UnknownStep,
    UnknownWork,
)
from counterfoil.domain.flows.requests import StartFlow
from counterfoil.domain.work.results import Heartbeat, StepResult
from counterfoil.engine.queries.queries import Queries
from counterfoil.engine.wakeups import SweepName
from counterfoil.testing.simulator import Simulator, answered
from tests.by_hand import Place, by_hand
from tests.store.records import DEFAULTS, definition


@pytest.fixture
async def simulator(place: Place) -> AsyncIterator[Simulator]:
    async with Simulator(place, defaults=DEFAULTS) as simulator:
        await simulator.engine.steps.put("a", definition())
        await simulator.engine.steps.put("b", definition(kind="sync"))
        yield simulator


async def start(simulator: Simulator, flow_id: str, *goals: str, **fields: Any) -> None:
    await simulator.engine.flows.start(StartFlow(flow_id=flow_id, goals=list(goals) or ["a"], **fields))


async def end(simulator: Simulator, flow_id: str, *, success: bool = True) -> None:
    for call in simulator.network.calls:
        if call.metadata["flow_id"] == flow_id:
            result = StepResult(success=success, outputs={"of": call.metadata["step_id"]})
            await simulator.engine.reports.complete(call.metadata["work_id"], result)


def shown(document: Any) -> Any:
    return orjson.loads(orjson.dumps(document))


async def pages(read: Callable[[str | None], Awaitable[Any]], name: str) -> list[Any]:
    """All pages of a list, one after the other."""
    seen: list[Any] = []
    cursor = None
    while True:
        document = shown(await read(cursor))
        seen += document[name]
        cursor = document["next_cursor"]
        if cursor is None:
            return seen


async def test_steps(simulator: Simulator) -> None:
    queries = simulator.engine.queries
    assert [step["step_id"] for step in await queries.steps()] == ["a", "b"]
    assert (await queries.step("b"))["kind"] == "sync"
    with pytest.raises(UnknownStep):
        await queries.step("c")


async def test_registering_a_step_tells_whether_it_is_new(simulator: Simulator) -> None:
    document, created = await simulator.engine.steps.put("c", definition())
    assert (document["step_id"], created) == ("c", True)
    _, created = await simulator.engine.steps.put("c", definition(name="Another"))
    assert not created
    await simulator.engine.steps.delete("c")
    with pytest.raises(UnknownStep):
        await simulator.engine.steps.delete("c")


async def test_a_flow_with_all_its_steps(simulator: Simulator) -> None:
    await start(simulator, "flow", "a", "b", init={"i": 1}, metadata={"m": 2}, labels={"k": "v"})
    document = shown(await simulator.engine.queries.flow("flow"))
    assert (document["status"], document["goals"], document["init"]) == ("active", ["a", "b"], {"i": 1})
    assert (document["metadata"], document["labels"], document["outputs"]) == ({"m": 2}, {"k": "v"}, {})
    assert document["plan"]["steps"] == ["a", "b"]
    assert {step_id: len(step["work"]) for step_id, step in document["steps"].items()} == {"a": 1, "b": 1}
    await end(simulator, "flow")
    document = shown(await simulator.engine.queries.flow("flow"))
    assert (document["status"], document["outputs"]) == ("completed", {"of": "a"})
    assert document["finished_at"] is not None
    with pytest.raises(UnknownFlow):
        await simulator.engine.queries.flow("another")


async def test_flows_page_by_page(simulator: Simulator) -> None:
    for number in range(7):
        await start(simulator, f"flow-{number}", labels={"parity": str(number % 2)})
    await end(simulator, "flow-3")
    queries = simulator.engine.queries
    everything = await pages(lambda cursor: queries.flows(cursor=cursor, limit=3), "flows")
    assert [flow["flow_id"] for flow in everything] == [f"flow-{number}" for number in range(6, -1, -1)]
    odd = await pages(lambda cursor: queries.flows(cursor=cursor, limit=1, label=("parity", "1")), "flows")
    assert [flow["flow_id"] for flow in odd] == ["flow-5", "flow-3", "flow-1"]
    for status, count in {"completed": 1, "active": 6, "failed": 0}.items():
        assert len(await pages(lambda cursor, s=status: queries.flows(cursor=cursor, status=s), "flows")) == count  # type: ignore[misc]
    assert len(shown(await queries.flows(goal="b"))["flows"]) == 0
    assert len(shown(await queries.flows(since_ms=simulator.clock() + 1))["flows"]) == 0


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "٣", "9" * 19])
async def test_a_cursor_that_no_list_has_given_is_refused(simulator: Simulator, cursor: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        await simulator.engine.queries.flows(cursor=cursor)
    assert caught.value.details["errors"][0]["place"] == "cursor"


async def test_a_result_is_told_at_once_when_it_is_there(simulator: Simulator) -> None:
    await start(simulator, "flow")
    document, final = await simulator.engine.queries.result("flow", 0)
    assert (shown(document)["status"], final) == ("active", False)
    await end(simulator, "flow")
    document, final = await simulator.engine.queries.result("flow", 60_000)
    assert shown(document) == {"flow_id": "flow", "status": "completed", "outputs": {"of": "a"}, "error": None}
    assert final
    with pytest.raises(UnknownFlow):
        await simulator.engine.queries.result("another", 0)


async def test_a_result_is_waited_for(simulator: Simulator) -> None:
    await start(simulator, "flow")
    waiting = asyncio.create_task(simulator.engine.queries.result("flow", 60_000))
    await simulator.network.answer(simulator.network.waiting()[0], answered())  # wakes, but is no result
    await end(simulator, "flow", success=False)
    document, final = await asyncio.wait_for(waiting, 10)
    assert (shown(document)["status"], final) == ("failed", True)


async def test_no_read_waits_for_an_engine_that_stops(simulator: Simulator) -> None:
    await start(simulator, "flow")
    waiting = asyncio.create_task(simulator.engine.queries.result("flow", 60_000))
    await asyncio.sleep(0)
    simulator.engine.end_waiting()
    _, final = await asyncio.wait_for(waiting, 10)
    assert not final


async def test_the_journal_of_a_flow(simulator: Simulator) -> None:
    await start(simulator, "flow")
    await start(simulator, "other")
    await end(simulator, "flow")
    queries = simulator.engine.queries
    events = await pages(lambda cursor: queries.events("flow", cursor=cursor, limit=2), "events")
    assert [event["type"] for event in events] == [
        "flow_started",
        "step_started",
        "work_created",
        "work_dispatched",
        "work_succeeded",
        "step_completed",
        "flow_completed",
    ]
    assert shown(await queries.events("flow", cursor=str(events[-1]["seq"])))["events"] == []
    with pytest.raises(UnknownFlow):
        await queries.events("another")


async def test_the_journal_of_all_flows_and_of_one_from_a_place_on(simulator: Simulator) -> None:
    await start(simulator, "one")
    await start(simulator, "two")
    queries = simulator.engine.queries
    everything, more = await queries.journal_after(0, None, 100)
    assert not more
    assert [seq for seq, _, _ in everything] == [*range(64, 68), *range(128, 132)]
    assert await queries.last_seq() == 191
    assert await queries.journal_after(191, None, 100) == ([], False)
    page = await queries.journal_after(128, "two", 2)
    assert ([seq for seq, _, _ in page.events], page.more) == ([129, 130], True)
    seq, kind, document = everything[0]
    assert (seq, kind) == (64, "flow_started")
    assert orjson.loads(document)["flow_id"] == "one"


async def test_work_page_by_page_and_by_filter(simulator: Simulator) -> None:
    for number in range(3):
        await start(simulator, f"flow-{number}", "a", "b")
    await end(simulator, "flow-0")
    queries = simulator.engine.queries
    everything = await pages(lambda cursor: queries.work_items(cursor=cursor, limit=2), "work")
    assert [(work["flow_id"], work["step_id"]) for work in everything] == [
        (f"flow-{number}", step) for number in range(3) for step in "ab"
    ]
    assert len(shown(await queries.work_items(status="active"))["work"]) == 4
    assert len(shown(await queries.work_items(step_id="b", status="succeeded"))["work"]) == 1
    assert shown(await queries.work_items(overdue=True))["work"] == []
    simulator.clock.advance(7_000)
    overdue = shown(await queries.work_items(overdue=True))["work"]
    assert {(work["flow_id"], work["step_id"]) for work in overdue} == {("flow-1", "b"), ("flow-2", "b")}


async def test_one_work_item_with_its_attempts(simulator: Simulator) -> None:
    await start(simulator, "flow")
    work_id = simulator.network.calls[0].metadata["work_id"]
    document = shown(await simulator.engine.queries.work_item(work_id))
    assert (document["work_id"], [each["outcome"] for each in document["attempts"]]) == (work_id, ["waiting"])
    with pytest.raises(UnknownWork):
        await simulator.engine.queries.work_item("another")


async def test_what_the_holder_of_a_receipt_sees(simulator: Simulator) -> None:
    await start(simulator, "flow")
    work_id = simulator.network.calls[0].metadata["work_id"]
    seen = await simulator.engine.queries.receipt(work_id)
    assert set(seen) == {"status", "attempt", "deadline_at", "recorded_at", "cancel_requested"}
    assert (seen["status"], seen["attempt"], seen["recorded_at"]) == ("active", 1, None)
    with pytest.raises(UnknownReceipt):
        await simulator.engine.queries.receipt("another")


async def test_a_receipt_is_of_one_flow_and_step(simulator: Simulator) -> None:
    await start(simulator, "flow")
    [call] = simulator.network.calls
    engine = simulator.engine
    assert engine.reports.work_of("flow", "a", call.token) == call.metadata["work_id"]
    for flow_id, step_id, token in [("other", "a", call.token), ("flow", "b", call.token), ("flow", "a", "forged.x")]:
        with pytest.raises(UnknownReceipt):
            engine.reports.work_of(flow_id, step_id, token)


async def test_a_receipt_of_work_that_is_not_there(simulator: Simulator) -> None:
    """A token may be good and its database another: restored from before, say."""
    with pytest.raises(UnknownReceipt):
        await simulator.engine.reports.complete("nowhere", StepResult(success=True))
    with pytest.raises(UnknownReceipt):
        await simulator.engine.reports.heartbeat("nowhere", Heartbeat())


async def test_figures_for_the_metrics(simulator: Simulator) -> None:
    await start(simulator, "one")
    simulator.clock.advance(1_500)
    await start(simulator, "two", "a", "b")
    await end(simulator, "two")
    queries = simulator.engine.queries
    states = await queries.open_work_by_state()
    assert (states["active"], states["pending"], states["not_completed"]) == (1, 0, 0)
    assert await queries.oldest_waiting_seconds() == {"a": 1.5}
    await simulator.engine.operations.refresh_metrics()
    assert b'counterfoil_oldest_waiting_seconds{step="a"} 1.5' in simulator.engine.metrics.render()[0]


async def test_health(simulator: Simulator, store_name: str) -> None:
    await start(simulator, "flow")
    health = await simulator.engine.operations.health()
    node = {"id": simulator.engine.context.node_id, "lease_held": True, "other_nodes": 0}
    shared = {"node": node} if store_name == "postgresql" else {}
    assert health == {"store": {"last_seq": 127, "backlog": 0}, "sweeps": {}, **shared}

    simulator.engine.sweep_progress.expect([SweepName.REQUEUE], 1_000, simulator.clock() - 20_001)
    with pytest.raises(Unavailable):
        await simulator.engine.operations.health()


READS: list[Callable[[Queries], Awaitable[Any]]] = [
    lambda queries: queries.steps(),
    lambda queries: queries.flow("flow"),
    lambda queries: queries.flows(),
    lambda queries: queries.result("flow", 0),
    lambda queries: queries.events("flow"),
    lambda queries: queries.work_items(),
    lambda queries: queries.receipt("work"),
]


@pytest.mark.parametrize("read", READS)
async def test_a_store_that_cannot_be_read_is_unavailable(
    simulator: Simulator, read: Callable[[Queries], Awaitable[Any]]
) -> None:
    by_hand(
        simulator.place,
        *(f"ALTER TABLE {table} RENAME TO {table}_away" for table in ("steps", "flows", "journal", "work")),
    )
    with pytest.raises(Unavailable):
        await read(simulator.engine.queries)


async def test_while_stopping_nothing_more_is_taken(simulator: Simulator) -> None:
    await start(simulator, "flow")
    work_id = simulator.network.calls[0].metadata["work_id"]
    await simulator.engine.stop(0)
    refused: list[CounterfoilError] = []
    for action in (
        simulator.engine.reports.complete(work_id, StepResult(success=True)),
        simulator.engine.reports.heartbeat(work_id, Heartbeat()),
        simulator.engine.flows.start(StartFlow(goals=["a"])),
        simulator.engine.flows.cancel("flow"),
        simulator.engine.steps.put("c", definition()),
    ):
        with pytest.raises(Unavailable) as caught:
            await action
        refused.append(caught.value)
    assert len(refused) == 5
    assert not simulator.engine.reports.take_completion(work_id, StepResult(success=True), lambda now: None, print)


async def test_signatures_need_a_secret(simulator: Simulator) -> None:
    with pytest.raises(InvalidStep) as caught:
        await simulator.engine.steps.put("signed", definition(require_signature=True))
    assert caught.value.details["errors"][0]["place"] == "require_signature"
    with pytest.raises(InvalidSignature):
        simulator.engine.reports.verify({}, b"", simulator.clock())


class StrictVerifier:
    def verify(self, headers: Any, body: bytes, now_ms: int) -> None:
        if headers.get("webhook-signature") != "good":
            raise InvalidSignature


async def test_a_step_that_wants_signatures_checks_them(place: Place) -> None:
    async with Simulator(place, verifier=StrictVerifier()) as simulator:
        engine = simulator.engine
        await engine.steps.put("a", definition(require_signature=True))
        await start(simulator, "flow")
        work_id = simulator.network.calls[0].metadata["work_id"]
        result = StepResult(success=True)
        with pytest.raises(InvalidSignature):
            await engine.reports.complete(work_id, result, lambda now: engine.reports.verify({}, b"", now))
        good = {"webhook-signature": "good"}
        completion = await engine.reports.complete(work_id, result, lambda now: engine.reports.verify(good, b"", now))
        assert completion.verdict == "accepted"


async def test_a_completion_can_be_taken_without_waiting_for_it(simulator: Simulator) -> None:
    await start(simulator, "flow")
    work_id = simulator.network.calls[0].metadata["work_id"]
    told: list[Any] = []
    for outputs in ({"a": 1}, {"a": 2}):
        result = StepResult(success=True, outputs=outputs)
        assert simulator.engine.reports.take_completion(work_id, result, lambda now: None, told.append)
    await simulator.engine.queries.result("flow", 10_000)
    await simulator.engine.commit.close()
    accepted, refused = told
    assert (accepted.verdict, accepted.recorded_text) == ("accepted", '"2027-01-15T08:00:00.000Z"')
    assert refused.code == "CONFLICTING_RESULT"
    text = simulator.engine.metrics.render()[0].decode()
    assert 'counterfoil_completions_total{verdict="accepted"} 1.0' in text
    assert 'counterfoil_completions_total{verdict="conflicting_result"} 1.0' in text


async def test_only_what_was_accepted_counts_for_the_callback_time(simulator: Simulator) -> None:
    """A repeat an hour later says nothing about how long the work took."""
    await simulator.engine.steps.put("a", definition(duplicate_status=200))
    await start(simulator, "flow")
    work_id = simulator.network.calls[0].metadata["work_id"]
    verdicts = [await simulator.engine.reports.complete(work_id, StepResult(success=True)) for _ in range(3)]
    assert [completion.verdict for completion in verdicts] == ["accepted", "duplicate", "duplicate"]
    assert b"counterfoil_callback_seconds_count 1.0" in simulator.engine.metrics.render()[0]
