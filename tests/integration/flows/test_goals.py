"""Flows with several goals: completed when all are, failed as soon as one is."""

from __future__ import annotations

import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.wire import Api

GOALS = ("one", "two", "three")


async def register(api: Api, endpoint: StepEndpoint, **definition: object) -> None:
    for goal in GOALS:
        await api.put_step(goal, endpoint.url(f"/{goal}"), **definition)


async def test_completed_when_every_goal_is(api: Api, endpoint: StepEndpoint) -> None:
    await register(api, endpoint)
    flow_id = await api.start(*GOALS, init={"a": 1})
    for number, goal in enumerate(GOALS):
        flow = await api.flow(flow_id)
        assert flow["status"] == "active"
        received = await endpoint.received(f"/{goal}")
        assert (received.metadata["step_id"], received.arguments) == (goal, {"a": 1})
        await api.succeed(received, **{goal: number})
        assert (await api.flow(flow_id))["steps"][goal]["status"] == "completed"
    final = await api.final(flow_id)
    assert (final["status"], final["outputs"]) == ("completed", {"one": 0, "two": 1, "three": 2})
    assert set((await api.flow(flow_id))["steps"]) == set(GOALS)


async def test_goals_run_at_the_same_time(api: Api, endpoint: StepEndpoint) -> None:
    await register(api, endpoint)
    flow_id = await api.start(*GOALS)
    received = [await endpoint.received(f"/{goal}") for goal in GOALS]
    assert len({each.token for each in received}) == 3
    assert len({each.metadata["idempotency_key"] for each in received}) == 3
    assert {each.metadata["flow_id"] for each in received} == {flow_id}


async def test_failed_as_soon_as_one_goal_fails(api: Api, endpoint: StepEndpoint) -> None:
    """The rest is cancelled: its workers are told, and late results are refused."""
    await register(api, endpoint, cancel_url=endpoint.url("/cancel"))
    flow_id = await api.start(*GOALS)
    received = {goal: await endpoint.received(f"/{goal}") for goal in GOALS}
    await api.succeed(received["one"], kept=True)
    (await api.complete(received["two"], {"success": False, "error": "broken"})).ok()
    final = await api.final(flow_id)
    assert final["status"] == "failed"
    assert "broken" in final["error"]["message"]
    assert final["error"]["step_id"] == "two"
    flow = await api.flow(flow_id)
    assert {goal: flow["steps"][goal]["status"] for goal in GOALS} == {
        "one": "completed",
        "two": "failed",
        "three": "cancelled",
    }
    assert flow["steps"]["three"]["work"][0]["status"] == "cancelled"
    (await api.complete(received["three"], {"success": True})).refused(400, "WORK_CANCELLED")
    assert (await api.post(received["three"].metadata["heartbeat_url"], {})).ok()["cancel_requested"] is True
    call = await endpoint.received("/cancel")
    assert call.body["metadata"]["step_id"] == "three"


async def test_a_goal_that_runs_out_of_retries_fails_the_flow(api: Api, endpoint: StepEndpoint) -> None:
    endpoint.answer("/two", Answer(503))
    await register(api, endpoint, work={"max_retries": 1, "init_backoff_ms": 1})
    flow_id = await api.start(*GOALS)
    assert (await api.final(flow_id))["status"] == "failed"
    steps = (await api.flow(flow_id))["steps"]
    assert [steps[goal]["status"] for goal in GOALS] == ["cancelled", "failed", "cancelled"]


async def test_cancel_ends_every_goal(api: Api, endpoint: StepEndpoint) -> None:
    await register(api, endpoint)
    flow_id = await api.start(*GOALS)
    received = {goal: await endpoint.received(f"/{goal}") for goal in GOALS}
    await api.succeed(received["one"])
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    steps = (await api.flow(flow_id))["steps"]
    assert [steps[goal]["status"] for goal in GOALS] == ["completed", "cancelled", "cancelled"]


@pytest.mark.parametrize("kinds", [("sync", "async"), ("async", "sync")])
async def test_sync_and_async_goals_in_one_flow(api: Api, endpoint: StepEndpoint, kinds: tuple[str, str]) -> None:
    for goal, kind in zip(GOALS, kinds, strict=False):
        await api.put_step(goal, endpoint.url(f"/{goal}"), kind=kind)
        if kind == "sync":
            endpoint.answer(f"/{goal}", Answer(body={"success": True, "outputs": {goal: "sync"}}))
    flow_id = await api.start(*GOALS[:2])
    waiting = GOALS[kinds.index("async")]
    await api.succeed(await endpoint.received(f"/{waiting}"), **{waiting: "async"})
    final = await api.final(flow_id)
    assert final["status"] == "completed"
    assert final["outputs"] == dict(zip(GOALS, kinds, strict=False))


async def test_results_of_all_goals_at_once(api: Api, endpoint: StepEndpoint) -> None:
    """The last two goals end in the same batch: the flow ends exactly once."""
    import asyncio

    await register(api, endpoint)
    for _ in range(5):
        before = len(endpoint.requests("/one"))
        flow_id = await api.start(*GOALS)
        received = [await endpoint.received(f"/{goal}", before + 1) for goal in GOALS]
        await asyncio.gather(*(api.succeed(each) for each in received))
        assert (await api.final(flow_id))["status"] == "completed"
        assert (await api.event_types(flow_id)).count("flow_completed") == 1
