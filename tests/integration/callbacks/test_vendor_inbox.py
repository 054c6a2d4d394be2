"""Callbacks of vendors in the inbox, and their replay: by the map of the step, with the headers that it reads."""

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.by_hand import by_hand
from tests.eventually import eventually
from tests.integration.callbacks.inbox import callbacks
from tests.integration.callbacks.vendor_calls import ATTRIBUTES, DONE, MAP, PING, SECRETS, VendorCalls, accept, called
from tests.integration.hooking import HOOK, order, path_of, post, put_hook, waiting
from tests.integration.scenario import place_of
from tests.running import Connect, Node, StartNode
from tests.vendors import GITHUB, STANDARD
from tests.wire import Api, Reply

FAILED = {"type": "job", "status": "failed", "error": {"message": "no funds"}}
HOOK_MAP = {name: text for name, text in MAP.items() if name != "retriable"}
EVENT = "x-github-event"
BY_HEADER = {
    **accept(GITHUB),
    "map": {"ignore": f"headers['{EVENT}'] != 'deployment'", "outputs": {"text": "payload.id"}},
}
DEPLOYED = {"id": "d-1"}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


async def replay(api: Api, callback: dict[str, Any]) -> Reply:
    return await api.post(f"/api/v1/callbacks/{callback['callback_id']}/replay")


async def put_text_hook(api: Api, **definition: Any) -> None:
    attributes = {"order_id": {"role": "required", "type": "string"}, **ATTRIBUTES}
    step = {"hook": {"token": "text:{order_id}"}, "attributes": attributes, "accept": {"map": HOOK_MAP}, **definition}
    assert (await put_hook(api, **step)).status in (200, 201)


# ------------------------------------------------------------------------------------------------- what is listed


@pytest.mark.parametrize("keep", ["none", "all"])
async def test_a_failure_that_a_vendor_reports_to_a_hook_is_listed(
    start_node: StartNode, connect: Connect, keep: str
) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": keep}))
    await put_text_hook(api)
    flow_id = await order(api)
    await waiting(api, flow_id)
    (await post(api, "text:1", FAILED)).ok()
    assert (await api.final(flow_id))["status"] == "failed"
    [found] = await callbacks(api, flow=flow_id)
    assert (found["kind"], found["verdict"], found["status"], found["step_id"]) == ("hook", "accepted", 200, HOOK)
    assert found["body_kept"] == (keep == "all")
    assert await callbacks(api, kind="hook", verdict="accepted") == [found]


async def test_other_ends_of_a_hook_are_no_callbacks(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    api = connect(await start_node(clock))
    await put_hook(api, work={"deadline_ms": 1_000})
    late = await order(api)
    await waiting(api, late)
    clock.advance(seconds=2)
    assert (await api.final(late))["status"] == "failed"
    await put_hook(api, hook={"on_conflict": "fail"})
    await waiting(api, await order(api, "2"))
    assert (await api.final(await order(api, "2")))["status"] == "failed"
    assert await callbacks(api) == []


async def test_a_payload_that_no_hook_url_received_is_not_listed(start_node: StartNode, connect: Connect) -> None:
    """An operator who completes by hand is no vendor that has called; the journal says by which key."""
    node = await start_node(callbacks={"keep_bodies": "all"})
    api = connect(node)
    await put_hook(api, hook={"collect": 4})
    flow_id = await order(api, idempotency_key="key")
    item = await waiting(api, flow_id)
    (await api.post(f"/api/v1/work/{item['work_id']}/payload", {"n": 1})).ok()
    signal = {"hook": "order:1", "payload": {"n": 2}}
    start = {"goals": [HOOK], "init": {"order_id": "1"}, "idempotency_key": "key"}
    assert (await api.post("/api/v1/flows", {**start, "on_conflict": "signal", "signal": signal})).ok()["signalled"]
    assert await callbacks(api, flow=flow_id) == []
    (await post(api, "order:1", {"n": 3})).ok()
    [found] = await callbacks(api, flow=flow_id)
    assert (found["kind"], found["verdict"]) == ("hook", "accepted")
    (await replay(api, found)).ok()
    assert await callbacks(api, flow=flow_id) == [found]
    assert (await api.final(flow_id))["outputs"] == {"payloads": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 3}]}
    received = [each["data"] for each in await api.events(flow_id) if each["type"] == "hook_received"]
    assert [(each.get("via"), each.get("by"), each.get("replay_of")) for each in received] == [
        ("operator", "local", None),
        ("signal", None, None),
        (None, None, None),
        ("operator", "local", found["callback_id"]),
    ]


async def test_the_status_is_the_one_that_the_vendor_got(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    answer = {"accepted": 202, "duplicate": 208, "ignored": 204}
    api = connect(await start_node(clock, secrets=SECRETS))
    calls = await called(api, endpoint, clock, STANDARD, accept=accept(STANDARD, answer=answer))
    assert [(await calls.signed(each)).status for each in (PING, DONE, DONE)] == [204, 202, 208]
    found = await callbacks(api, flow=calls.flow_id)
    assert [(each["verdict"], each["status"]) for each in found] == [
        ("duplicate", 208),
        ("accepted", 202),
        ("ignored", 204),
    ]
    accepts = {"map": {"outputs": {"text": "payload.text"}}, "answer": answer}
    await put_text_hook(api, accept=accepts)
    flow_id = await order(api)
    await waiting(api, flow_id)
    assert (await post(api, "text:1", {"text": "a"})).status == 202
    [taken] = await callbacks(api, flow=flow_id)
    assert (taken["verdict"], taken["status"]) == ("accepted", 202)


# --------------------------------------------------------------------------------------------------------- replay


async def test_a_vendors_body_is_replayed_by_the_map_with_the_headers_that_it_reads(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    """The secret was wrong: the operator corrects it, and replays what was refused meanwhile."""
    node = await start_node(clock, secrets=SECRETS, callbacks={"keep_bodies": "refused"})
    api = connect(node)
    calls = await called(api, endpoint, clock, GITHUB, accept=BY_HEADER)
    for event, payload in (("ping", {"zen": "Design for failure."}), ("deployment", DEPLOYED)):
        headers = {EVENT: event, "X-Api-Key": "not-to-be-kept", "Cookie": "not-to-be-kept"}
        refused = await calls.signed(payload, secret=GITHUB.other_secret, headers=headers)
        refused.refused(401, "INVALID_SIGNATURE")
    deployed, ping = await callbacks(api, flow=calls.flow_id)
    answer = (await replay(api, ping)).ok()
    assert (answer["verdict"], answer["status"]) == ("ignored", "active")
    await calls.unchanged()
    answer = (await replay(api, deployed)).ok()
    assert (answer["verdict"], answer["status"]) == ("accepted", "succeeded")
    assert (await api.final(calls.flow_id))["outputs"] == {"text": "d-1"}
    recorded = await api.until_event(calls.flow_id, "work_succeeded")
    assert (recorded["data"]["via"], recorded["data"]["replay_of"]) == ("operator", deployed["callback_id"])
    assert (await replay(api, deployed)).ok()["verdict"] == "duplicate"
    rows = repr(by_hand(place_of(node), "SELECT * FROM callbacks"))
    assert "deployment" in rows
    assert "not-to-be-kept" not in rows
    assert "sha256=" not in rows


async def test_a_payload_for_a_hook_is_replayed_with_the_headers_that_its_map_reads(
    start_node: StartNode, connect: Connect
) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": "all"}))
    reads = {"ignore": "!('x-kind' in headers)", "success": "headers['x-kind'] == 'good'"}
    await put_text_hook(api, accept={"map": {**reads, "outputs": {"text": "payload.text"}, "error": "payload.text"}})
    flow_id = await order(api)
    await waiting(api, flow_id)

    async def send(text: str, **headers: str) -> None:
        await api.request("POST", path_of("text:1"), json={"text": text}, headers=headers)

    await send("nothing")
    [nothing] = await callbacks(api, flow=flow_id)
    answer = {"flow_id": flow_id, "step_id": HOOK, "delivered": False, "duplicate": False, "ignored": True}
    assert (await replay(api, nothing)).ok() == answer
    await send("bad", **{"x-kind": "bad"})
    assert (await api.final(flow_id))["status"] == "failed"
    [bad, _] = await callbacks(api, flow=flow_id)
    (await replay(api, bad)).refused(409, "CALLBACK_NOT_REPLAYABLE")
    await api.post(f"/api/v1/flows/{flow_id}/redrive")

    async def replayed() -> bool:
        return (await replay(api, bad)).status == 200

    await eventually(replayed, what="the hook of the redriven step")
    assert (await api.final(flow_id))["status"] == "failed"
    failed = [each["data"] for each in await api.events(flow_id) if each["type"] == "work_failed"]
    assert [(each["via"], each.get("replay_of")) for each in failed] == [
        ("hook", None),
        ("operator", bad["callback_id"]),
    ]


async def test_a_payload_that_the_map_cannot_read_is_not_replayed_into_a_result(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    api = connect(await start_node(clock, secrets=SECRETS, callbacks={"keep_bodies": "refused"}))
    calls = await called(api, endpoint, clock, GITHUB, accept=BY_HEADER)
    (await calls.signed(DEPLOYED)).refused(422, "INVALID_PAYLOAD")
    (await calls.signed({"id": 7}, headers={EVENT: "deployment"}, secret="x")).refused(401, "INVALID_SIGNATURE")
    wrong_type, no_header = await callbacks(api, flow=calls.flow_id)
    [error] = (await replay(api, no_header)).refused(422, "INVALID_PAYLOAD")["errors"]
    assert error["place"] == "accept.map.ignore"
    await calls.unchanged()
    assert (await replay(api, wrong_type)).ok()["status"] == "failed"


async def test_headers_are_kept_only_with_a_body(node: Node, api: Api) -> None:
    await put_text_hook(api, accept={"map": {**HOOK_MAP, "ignore": "headers['x-kind'] == 'ping'"}})
    flow_id = await order(api)
    await waiting(api, flow_id)
    await api.request("POST", path_of("text:1"), json={"text": "a"}, headers={"x-kind": "ping"})
    [found] = await callbacks(api, flow=flow_id)
    assert found["verdict"] == "ignored"
    assert by_hand(place_of(node), "SELECT body, headers FROM callbacks") == [(None, None)]
    (await replay(api, found)).refused(409, "CALLBACK_NOT_REPLAYABLE")


async def test_a_report_of_the_fast_path_keeps_them_as_well(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    """A vendor's body that happens to be a StepResult: ``VendorCalls`` posts with headers that the lane takes."""
    api = connect(await start_node(clock, secrets=SECRETS, callbacks={"keep_bodies": "all"}))
    taken = {**BY_HEADER, "map": {**BY_HEADER["map"], "outputs": {"text": f"headers['{EVENT}']"}}}
    calls: VendorCalls = await called(api, endpoint, clock, GITHUB, accept=taken)
    refused = await calls.signed({"success": True}, secret="wrong", headers={EVENT: "deployment"})
    refused.refused(401, "INVALID_SIGNATURE")
    [found] = await callbacks(api, flow=calls.flow_id)
    (await replay(api, found)).ok()
    assert (await api.final(calls.flow_id))["outputs"] == {"text": "deployment"}
