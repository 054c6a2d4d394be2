"""The two clocks: the acknowledgement and the callback. Silence is never for ever."""

from __future__ import annotations

import pytest

from counterfoil.testing import Answer, MovableClock, StepEndpoint
from tests.eventually import elapsed, eventually
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Connect, StartNode
from tests.wire import Api, moment

SHORT = {"deadline_ms": 500, "init_backoff_ms": 10}
"""Long enough that a busy machine sends the attempt before it has run out: afterwards it would not."""


async def test_silence_past_the_deadline_is_sent_again(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, first = await dispatched(api, endpoint, work=SHORT)
    second = await endpoint.received(PATH, 2)
    assert second.at - first.at >= 0.4
    assert second.metadata["attempt"] == 2
    assert second.token == first.token
    assert moment(second.metadata["deadline_at"]) > moment(first.metadata["deadline_at"])
    event = await api.until_event(flow_id, "work_not_completed")
    assert (event["data"]["delivery"], event["data"]["cause"]) == ("answered", "deadline_passed")
    await api.succeed(second)
    assert (await api.final(flow_id))["status"] == "completed"


async def test_silence_to_the_end_fails(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint, work={**SHORT, "max_retries": 1})
    assert (await api.final(flow_id))["status"] == "failed"
    assert len(endpoint.requests(PATH)) == 2
    details = (await api.complete(received, {"success": True})).refused(400, "CONFLICTING_RESULT")
    assert (details["status"], details["same_result"]) == ("failed", False)


async def test_a_late_result_is_accepted_while_the_item_waits(api: Api, endpoint: StepEndpoint) -> None:
    work = {**SHORT, "init_backoff_ms": 60_000, "max_backoff_ms": 60_000}
    flow_id, received = await dispatched(api, endpoint, work=work)
    await api.until_work(flow_id, "not_completed")
    await api.succeed(received, late=True)
    assert (await api.final(flow_id))["outputs"] == {"late": True}
    assert len(endpoint.requests(PATH)) == 1


async def test_heartbeats_hold_the_deadline_off(api: Api, endpoint: StepEndpoint) -> None:
    """As long as the worker shows life, it is not sent again."""
    flow_id, received = await dispatched(api, endpoint, work={"deadline_ms": 1000})
    for _ in range(5):
        await elapsed(0.3)
        (await api.post(received.metadata["heartbeat_url"], {})).ok()
    assert len(endpoint.requests(PATH)) == 1
    assert (await api.work(flow_id))["attempt"] == 1
    await api.succeed(received)


async def test_the_heartbeat_timeout_is_shorter_than_the_deadline(api: Api, endpoint: StepEndpoint) -> None:
    """With heartbeat_timeout_ms set, silence is noticed long before the deadline."""
    work = {"deadline_ms": 3_600_000, "heartbeat_timeout_ms": 600, "init_backoff_ms": 10}
    flow_id, first = await dispatched(api, endpoint, work=work)
    for _ in range(3):
        await elapsed(0.25)
        (await api.post(first.metadata["heartbeat_url"], {})).ok()
    assert len(endpoint.requests(PATH)) == 1
    second = await endpoint.received(PATH, 2)
    assert second.at - first.at >= 1.3
    event = await api.until_event(flow_id, "work_not_completed")
    assert (event["data"]["delivery"], event["data"]["cause"]) == ("answered", "deadline_passed")
    await api.succeed(second)


async def test_a_short_deadline_is_kept_between_sweeps(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """Deadlines wake the engine by themselves too."""
    api = connect(await start_node(sweep_interval_ms=10_000))
    _, first = await dispatched(api, endpoint, work=SHORT)
    second = await endpoint.received(PATH, 2)
    assert 0.4 <= second.at - first.at < 2


async def test_an_extended_deadline_is_kept_between_sweeps(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """After a heartbeat moved the deadline, the engine wakes at the new one."""
    api = connect(await start_node(sweep_interval_ms=10_000))
    _, first = await dispatched(api, endpoint, work={**SHORT, "deadline_ms": 800})
    await elapsed(0.3)
    (await api.post(first.metadata["heartbeat_url"], {})).ok()
    second = await endpoint.received(PATH, 2)
    assert 1.1 <= second.at - first.at < 2.5


async def test_no_acknowledgement_in_time(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer(PATH, Answer(fault="silent"), Answer())
    work = {"ack_timeout_ms": 200, "init_backoff_ms": 10}
    flow_id, first = await dispatched(api, endpoint, acknowledged=False, work=work)
    second = await endpoint.received(PATH, 2)
    assert 0.2 <= second.at - first.at < 1.5
    await api.succeed(second)
    assert (await api.final(flow_id))["status"] == "completed"


@pytest.mark.parametrize("hours", [2])
async def test_the_default_deadline_is_an_hour(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, hours: int
) -> None:
    """With the clock moved by hours, the sweep finds the silent worker."""
    clock = MovableClock()
    api = connect(await start_node(clock=clock))
    flow_id, first = await dispatched(api, endpoint)
    await elapsed(0.3)
    assert (await api.work(flow_id))["status"] == "active"
    clock.advance(hours=hours)
    second = await endpoint.received(PATH, 2)
    assert second.metadata["attempt"] == 2
    gap = moment(second.metadata["deadline_at"]) - moment(first.metadata["deadline_at"])
    assert gap.total_seconds() >= hours * 3600


async def test_a_far_retry_is_found_when_the_clock_says_so(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock=clock))
    endpoint.answer(PATH, Answer(503, headers={"Retry-After": "3000"}), Answer())
    await api.put_step(STEP, endpoint.url(PATH))
    flow_id = await api.start(STEP)
    await api.until_work(flow_id, "not_completed")
    clock.advance(minutes=49)
    await elapsed(0.5)
    assert len(endpoint.requests(PATH)) == 1
    clock.advance(minutes=2)
    await endpoint.received(PATH, 2)


async def test_overdue_work_is_listed(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    """Work that is overdue can be found, even while no sweep has looked yet."""
    clock = MovableClock()
    api = connect(await start_node(clock=clock, sweep_interval_ms=60_000))
    flow_id, _ = await dispatched(api, endpoint, work={"deadline_ms": 600_000})
    work_id = (await api.work(flow_id))["work_id"]
    assert (await api.get("/api/v1/work", overdue="true")).ok()["work"] == []
    clock.advance(minutes=11)

    async def listed() -> bool:
        found = (await api.get("/api/v1/work", overdue="true")).ok()["work"]
        return [item["work_id"] for item in found] == [work_id]

    await eventually(listed)
