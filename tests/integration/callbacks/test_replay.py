"""Kept bodies, replay, and completion by an operator: the same decisions as at the webhook."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.by_hand import by_hand
from tests.integration.callbacks.inbox import FORGED, callbacks
from tests.integration.scenario import STEP, dispatched, place_of, webhook_path
from tests.running import Connect, Node, StartNode
from tests.wire import Api

SUCCESS = {"success": True, "outputs": {"n": 1}}
SIGNING = {"signing_secret": "whsec_c2VjcmV0"}


async def detail(api: Api, callback: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await api.get(f"/api/v1/callbacks/{callback['callback_id']}")).ok()
    return found


@pytest.mark.both_paths
@pytest.mark.parametrize("keep", [True, "all"])
async def test_with_all_bodies_an_accepted_callback_has_everything(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, keep: Any
) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": keep}))
    flow_id, received = await dispatched(api, endpoint)
    await api.post(f"{received.webhook_url}/heartbeat", {"progress": 0.5})
    await api.complete(received, SUCCESS)
    await api.complete(received, {"success": True})
    found = await callbacks(api, flow=flow_id)
    assert [each["verdict"] for each in found] == ["CONFLICTING_RESULT", "accepted", "accepted"]
    assert all(each["body_kept"] and each["source"] == "127.0.0.1" and each["digest"] for each in found)
    bodies = [orjson.loads((await detail(api, each))["body"]) for each in found]
    assert bodies == [{"success": True}, SUCCESS, {"progress": 0.5}]
    assert [each["size"] for each in found] == [len(orjson.dumps(body)) for body in bodies]


async def test_without_the_setting_no_body_is_kept(node: Node, api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(api, endpoint)
    await api.complete(received, SUCCESS)
    await api.complete(received, SUCCESS)
    for each in await callbacks(api, flow=flow_id):
        replay = await api.post(f"/api/v1/callbacks/{each['callback_id']}/replay")
        replay.refused(409, "CALLBACK_NOT_REPLAYABLE")
        assert "keep_bodies" in replay.body["error"]["message"]
    assert by_hand(place_of(node), "SELECT body FROM callbacks") == [(None,)]


async def test_only_refused_bodies_up_to_a_size_that_are_text(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    node = await start_node(callbacks={"keep_bodies": "refused", "body_bytes": 40})
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    path, json = webhook_path(received), {"Content-Type": "application/json"}
    texts = (b'{"success": 1}', b'{"success": 1, "error": "%s"}' % (b"x" * 40), b"\xff", b"\0", "é".encode())
    for text in texts:
        await api.request("POST", path, data=text, headers=json)
    await api.complete(received, SUCCESS)
    found = await callbacks(api, flow=flow_id)
    assert [(await detail(api, each))["body"] for each in reversed(found)] == [
        *('{"success": 1}', None, None, None, "é"),
        None,
    ]
    assert all(each["digest"] for each in found[1:])


async def test_receipts_in_kept_bodies_are_redacted(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    node = await start_node(callbacks={"keep_bodies": "all"})
    api = connect(node)
    flow_id, received = await dispatched(api, endpoint)
    path, json, token = webhook_path(received), {"Content-Type": "application/json"}, received.token
    escaped = "".join(f"\\u{ord(each):04x}" for each in token)
    for text in (
        f'{{"success": 1, "error": "{received.webhook_url}"}}',
        f'{{"success": 1, "error": "{escaped}"}}',
        f'{{"success": 1, "error": "{escaped}',
        f'{{"success": 1, "error": "{token.replace(".", "%2E")}',
        token,
    ):
        await api.request("POST", path, data=text.encode(), headers=json)
    await api.complete(received, {"success": True, "outputs": {"url": received.webhook_url}})
    found = await callbacks(api, flow=flow_id)
    assert len(found) == 6
    for each in found:
        body = (await detail(api, each))["body"]
        assert "[redacted]" in body
        assert token.partition(".")[2] not in body
    assert token.partition(".")[2] not in repr(by_hand(place_of(node), "SELECT * FROM callbacks"))


async def test_a_refused_callback_is_decided_again(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    """The signature was wrong: the operator has looked at the body, and replays it."""
    api = connect(await start_node(callbacks={"keep_bodies": "refused"}, **SIGNING))
    flow_id, received = await dispatched(api, endpoint, require_signature=True)
    (await api.complete(received, SUCCESS)).refused(401, "INVALID_SIGNATURE")
    [found] = await callbacks(api, flow=flow_id)
    answer = (await api.post(f"/api/v1/callbacks/{found['callback_id']}/replay")).ok()
    assert answer | {"recorded_at": ""} == {
        "verdict": "accepted",
        "status": "succeeded",
        "flow_id": flow_id,
        "step_id": STEP,
        "recorded_at": "",
    }
    assert (await api.final(flow_id))["outputs"] == {"n": 1}
    event = await api.until_event(flow_id, "work_succeeded")
    assert event["data"] | {"result": ""} == {
        "result": "",
        "via": "operator",
        "by": "local",
        "replay_of": found["callback_id"],
    }
    replayed = await api.post(f"/api/v1/callbacks/{found['callback_id']}/replay", {})
    replayed.refused(400, "ALREADY_SUCCEEDED")
    assert await callbacks(api, flow=flow_id) == [found]


async def test_an_accepted_callback_is_decided_again(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": "all"}))
    flow_id, received = await dispatched(api, endpoint)
    await api.complete(received, {"success": False, "error": "no"})
    [found] = await callbacks(api, flow=flow_id)
    (await api.post(f"/api/v1/callbacks/{found['callback_id']}/replay")).refused(400, "ALREADY_FAILED")


async def test_what_cannot_be_replayed(start_node: StartNode, connect: Connect, endpoint: StepEndpoint) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": "all"}))
    flow_id, received = await dispatched(api, endpoint)
    await api.post(webhook_path(received, FORGED), SUCCESS)
    await api.post(f"{received.webhook_url}/heartbeat", {"progress": 0.5})
    await api.request("POST", webhook_path(received), data=b"{", headers={"Content-Type": "application/json"})
    invalid, heartbeat, unknown = await callbacks(api)
    (await api.post(f"/api/v1/callbacks/{invalid['callback_id']}/replay")).refused(422, "INVALID_RESULT")
    for each, reason in ((heartbeat, "heartbeat"), (unknown, "unknown")):
        answer = await api.post(f"/api/v1/callbacks/{each['callback_id']}/replay")
        answer.refused(409, "CALLBACK_NOT_REPLAYABLE")
        assert reason in answer.body["error"]["message"]
    assert (await api.work(flow_id))["status"] == "active"
    extra = await api.post(f"/api/v1/callbacks/{invalid['callback_id']}/replay", {"now": True})
    extra.refused(422, "INVALID_INPUT")


# ------------------------------------------------------------------------------------------------ by an operator


async def test_an_operator_completes_work_without_the_receipt(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    secret = "secret-of-the-operator"
    node = await start_node(api_keys=f"ops:operator:{secret},root:admin:secret-of-the-admin", **SIGNING)
    api = connect(node)
    api.headers["Authorization"] = "Bearer secret-of-the-admin"
    flow_id, _ = await dispatched(api, endpoint, require_signature=True, duplicate_status=200)
    work_id = (await api.work(flow_id))["work_id"]
    api.headers["Authorization"] = f"Bearer {secret}"
    path = f"/api/v1/work/{work_id}/complete"
    answer = (await api.post(path, SUCCESS)).ok()
    assert (answer["verdict"], answer["status"], answer["flow_id"]) == ("accepted", "succeeded", flow_id)
    event = await api.until_event(flow_id, "work_succeeded")
    assert (event["data"]["via"], event["data"]["by"]) == ("operator", "ops")
    assert (await api.post(path, SUCCESS)).ok()["verdict"] == "duplicate"
    (await api.post(path, {"success": True})).refused(400, "CONFLICTING_RESULT")
    assert await callbacks(api) == []


async def test_an_operator_gets_the_verdicts_of_the_webhook(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, _ = await dispatched(api, endpoint, work={"init_backoff_ms": 5, "max_retries": 3})
    path = f"/api/v1/work/{(await api.work(flow_id))['work_id']}/complete"
    again = {"success": False, "retriable": True, "error": "busy", "attempt": 1}
    assert (await api.post(path, again)).ok()["status"] == "not_completed"
    await api.until_acknowledged(flow_id, 2)
    assert (await api.post(path, again)).ok()["verdict"] == "stale"
    assert (await api.post(path, {"success": False, "error": "no"})).ok()["status"] == "failed"
    (await api.post(path, {"success": False, "error": "no"})).refused(400, "ALREADY_FAILED")
    attempts = (await api.get(path.removesuffix("/complete"))).ok()["attempts"]
    assert [each["outcome"] for each in attempts] == ["not_completed", "failed"]


async def test_what_an_operator_cannot_complete(api: Api, endpoint: StepEndpoint) -> None:
    for work_id in ("none", "0" * 32, "%00", "a/b"):
        reply = await api.post(f"/api/v1/work/{work_id}/complete", SUCCESS)
        assert (reply.status, reply.code) in ((404, "UNKNOWN_WORK"), (404, "NOT_FOUND"))
    flow_id, received = await dispatched(api, endpoint)
    path = f"/api/v1/work/{received.metadata['work_id']}/complete"
    (await api.post(path, {"success": "yes"})).refused(422, "INVALID_RESULT")
    (await api.request("POST", path, data=b"x", headers={"Content-Type": "text/plain"})).refused(
        415, "UNSUPPORTED_MEDIA_TYPE"
    )
    await api.post(f"/api/v1/flows/{flow_id}/cancel")
    (await api.post(path, SUCCESS)).refused(400, "WORK_CANCELLED")


async def test_a_sub_flow_completes_its_own_item(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url("/job"))
    step = {"kind": "flow", "flow": {"goals": [STEP]}}
    await api.request("PUT", "/api/v1/steps/outer", json=step)
    flow_id = await api.start("outer")
    received = await endpoint.received("/job")
    path = f"/api/v1/work/{(await api.work(flow_id))['work_id']}/complete"
    (await api.post(path, SUCCESS)).refused(400, "WORK_NOT_ACTIVE")
    await api.succeed(received)
    assert (await api.final(flow_id))["status"] == "completed"
    (await api.post(path, SUCCESS)).refused(400, "CONFLICTING_RESULT")


async def test_work_of_an_agent_is_completed_through_the_gate(api: Api) -> None:
    workflow = (await api.post("/api/v1/workflows", {"workflow_name": "w"})).ok(201)["workflow_id"]
    gate = {"step_name": "s", "step_type": "tool_call", "step_input": {}}
    (await api.post(f"/api/v1/workflows/{workflow}/steps/s/gate", gate)).ok()
    [item] = (await api.get("/api/v1/work")).ok()["work"]
    (await api.post(f"/api/v1/work/{item['work_id']}/complete", SUCCESS)).refused(404, "UNKNOWN_WORK")
