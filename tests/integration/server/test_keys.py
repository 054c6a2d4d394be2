"""Section 6: API keys and what each role may do."""

from __future__ import annotations

import base64
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import StepEndpoint
from tests.eventually import eventually
from tests.integration.scenario import PATH, STEP
from tests.running import Node, StartNode
from tests.wire import Api

KEYS = {role: f"{role}-secret-0123456789" for role in ("viewer", "operator", "reviewer", "admin")}
API_KEYS = ",".join(f"{role}-key:{role}:{secret}" for role, secret in KEYS.items())


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def basic(name: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()}


@pytest.fixture
async def keyed(start_node: StartNode) -> Node:
    return await start_node(api_keys=API_KEYS)


@pytest.fixture
async def apis(keyed: Node, session: aiohttp.ClientSession) -> dict[str, Api]:
    """A client of each role, and one without any key."""
    clients = {role: Api(session, keyed.url, bearer(secret)) for role, secret in KEYS.items()}
    return {**clients, "keyless": Api(session, keyed.url)}


READS = [
    "/api/v1/steps",
    "/api/v1/steps/job",
    "/api/v1/flows",
    "/api/v1/flows/f1",
    "/api/v1/flows/f1/result",
    "/api/v1/flows/f1/events",
    "/api/v1/work",
    "/api/v1/schedules",
]


@pytest.mark.either_store
@pytest.mark.parametrize("path", READS)
async def test_every_role_reads_and_no_key_does_not(apis: dict[str, Api], endpoint: StepEndpoint, path: str) -> None:
    await apis["admin"].put_step(STEP, endpoint.url(PATH))
    await apis["operator"].start(STEP, flow_id="f1")
    for role in KEYS:
        assert (await apis[role].get(path)).status in (200, 202), role
    reply = await apis["keyless"].get(path)
    reply.refused(401, "UNAUTHENTICATED")
    assert reply.headers["WWW-Authenticate"]


async def test_the_streams_need_a_key(apis: dict[str, Api], endpoint: StepEndpoint) -> None:
    (await apis["keyless"].get("/api/v1/stream")).refused(401, "UNAUTHENTICATED")
    (await apis["keyless"].get("/api/v1/flows/f1/stream")).refused(401, "UNAUTHENTICATED")


WRITES: list[tuple[str, str, Any, set[str], set[int]]] = [
    ("PUT", "/api/v1/steps/new", {"endpoint": "http://worker/"}, {"admin"}, {200, 201}),
    ("DELETE", "/api/v1/steps/spare", None, {"admin"}, {200, 204, 404}),
    ("PUT", "/api/v1/schedules/new", {"every_ms": 3_600_000, "flow": {"goals": [STEP]}}, {"admin"}, {201}),
    ("DELETE", "/api/v1/schedules/spare", None, {"admin"}, {204, 404}),
    ("POST", "/api/v1/flows", {"goals": [STEP]}, {"operator", "admin"}, {201}),
    ("POST", "/api/v1/flows/f1/cancel", {}, {"operator", "admin"}, {200}),
]


@pytest.mark.either_store
@pytest.mark.parametrize(("method", "path", "body", "allowed", "statuses"), WRITES)
@pytest.mark.parametrize("role", ["viewer", "operator", "reviewer", "admin", "keyless"])
async def test_which_role_may_change_what(
    apis: dict[str, Api],
    endpoint: StepEndpoint,
    role: str,
    method: str,
    path: str,
    body: Any,
    allowed: set[str],
    statuses: set[int],
) -> None:
    await apis["admin"].put_step(STEP, endpoint.url(PATH))
    await apis["admin"].put_step("spare", endpoint.url(PATH))
    await apis["admin"].start(STEP, flow_id="f1")
    reply = await apis[role].request(method, path, json=body)
    if role in allowed:
        assert reply.status in statuses, reply.content
    elif role == "keyless":
        reply.refused(401, "UNAUTHENTICATED")
    else:
        reply.refused(403, "FORBIDDEN")


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("headers", "good"),
    [
        (bearer(KEYS["viewer"]), True),
        ({"Authorization": f"bearer {KEYS['viewer']}"}, True),
        (basic("viewer-key", KEYS["viewer"]), True),
        (basic("operator-key", KEYS["viewer"]), False),
        (basic("viewer-key", "wrong"), False),
        (basic("", KEYS["viewer"]), False),
        (basic("keyless", ""), False),
        (bearer(""), False),
        (bearer("wrong"), False),
        (bearer(KEYS["viewer"] + "x"), False),
        (bearer(KEYS["viewer"][:-1]), False),
        (bearer(f"viewer-key:{KEYS['viewer']}"), False),
        ({"Authorization": KEYS["viewer"]}, False),
        ({"Authorization": "Basic !!!"}, False),
        ({"Authorization": "Basic " + base64.b64encode(b"\xff\xfe").decode()}, False),
        ({"Authorization": "Basic " + base64.b64encode(b"no-colon").decode()}, False),
        ({"Authorization": f"Digest {KEYS['viewer']}"}, False),
        ({"Authorization": ""}, False),
    ],
)
async def test_forms_of_a_key(keyed: Node, session: aiohttp.ClientSession, headers: dict[str, str], good: bool) -> None:
    reply = await Api(session, keyed.url, headers).get("/api/v1/flows")
    if good:
        reply.ok()
    else:
        reply.refused(401, "UNAUTHENTICATED")
        assert KEYS["viewer"] not in reply.content.decode()


async def test_the_webhook_needs_no_key(apis: dict[str, Api], endpoint: StepEndpoint) -> None:
    """The receipt is the credential."""
    await apis["admin"].put_step(STEP, endpoint.url(PATH))
    flow_id = await apis["admin"].start(STEP)
    received = await endpoint.received(PATH)
    keyless = apis["keyless"]
    (await keyless.get(received.webhook_url)).ok()
    (await keyless.post(received.metadata["heartbeat_url"], {})).ok()
    (await keyless.complete(received, {"success": True})).ok()
    (await keyless.post(f"/webhook/{flow_id}/{STEP}/nonsense", {"success": True})).refused(404, "UNKNOWN_RECEIPT")
    assert (await apis["viewer"].final(flow_id))["status"] == "completed"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_health_and_metrics_need_no_key_on_loopback(apis: dict[str, Api], path: str) -> None:
    async def good() -> bool:
        return (await apis["keyless"].get(path)).status == 200

    await eventually(good)


async def test_the_key_is_not_sent_to_endpoints(apis: dict[str, Api], endpoint: StepEndpoint) -> None:
    await apis["admin"].put_step(STEP, endpoint.url(PATH))
    await apis["operator"].start(STEP)
    received = await endpoint.received(PATH)
    everything = received.content.decode() + str(dict(received.headers))
    assert not [secret for secret in KEYS.values() if secret in everything]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.com"])
async def test_without_keys_only_loopback_is_served(start_node: StartNode, host: str) -> None:
    with pytest.raises(Exception, match=r"(?i)key"):
        await start_node(host=host)


async def test_without_keys_none_is_needed(api: Api) -> None:
    (await api.get("/api/v1/flows")).ok()


async def test_with_keys_another_address_may_be_served(
    start_node: StartNode, session: aiohttp.ClientSession, endpoint: StepEndpoint
) -> None:
    node = await start_node(api_keys=API_KEYS, host="0.0.0.0")
    port = node.url.rsplit(":", 1)[1]
    api = Api(session, f"http://127.0.0.1:{port}")
    (await api.get("/api/v1/flows")).refused(401, "UNAUTHENTICATED")
    api.headers = bearer(KEYS["viewer"])
    (await api.get("/api/v1/flows")).ok()
