"""JSON that is nested too deeply is refused at every door, and what was stored can always be read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from counterfoil.app import run_doctor
from counterfoil.domain.jsontext import MAX_DEPTH
from counterfoil.testing import Answer, StepEndpoint
from tests.by_hand import by_hand
from tests.integration.scenario import PATH, STEP, dispatched, place_of, run_sync
from tests.running import Node
from tests.sse import event_stream
from tests.wire import JSON, Api


def nested(depth: int) -> Any:
    """A value of so many levels."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 197, 198, 199, 200, 10_000])
async def test_a_completion_is_refused_or_read_back(api: Api, endpoint: StepEndpoint, depth: int) -> None:
    """The reproduction: 199 levels were answered 200, and from then on the journal could not be read."""
    flow_id, received = await dispatched(api, endpoint)
    brackets = depth - 2  # the result and its outputs are levels, too
    content = b'{"success": true, "outputs": {"a": %b%b}}' % (b"[" * brackets, b"]" * brackets)
    reply = await api.request("POST", received.webhook_url, data=content, headers=JSON)
    if depth > MAX_DEPTH:
        details = reply.refused(422, "INVALID_RESULT")
        assert details["errors"] == [{"place": "body", "message": "is nested too deeply: 100 levels are allowed"}]
        assert (await api.work(flow_id))["status"] == "active"
        await api.succeed(received)
    else:
        assert reply.ok()["status"] == "succeeded"
        assert (await api.work(flow_id))["outputs"] == {"a": nested(brackets)}
    await api.final(flow_id)
    await everything_can_be_read(api, flow_id)


DOORS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "init": ("POST", "/api/v1/flows", "INVALID_INPUT", {"goals": [STEP], "init": {"a": "DEEP"}}),
    "plan": ("POST", "/api/v1/plan", "INVALID_INPUT", {"goals": [STEP], "init": {"a": "DEEP"}}),
    "step": ("PUT", "/api/v1/steps/other", "INVALID_STEP", {"endpoint": "http://x", "labels": {"a": "DEEP"}}),
    "workflow": ("POST", "/api/v1/workflows", "INVALID_INPUT", {"workflow_name": "x", "metadata": {"a": "DEEP"}}),
    "schedule": ("PUT", "/api/v1/schedules/s", "INVALID_SCHEDULE", {"every_ms": 1000, "flow": {"init": "DEEP"}}),
    "policy": ("PUT", "/api/v1/policies/p", "INVALID_POLICY", {"conditions": "DEEP"}),
    "subscription": ("PUT", "/api/v1/subscriptions/s", "INVALID_SUBSCRIPTION", {"url": "http://x", "events": "DEEP"}),
    "approval": ("POST", "/api/v1/approvals/x/approve", "INVALID_INPUT", {"comment": "DEEP"}),
}


@pytest.mark.parametrize("depth", [MAX_DEPTH, 199, 10_000])
async def test_every_other_door_refuses_it(api: Api, endpoint: StepEndpoint, depth: int) -> None:
    await api.put_step(STEP, endpoint.url(PATH))
    for door, (method, path, code, body) in DOORS.items():
        content = json.dumps(body).replace('"DEEP"', "[" * depth + "]" * depth).encode()
        reply = await api.request(method, path, data=content, headers=JSON)
        assert (reply.status, reply.code) == (422, code), (door, reply.content)
        assert "nested too deeply" in reply.content.decode(), door


async def test_heartbeats_and_the_gate_refuse_it(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint)
    deep = json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    (await api.post(received.metadata["heartbeat_url"], {"message": deep})).refused(422, "INVALID_RESULT")
    workflow_id = (await api.post("/api/v1/workflows", {"workflow_name": "x"})).ok(201)["workflow_id"]
    gate = f"/api/v1/workflows/{workflow_id}/steps/s"
    assert (await api.post(f"{gate}/gate", {"step_input": {"a": deep}})).status == 422
    (await api.post(f"{gate}/gate", {"step_input": {"a": deep[0][0]}})).ok()
    assert (await api.post(f"{gate}/complete", {"output": {"a": deep}})).status == 422
    assert (await api.post(f"{gate}/complete", {"output": {"a": deep[0][0]}})).status == 204
    steps = (await api.get(f"/api/v1/workflows/{workflow_id}")).ok()["steps"]
    assert len(steps) == 1


async def test_the_answer_of_a_sync_step(api: Api, endpoint: StepEndpoint) -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    endpoint.answer(PATH, Answer(body=f'{{"success": true, "outputs": {{"a": {deep}}}}}'.encode()))
    flow_id = await run_sync(api, endpoint)
    flow = await api.final(flow_id)
    assert (flow["status"], flow["error"]["code"]) == ("failed", "INVALID_RESPONSE")
    assert "nested too deeply" in flow["error"]["message"]
    await everything_can_be_read(api, flow_id)


async def test_a_database_that_holds_deeper_values_already_is_read(
    node: Node, api: Api, endpoint: StepEndpoint
) -> None:
    """As an engine wrote it that took 200 levels: every reader and the doctor can go on with it."""
    flow_id, received = await dispatched(api, endpoint)
    await api.succeed(received, a="DEEP")
    await api.final(flow_id)
    brackets = "[" * 198 + "]" * 198
    place = place_of(node)
    for table, column in (("journal", "events"), ("work", "result"), ("flow_steps", "outputs")):
        by_hand(place, f"UPDATE {table} SET {column} = replace({column}, '\"DEEP\"', '{brackets}')")
    work_id = (await api.work(flow_id))["work_id"]
    expected = {"a": nested(198)}
    assert (await api.get(f"/api/v1/work/{work_id}")).ok()["outputs"] == expected
    assert (await api.flow(flow_id))["outputs"] == expected
    await everything_can_be_read(api, flow_id)
    assert run_doctor(node.settings) == []
    details = (await api.complete(received, {"success": True, "outputs": {"a": 1}})).refused(400, "CONFLICTING_RESULT")
    assert details["same_result"] is False


async def everything_can_be_read(api: Api, flow_id: str) -> None:
    for path in ("", "/events", "/result"):
        (await api.get(f"/api/v1/flows/{flow_id}{path}")).ok()
    work_id = (await api.work(flow_id))["work_id"]
    for path in ("/api/v1/flows", "/api/v1/work", f"/api/v1/work/{work_id}"):
        (await api.get(path)).ok()
    journal = await api.events(flow_id)
    for stream in (f"/api/v1/flows/{flow_id}/stream", "/api/v1/stream"):
        async with event_stream(api.session, f"{api.url}{stream}", "0") as events:
            assert [(await events.next()).data["seq"] for _ in journal] == [event["seq"] for event in journal]
