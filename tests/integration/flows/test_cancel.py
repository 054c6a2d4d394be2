"""Section 3: cancelling a flow, and telling the worker."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import elapsed
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Connect, StartNode
from tests.wire import Api, moment


async def cancel(api: Api, flow_id: str) -> None:
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()


async def test_cancel(api: Api, endpoint: StepEndpoint) -> None:
    """Open work becomes cancelled, with the step and the flow, and each says so once in the journal."""
    flow_id, _ = await dispatched(api, endpoint)
    body = (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()
    assert (body["flow_id"], body["status"]) == (flow_id, "cancelled")
    flow = await api.flow(flow_id)
    assert (flow["status"], flow["steps"][STEP]["status"]) == ("cancelled", "cancelled")
    work = flow["steps"][STEP]["work"][0]
    assert (work["status"], work["deadline_at"], work["next_attempt_at"]) == ("cancelled", None, None)
    moment(flow["finished_at"])
    kinds = await api.event_types(flow_id)
    assert [kinds.count(kind) for kind in ("work_cancelled", "step_cancelled", "flow_cancelled")] == [1, 1, 1]
    assert (await api.final(flow_id))["status"] == "cancelled"


async def test_it_is_idempotent(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    await cancel(api, flow_id)
    before = await api.flow(flow_id), await api.events(flow_id)
    for _ in range(3):
        assert (await api.post(f"/api/v1/flows/{flow_id}/cancel")).ok()["status"] == "cancelled"
    assert (await api.flow(flow_id), await api.events(flow_id)) == before


async def test_it_takes_an_empty_json_body_too(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    assert (await api.post(f"/api/v1/flows/{flow_id}/cancel", {})).ok()["status"] == "cancelled"


@pytest.mark.parametrize("success", [True, False])
async def test_a_flow_that_has_ended_cannot_be_cancelled(api: Api, endpoint: StepEndpoint, success: bool) -> None:
    flow_id, received = await dispatched(api, endpoint)
    (await api.complete(received, {"success": success})).ok()
    before = await api.flow(flow_id)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel")).refused(409, "FLOW_FINAL")
    assert await api.flow(flow_id) == before


async def test_an_unknown_flow(api: Api) -> None:
    (await api.post("/api/v1/flows/nobody/cancel")).refused(404, "UNKNOWN_FLOW")


@pytest.mark.parametrize("state", ["pending", "not_completed"])
async def test_work_that_waits_is_never_sent_after_a_cancel(api: Api, endpoint: StepEndpoint, state: str) -> None:
    flow_id, received = await dispatched(api, endpoint, work={"parallelism": 1, "init_backoff_ms": 300})
    if state == "pending":
        waiting = await api.start(STEP)
        await cancel(api, waiting)
        await api.succeed(received)
        assert (await api.work(waiting))["status"] == "cancelled"
    else:
        (await api.complete(received, {"success": False, "retriable": True})).ok()
        await cancel(api, flow_id)
    await elapsed(0.6)
    assert len(endpoint.requests(PATH)) == 1


async def test_a_cancel_during_a_dispatch_stands(api: Api, endpoint: StepEndpoint) -> None:
    """The answer of the endpoint comes too late to change anything."""
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": False, "error": "late"}, until=release))
    flow_id, _ = await dispatched(api, endpoint, acknowledged=False)
    await cancel(api, flow_id)
    before = await api.events(flow_id)
    release.set()
    await elapsed(0.2)
    assert (await api.work(flow_id))["status"] == "cancelled"
    assert [event for event in await api.events(flow_id) if event not in before] == []


async def test_a_cancelled_sync_call(api: Api, endpoint: StepEndpoint) -> None:
    release = asyncio.Event()
    endpoint.answer(PATH, Answer(body={"success": True}, until=release))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    flow_id = await api.start(STEP)
    await endpoint.received(PATH)
    await cancel(api, flow_id)
    release.set()
    await elapsed(0.2)
    assert (await api.flow(flow_id))["status"] == "cancelled"


# ------------------------------------------------------------------------------------------- cancel_url


async def test_the_cancel_url_is_called(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint, cancel_url=endpoint.url("/cancel"))
    await cancel(api, flow_id)
    call = await endpoint.received("/cancel")
    assert call.method == "POST"
    text = orjson.dumps(call.body).decode()
    assert flow_id in text
    assert received.metadata["idempotency_key"] in text
    await api.until_event(flow_id, "cancel_delivered")
    await elapsed(0.3)
    assert len(endpoint.requests("/cancel")) == 1


@pytest.mark.parametrize("bad", [Answer(503), Answer(fault="cut"), Answer(429)])
async def test_the_cancel_url_is_called_with_retries(api: Api, endpoint: StepEndpoint, bad: Answer) -> None:
    endpoint.answer("/cancel", bad, bad, Answer())
    flow_id, _ = await dispatched(api, endpoint, cancel_url=endpoint.url("/cancel"), work={"init_backoff_ms": 20})
    await cancel(api, flow_id)
    await endpoint.received("/cancel", 3)
    await api.until_event(flow_id, "cancel_delivered")
    assert (await api.flow(flow_id))["status"] == "cancelled"
    await elapsed(0.3)
    assert len(endpoint.requests("/cancel")) == 3


async def test_a_cancel_url_that_never_answers_well_is_given_up(api: Api, endpoint: StepEndpoint) -> None:
    """The flow is cancelled all the same, and the journal says that the worker does not know."""
    endpoint.answer("/cancel", Answer(404))
    flow_id, _ = await dispatched(api, endpoint, cancel_url=endpoint.url("/cancel"), work={"max_retries": 1})
    await cancel(api, flow_id)
    await api.until_event(flow_id, "cancel_undelivered")
    assert (await api.flow(flow_id))["status"] == "cancelled"


async def test_the_cancel_url_is_not_called_for_work_that_was_never_sent(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint, cancel_url=endpoint.url("/cancel"), work={"parallelism": 1})
    waiting = await api.start(STEP)
    await cancel(api, waiting)
    await api.succeed(received)
    await elapsed(0.3)
    assert endpoint.requests("/cancel") == []


async def test_the_cancel_url_is_called_after_a_restart(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """A cancellation that was not delivered yet survives a stop of the engine."""
    endpoint.answer("/cancel", Answer(503), Answer())
    node = await start_node()
    api = connect(node)
    flow_id, _ = await dispatched(
        api, endpoint, cancel_url=endpoint.url("/cancel"), work={"init_backoff_ms": 800, "max_backoff_ms": 800}
    )
    await cancel(api, flow_id)
    await endpoint.received("/cancel")
    await node.stop()
    api = connect(await start_node())
    await endpoint.received("/cancel", 2)
    await api.until_event(flow_id, "cancel_delivered")


async def test_other_flows_are_not_touched(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(api, endpoint)
    other, received = await dispatched(api, endpoint)
    await cancel(api, flow_id)
    await api.succeed(received)
    assert (await api.final(other))["status"] == "completed"
