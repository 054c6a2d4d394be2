"""Payloads for hooks in the inbox: accepted, duplicate and refused ones, and their replay."""

from __future__ import annotations

import aiohttp

from tests.by_hand import by_hand
from tests.integration.callbacks.inbox import FORGED, callbacks, verdicts
from tests.integration.hooking import HOOK, made, order, path_of, post, put_hook, waiting
from tests.integration.scenario import place_of
from tests.running import Connect, Node, StartNode
from tests.wire import Api

PAYLOAD = {"confirmed": True}


async def test_payloads_are_listed_with_their_verdicts(node: Node, api: Api) -> None:
    await put_hook(api, hook={"token": None, "collect": 2})
    flow_id = await order(api)
    await waiting(api, flow_id)
    token = made(node, flow_id, HOOK)
    (await post(api, token, PAYLOAD, "first")).ok()
    (await post(api, token, PAYLOAD, "first")).ok()
    headers = {"Content-Type": "text/plain"}
    (await api.request("POST", path_of(token), data=b"x", headers=headers)).refused(415, "UNSUPPORTED_MEDIA_TYPE")
    headers = {"Content-Type": "application/json"}
    (await api.request("POST", path_of(token), data=b"{", headers=headers)).refused(422, "INVALID_PAYLOAD")
    (await post(api, FORGED, PAYLOAD)).refused(404, "HOOK_NOT_FOUND")
    (await post(api, "nobody", PAYLOAD)).refused(404, "HOOK_NOT_FOUND")
    found = await callbacks(api)
    assert [(each["kind"], each["verdict"], each["status"], each["flow_id"], each["step_id"]) for each in found] == [
        ("hook", "HOOK_NOT_FOUND", 404, None, None),
        ("hook", "HOOK_NOT_FOUND", 404, None, None),
        ("hook", "INVALID_PAYLOAD", 422, flow_id, HOOK),
        ("hook", "UNSUPPORTED_MEDIA_TYPE", 415, flow_id, HOOK),
        ("hook", "duplicate", 200, flow_id, HOOK),
        ("hook", "accepted", 200, flow_id, HOOK),
    ]
    assert await callbacks(api, flow=flow_id, kind="hook") == found[2:]
    rows = repr(by_hand(place_of(node), "SELECT * FROM callbacks"))
    assert token not in rows
    assert FORGED not in rows


async def test_a_caller_without_a_key_is_listed(
    start_node: StartNode, connect: Connect, session: aiohttp.ClientSession
) -> None:
    node = await start_node(api_keys="root:admin:secret-of-the-admin")
    (await post(connect(node), "order:1", PAYLOAD)).refused(401, "UNAUTHENTICATED")
    admin = Api(session, node.url, {"Authorization": "Bearer secret-of-the-admin"})
    assert await verdicts(admin) == [("hook", "UNAUTHENTICATED", 401)]


async def test_a_payload_is_delivered_again_by_its_replay(start_node: StartNode, connect: Connect) -> None:
    api = connect(await start_node(callbacks={"keep_bodies": "all"}))
    await put_hook(api, hook={"collect": 2})
    flow_id = await order(api, "7")
    await waiting(api, flow_id)
    (await post(api, "order:7", PAYLOAD)).ok()
    [found] = await callbacks(api, flow=flow_id)
    assert found["body_kept"]
    assert found["size"] == 18
    detail = (await api.get(f"/api/v1/callbacks/{found['callback_id']}")).ok()
    assert detail["body"] == '{"confirmed":true}'
    path = f"/api/v1/callbacks/{found['callback_id']}/replay"
    assert (await api.post(path)).ok() == {
        "flow_id": flow_id,
        "step_id": HOOK,
        "delivered": True,
        "duplicate": False,
    }
    assert (await api.final(flow_id))["outputs"] == {"payloads": [PAYLOAD, PAYLOAD]}
    (await api.post(path)).refused(409, "CALLBACK_NOT_REPLAYABLE")
