"""Section 6: what is answered to a proxy without keys, to a rebound name with keys, and to guesses of a key."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from counterfoil.server import throttle
from counterfoil.server.app import api_routes
from counterfoil.server.routes.docs_page import docs_routes
from counterfoil.testing import StepEndpoint
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Node, StartNode
from tests.wire import Api

SECRET = "admin-secret-0123456789"
FORWARDING = [
    ("Forwarded", "for=203.0.113.9"),
    ("forwarded", ""),
    ("X-Forwarded-For", "203.0.113.9"),
    ("X-Forwarded-Proto", "https"),
    ("x-forwarded-anything", "1"),
    ("X-Real-IP", "203.0.113.9"),
    ("Via", "1.1 proxy"),
]


# Without keys, behind a proxy -----------------------------------------------------------------------------------------


@pytest.mark.either_store
@pytest.mark.parametrize(("header", "value"), FORWARDING)
async def test_without_keys_no_request_is_taken_through_a_proxy(api: Api, header: str, value: str) -> None:
    reply = await api.request("GET", "/api/v1/flows", headers={header: value})
    reply.refused(403, "FORBIDDEN")
    assert "api_keys" in reply.body["error"]["message"]
    (await api.get("/api/v1/flows")).ok()


async def test_no_route_but_the_webhook_is_open_to_a_proxy_without_keys(api: Api, node: Node) -> None:
    routes = [*api_routes(node.engine.engine), *docs_routes()]
    assert {route.path.startswith("/webhook/") for route in routes if route.bare} == {True}
    for route in routes:
        if route.bare:
            continue
        path = route.path.replace("{", "").replace("}", "")
        for method in (route.method, "OPTIONS"):
            body: Any = {} if method in ("POST", "PUT") else None  # hooks read a payload before they refuse its sender
            reply = await api.request(method, path, json=body, headers={"Via": "1.1 proxy"})
            reply.refused(403, "FORBIDDEN")


async def test_the_webhook_is_open_to_a_proxy_without_keys(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint)
    api.headers = {header: value or "x" for header, value in FORWARDING}
    (await api.get(received.webhook_url)).ok()
    (await api.post(received.metadata["heartbeat_url"], {})).ok()
    (await api.complete(received, {"success": True})).ok()
    assert (await api.request("OPTIONS", received.webhook_url)).status == 204


# With keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def keyed(start_node: StartNode) -> Node:
    return await start_node(api_keys=f"ops:admin:{SECRET}")


@pytest.fixture
def stranger(keyed: Node, session: aiohttp.ClientSession) -> Api:
    """A client on loopback without a key."""
    return Api(session, keyed.url)


async def test_with_keys_a_proxy_may_stand_in_front(stranger: Api) -> None:
    stranger.headers = {"Authorization": f"Bearer {SECRET}", **dict(FORWARDING[2:])}
    (await stranger.get("/api/v1/flows")).ok()


@pytest.mark.either_store
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize("host", ["rebound.evil.example", "rebound.evil.example:8080", "127.0.0.1.evil.example", "["])
async def test_with_keys_a_rebound_name_needs_one_on_loopback(stranger: Api, path: str, host: str) -> None:
    reply = await stranger.request("GET", path, headers={"Host": host})
    reply.refused(401, "UNAUTHENTICATED")
    reply = await stranger.request("GET", path, headers={"Host": host, "Authorization": f"Bearer {SECRET}"})
    assert reply.status in (200, 503)


@pytest.mark.either_store
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "[::1]:8080"])
async def test_with_keys_loopback_names_need_none_on_loopback(stranger: Api, path: str, host: str) -> None:
    assert (await stranger.request("GET", path, headers={"Host": host})).status in (200, 503)


# Guesses --------------------------------------------------------------------------------------------------------------


async def guess(api: Api) -> None:
    reply = await api.request("GET", "/api/v1/flows", headers={"Authorization": "Bearer a-wrong-secret-0123456789"})
    reply.refused(401, "UNAUTHENTICATED")


async def test_guesses_of_a_key_are_answered_late_and_right_keys_at_once(
    stranger: Api, endpoint: StepEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "FIRST_DELAY_SECONDS", 3600.0)
    monkeypatch.setattr(throttle, "LONGEST_DELAY_SECONDS", 3600.0)
    owner = Api(stranger.session, stranger.url, {"Authorization": f"Bearer {SECRET}"})
    with capture_logs() as logs:
        for _ in range(throttle.FREE_FAILURES):
            await guess(stranger)
        async with asyncio.TaskGroup() as tasks:
            late = [tasks.create_task(guess(stranger)) for _ in range(throttle.LATE_ANSWERS_PER_PEER)]
            await owner.put_step(STEP, endpoint.url(PATH))
            await owner.start(STEP)
            received = await endpoint.received(PATH)
            (await stranger.complete(received, {"success": True})).ok()
            (await stranger.get("/api/v1/flows")).refused(401, "UNAUTHENTICATED")  # no key is no guess
            await guess(stranger)  # more are not held back: connections are not to be had for nothing
            assert not [task for task in late if task.done()]
            for task in late:
                task.cancel()
    [warning] = [entry for entry in logs if entry["event"] == "wrong_api_keys"]
    assert (warning["peer"], warning["log_level"]) == ("127.0.0.1", "warning")


async def test_a_stop_does_not_wait_for_late_answers(
    keyed: Node, stranger: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "FIRST_DELAY_SECONDS", 3600.0)
    monkeypatch.setattr(throttle, "LONGEST_DELAY_SECONDS", 3600.0)
    for _ in range(throttle.FREE_FAILURES):
        await guess(stranger)
    late = asyncio.create_task(guess(stranger))
    (await stranger.get("/api/v1/flows")).refused(401, "UNAUTHENTICATED")
    async with asyncio.timeout(keyed.settings.shutdown_grace_ms / 1000 - 1):
        await keyed.stop()
        await late
