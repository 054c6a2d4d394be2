"""Retries: how long the engine waits, how exactly, and how often it tries."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.integration.scenario import PATH, STEP
from tests.running import Connect, StartNode
from tests.wire import Api, moment

BUSY = Answer(503)


async def planned_delays(api: Api, flow_id: str, count: int) -> list[float]:
    """The delay in milliseconds that each of the first not-completed events planned."""
    await api.until_event(flow_id, "work_not_completed", count)
    events = [event for event in await api.events(flow_id) if event["type"] == "work_not_completed"]
    return [
        (moment(event["data"]["next_attempt_at"]) - moment(event["at"])).total_seconds() * 1000
        for event in events[:count]
    ]


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ({"backoff_type": "fixed", "init_backoff_ms": 10}, [10, 10, 10, 10]),
        ({"backoff_type": "linear", "init_backoff_ms": 10}, [10, 20, 30, 40]),
        ({"backoff_type": "exponential", "init_backoff_ms": 10}, [10, 20, 40, 80]),
        ({"backoff_type": "exponential", "init_backoff_ms": 10, "max_backoff_ms": 25}, [10, 20, 25, 25]),
        ({"backoff_type": "linear", "init_backoff_ms": 10, "max_backoff_ms": 25}, [10, 20, 25, 25]),
        ({"backoff_type": "fixed", "init_backoff_ms": 30, "max_backoff_ms": 25}, [25, 25, 25, 25]),
        ({"backoff_type": "exponential", "init_backoff_ms": 0}, [0, 0, 0, 0]),
    ],
)
async def test_backoff_types(api: Api, endpoint: StepEndpoint, work: dict[str, Any], expected: list[int]) -> None:
    """The delay follows the rule, and the endpoint sees no attempt before its time."""
    endpoint.answer(PATH, BUSY)
    await api.put_step(STEP, endpoint.url(PATH), work={"max_retries": 4, **work})
    flow_id = await api.start(STEP)
    assert (await api.final(flow_id))["status"] == "failed"
    assert await planned_delays(api, flow_id, 4) == pytest.approx(expected, abs=1)
    arrivals = [received.at for received in endpoint.requests(PATH)]
    assert len(arrivals) == 5
    for (before, after), delay in zip(pairwise(arrivals), expected, strict=True):
        assert after - before >= delay / 1000 - 0.002


async def test_jitter_draws_between_half_and_all_of_the_delay(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, BUSY)
    work = {"jitter": True, "init_backoff_ms": 100_000, "max_backoff_ms": 100_000}
    await api.put_step(STEP, endpoint.url(PATH), work=work)
    flows = [await api.start(STEP) for _ in range(40)]
    delays = [(await planned_delays(api, flow_id, 1))[0] for flow_id in flows]
    assert all(50_000 <= delay <= 100_000 for delay in delays)
    assert min(delays) < 70_000
    assert max(delays) > 80_000
    assert len(set(delays)) > 30


@pytest.mark.parametrize("cause", ["answer", "report"])
async def test_200_ms_are_about_200_ms(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, cause: str
) -> None:
    """A due time known in advance wakes the engine then; the sweep's interval is only the safety net."""
    api = connect(await start_node(sweep_interval_ms=10_000))
    endpoint.answer(PATH, *((BUSY, BUSY, Answer()) if cause == "answer" else (Answer(),)))
    await api.put_step(STEP, endpoint.url(PATH), work={"backoff_type": "fixed", "init_backoff_ms": 200})
    flow_id = await api.start(STEP)
    for attempt in (1, 2):
        received = await endpoint.received(PATH, attempt)
        if cause == "report":
            (await api.complete(received, {"success": False, "retriable": True, "attempt": attempt})).ok()
    third = await endpoint.received(PATH, 3)
    arrivals = [received.at for received in endpoint.requests(PATH)]
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert all(0.2 <= gap < 0.8 for gap in gaps), gaps
    await api.succeed(third)
    assert (await api.final(flow_id))["status"] == "completed"


async def test_a_nearer_due_time_wakes_the_engine_although_a_far_one_waits(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """The alarm is set for the nearest due time, whichever was planned first."""
    api = connect(await start_node(sweep_interval_ms=10_000))
    endpoint.answer("/far", Answer(503, headers={"Retry-After": "9"}))
    endpoint.answer("/near", BUSY, Answer())
    await api.put_step("far", endpoint.url("/far"))
    await api.put_step("near", endpoint.url("/near"), work={"init_backoff_ms": 150})
    far = await api.start("far")
    await api.until_work(far, "not_completed")
    await api.start("near")
    first, second = await endpoint.received("/near"), await endpoint.received("/near", 2)
    assert 0.15 <= second.at - first.at < 0.8


async def test_many_due_at_once_are_all_sent(api: Api, endpoint: StepEndpoint) -> None:
    async def busy_at_first(received: Received) -> Answer:
        return BUSY if received.metadata["attempt"] == 1 else Answer()

    endpoint.answer(PATH, busy_at_first)
    await api.put_step(STEP, endpoint.url(PATH), work={"backoff_type": "fixed", "init_backoff_ms": 100})
    for _ in range(100):
        await api.start(STEP)
    await endpoint.received(PATH, 200)
    attempts = [received.metadata["attempt"] for received in endpoint.requests(PATH)]
    assert sorted(attempts) == [1] * 100 + [2] * 100


@pytest.mark.parametrize("max_retries", [0, 2])
async def test_retries_end(api: Api, endpoint: StepEndpoint, max_retries: int) -> None:
    endpoint.answer(PATH, BUSY)
    await api.put_step(STEP, endpoint.url(PATH), work={"max_retries": max_retries, "init_backoff_ms": 1})
    flow_id = await api.start(STEP)
    final = await api.final(flow_id)
    work = await api.work(flow_id)
    assert (final["status"], work["status"], work["attempt"]) == ("failed", "failed", max_retries + 1)
    assert len(endpoint.requests(PATH)) == max_retries + 1
    assert [received.metadata["attempt"] for received in endpoint.requests(PATH)] == list(range(1, max_retries + 2))


async def test_minus_one_retries_go_on(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, *([BUSY] * 20), Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"max_retries": -1, "init_backoff_ms": 0})
    flow_id = await api.start(STEP)
    await api.succeed(await endpoint.received(PATH, 21))
    assert (await api.final(flow_id))["status"] == "completed"
    assert (await api.work(flow_id))["attempt"] == 21


async def test_work_rules_are_inherited_one_by_one(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A step that sets one field keeps the engine's defaults for the others."""
    work = {"max_retries": 2, "init_backoff_ms": 7, "backoff_type": "linear", "jitter": False}
    api = connect(await start_node(work=work))
    endpoint.answer(PATH, BUSY)
    reply = await api.request(
        "PUT", f"/api/v1/steps/{STEP}", json={"endpoint": endpoint.url(PATH), "work": {"deadline_ms": 5000}}
    )
    assert reply.status == 201
    flow_id = await api.start(STEP)
    assert (await api.final(flow_id))["status"] == "failed"
    assert await planned_delays(api, flow_id, 2) == pytest.approx([7, 14], abs=1)
    assert len(endpoint.requests(PATH)) == 3


async def test_a_step_that_was_deleted_is_still_retried_for_flows_that_run(api: Api, endpoint: StepEndpoint) -> None:
    """A flow keeps the definition that it was started with."""
    endpoint.answer(PATH, BUSY, Answer())
    await api.put_step(STEP, endpoint.url(PATH), work={"init_backoff_ms": 100})
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    assert (await api.request("DELETE", f"/api/v1/steps/{STEP}")).status in (200, 204)
    await api.succeed(await endpoint.received(PATH, 2))
    assert (await api.final(flow_id))["status"] == "completed"
