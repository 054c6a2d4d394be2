"""Made tokens: links that a flow can send before its hook waits, which are credentials like receipts."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from counterfoil.domain.hooks.tokens import made_token
from counterfoil.domain.work.receipts import Receipts
from counterfoil.testing import MovableClock, StepEndpoint
from tests.by_hand import by_hand
from tests.integration.hooking import CONFIRMED, HOOK, ORDER, made, order, path_of, post, put_hook, waiting
from tests.integration.people import KEYED, clients
from tests.integration.planned import Workshop, each, gives, takes
from tests.integration.scenario import place_of
from tests.running import Connect, Node, StartNode
from tests.wire import Api

MADE = {"token": None}
STORED = ("hooks", "hook_tokens", "hook_payloads", "hook_deliveries", "journal", "work", "flow_inputs", "flow_steps")


async def mail_first(api: Api, shop: Workshop) -> str:
    """A flow that mails a link, and then waits for it to be used."""
    await shop.waits("mail", {"order_id": takes("string"), "mailed": gives("boolean")})
    attributes = {"mailed": takes("boolean"), **CONFIRMED}
    await put_hook(api, hook=MADE, attributes=attributes)
    return await order(api)


async def test_every_dispatch_of_the_flow_carries_the_link_before_the_hook_waits(
    api: Api, shop: Workshop, node: Node
) -> None:
    flow_id = await mail_first(api, shop)
    received = await shop.endpoint.received("/mail")
    links = received.metadata["hooks"]
    assert links == {HOOK: f"{node.url}{path_of(made(node, flow_id, HOOK))}"}
    (await api.post(links[HOOK], {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    await api.succeed(received, mailed=True)
    await waiting(api, flow_id, HOOK)
    answer = (await api.post(links[HOOK], {"confirmed": True})).ok()
    assert answer == {"flow_id": flow_id, "step_id": HOOK, "delivered": True, "duplicate": False}
    assert (await api.final(flow_id))["outputs"] == {"mailed": True, "confirmed": True}


async def test_retries_and_compensations_carry_the_same_link(api: Api, shop: Workshop) -> None:
    await shop.waits("mail", {"order_id": takes("string"), "mailed": gives()}, compensate=shop.undoing("mail"))
    await put_hook(api, hook=MADE, attributes={"mailed": takes(), **CONFIRMED})
    flow_id = await order(api)
    first = await shop.endpoint.received("/mail")
    (await api.complete(first, {"success": False, "error": "later", "retriable": True})).ok()
    second = await shop.endpoint.received("/mail", 2)
    assert second.metadata["hooks"] == first.metadata["hooks"]
    await api.succeed(second, mailed=1)
    await waiting(api, flow_id, HOOK)
    (await api.post(f"/api/v1/flows/{flow_id}/cancel", {"compensate": True})).ok()
    undone = await shop.endpoint.received("/undo-mail")
    assert undone.metadata["hooks"] == first.metadata["hooks"]


async def test_a_flow_without_made_tokens_has_no_links(api: Api, shop: Workshop) -> None:
    await shop.waits("mail", {"order_id": takes("string"), "mailed": gives()})
    await put_hook(api)
    await order(api, "1", "mail", HOOK, metadata={"hooks": "mine"})
    assert (await shop.endpoint.received("/mail")).metadata["hooks"] == "mine"


async def test_items_of_a_fan_out_have_links_of_their_own(api: Api, shop: Workshop, node: Node) -> None:
    await shop.waits("mail", {"to": each("string"), "mailed": gives()})
    attributes = {"to": each("string"), "mailed": each(), **CONFIRMED}
    await put_hook(api, hook=MADE, attributes=attributes, fan_out={"mode": "zip"})
    flow_id = await api.start(HOOK, init={"to": ["ann", "bob"]})
    links = {}
    for number in (1, 2):
        received = await shop.endpoint.received("/mail", number)
        links[received.arguments["to"]] = received.metadata["hooks"][HOOK]
        await api.succeed(received, mailed=received.arguments["to"])
    assert len(set(links.values())) == 2
    await api.until_event(flow_id, "hook_registered", 2)
    (await api.post(links["bob"], {"confirmed": False})).ok()
    (await api.post(links["bob"], {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    (await api.post(links["ann"], {"confirmed": True})).ok()
    assert (await api.final(flow_id))["outputs"]["confirmed"] == [True, False]


async def test_steps_of_a_sub_flow_carry_the_links_of_the_outer_flow(api: Api, shop: Workshop) -> None:
    """A step that mails a link works the same inside a sub-flow; a sub-flow's own hook has a link of its own."""
    await shop.waits("mail", {"order_id": takes("string"), "mailed": gives()})
    await put_hook(api, "inner", hook=MADE, attributes={"mailed": takes(), "seen": gives()})
    flow = {"goals": ["inner"], "inputs": {"order_id": "order_id"}, "outputs": {"sent": "seen"}}
    await shop.inner("sending", {**ORDER, "sent": gives()}, flow)
    await put_hook(api, hook=MADE, attributes={"sent": takes(), **CONFIRMED})
    flow_id = await order(api)
    received = await shop.endpoint.received("/mail")
    links = received.metadata["hooks"]
    assert sorted(links) == ["inner", HOOK]
    await api.succeed(received, mailed=1)
    child = (await api.work(flow_id, "sending"))["child_flow_id"]
    await waiting(api, child, "inner")
    assert (await api.post(links["inner"], {"seen": 1})).ok()["flow_id"] == child
    await waiting(api, flow_id, HOOK)
    assert (await api.post(links[HOOK], {"confirmed": True})).ok()["flow_id"] == flow_id
    assert (await api.final(flow_id))["status"] == "completed"


async def test_a_made_token_needs_no_api_key_and_others_do(
    start_node: StartNode, session: aiohttp.ClientSession, endpoint: StepEndpoint
) -> None:
    """An unknown token without an API key is 401, unless it has the form of a made token (404)."""
    node = await start_node(**KEYED)
    people, keyless = clients(session, node.url), Api(session, node.url)
    await put_hook(people["ada"])
    await put_hook(people["ada"], "made", hook=MADE)
    flow_id = await order(people["olga"])
    secret = await order(people["olga"], "2", "made")
    await waiting(people["vic"], flow_id)
    await waiting(people["vic"], secret)
    token = made(node, secret, "made")
    forged = made_token(Receipts([b"another secret"]), secret, "made", 0)
    for name in ("order:1", "unknown"):
        (await post(keyless, name, {"confirmed": True})).refused(401, "UNAUTHENTICATED")
        for person in ("vic", "rita"):
            (await post(people[person], name, {"confirmed": True})).refused(403, "FORBIDDEN")
    (await post(people["olga"], "unknown", {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    for client in (keyless, *people.values()):
        (await post(client, forged, {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    for path in (path_of("order:1"), path_of(token), "/api/v1/hooks"):
        (await keyless.get(path)).refused(401, "UNAUTHENTICATED")
        (await people["vic"].get(path)).ok()
    (await post(people["olga"], "order:1", {"confirmed": True})).ok()
    (
        await keyless.request(
            "POST", path_of(token), json={"confirmed": True}, headers={"X-Forwarded-For": "192.0.2.1"}
        )
    ).ok()
    assert (await people["vic"].final(secret))["outputs"] == {"confirmed": True}


async def test_a_link_works_through_a_proxy_without_any_keys(api: Api, node: Node) -> None:
    await put_hook(api, hook=MADE)
    flow_id = await order(api)
    await waiting(api, flow_id)
    through = {"X-Forwarded-For": "192.0.2.1"}
    path = path_of(made(node, flow_id, HOOK))
    (await api.request("POST", path_of("order:1"), json={}, headers=through)).refused(403, "FORBIDDEN")
    (await api.request("POST", path, json={"confirmed": True}, headers=through)).ok()


async def test_a_made_token_is_shown_and_stored_nowhere(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    node = await start_node(log_level="debug")
    api = connect(node)
    shop = Workshop(api, endpoint)
    flow_id = await mail_first(api, shop)
    received = await endpoint.received("/mail")
    link = received.metadata["hooks"][HOOK]
    token = link.rpartition("/")[2]
    (await api.complete(received, {"success": True, "outputs": {"mailed": True, "link": link}})).ok()
    item = await waiting(api, flow_id, HOOK)
    (await api.get(path_of(token))).ok()
    (await post(api, token, {"confirmed": "no", "link": link})).refused(422, "INVALID_PAYLOAD")
    (await post(api, token, {"confirmed": True, "link": link, link: 1}, "d1")).ok()
    await api.final(flow_id)
    shown: list[Any] = [
        await api.flow(flow_id),
        await api.events(flow_id),
        (await api.get("/api/v1/hooks")).ok(),
        (await api.get(f"/api/v1/work/{item['work_id']}")).ok(),
        (await api.request("GET", "/metrics")).content.decode(),
        (await post(api, token, {"confirmed": True}, "d2")).content.decode(),
        [by_hand(place_of(node), f"SELECT * FROM {table}") for table in STORED],
        "".join(capfd.readouterr()),
    ]
    signature = token.partition(".")[2]
    assert [place for place in shown if signature in str(place)] == []


async def test_a_redriven_hook_has_the_same_link(start_node: StartNode, connect: Connect) -> None:
    clock = MovableClock()
    node = await start_node(clock)
    api = connect(node)
    await put_hook(api, hook=MADE, work={"deadline_ms": 60_000})
    flow_id = await order(api)
    await waiting(api, flow_id)
    clock.advance(minutes=2)
    assert (await api.final(flow_id))["error"]["code"] == "HOOK_TIMEOUT"
    token = made(node, flow_id, HOOK)
    (await post(api, token, {"confirmed": True})).refused(404, "HOOK_NOT_FOUND")
    (await api.post(f"/api/v1/flows/{flow_id}/redrive", {})).ok()
    (await post(api, token, {"confirmed": True})).ok()
    assert (await api.final(flow_id))["status"] == "completed"
