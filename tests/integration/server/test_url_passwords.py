"""Passwords in the URLs of steps and subscriptions are used for every call, and never shown."""

from __future__ import annotations

import base64
from typing import Any

import aiohttp
import pytest

from counterfoil.testing import Answer, StepEndpoint
from tests.eventually import eventually
from tests.running import Node
from tests.wire import Api

PASSWORD = "open-sesame-42"
BASIC = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
READS = ("steps", "steps/job", "flows", "flows/f1", "flows/f1/events", "work", "subscriptions", "subscriptions/ops")


def with_password(url: str) -> str:
    return url.replace("http://", f"http://me:{PASSWORD}@")


def definition(endpoint: StepEndpoint) -> dict[str, Any]:
    return {
        "endpoint": with_password(endpoint.url("/job")),
        "cancel_url": with_password(endpoint.url("/cancel")),
        "compensate": {"kind": "sync", "endpoint": with_password(endpoint.url("/undo"))},
    }


async def test_passwords_are_sent_and_not_shown(
    api: Api, node: Node, endpoint: StepEndpoint, session: aiohttp.ClientSession, capfd: pytest.CaptureFixture[str]
) -> None:
    subscription = {"url": with_password(endpoint.url("/told")), "events": ["*"]}
    put = [
        await api.request("PUT", "/api/v1/steps/job", json=definition(endpoint)),
        await api.request("PUT", "/api/v1/subscriptions/ops", json=subscription),
    ]
    assert [reply.status for reply in put] == [201, 201]
    endpoint.answer("/job", Answer(503), Answer())
    await api.start("job", flow_id="f1")
    await endpoint.received("/job", 2)
    await api.until_acknowledged("f1")
    (await api.post("/api/v1/flows/f1/cancel")).ok()
    await endpoint.received("/cancel")
    await eventually(lambda: endpoint.requests("/told"), what="a message to the subscriber")
    for path in ("/job", "/cancel", "/told"):
        assert {request.headers["Authorization"] for request in endpoint.requests(path)} == {BASIC}
    shown = [*put, *[await api.get(f"/api/v1/{path}") for path in READS]]
    shown.append(await api.post("/api/v1/plan", {"goals": ["job"]}))
    shown.append(await api.get("/api/v1/subscriptions/ops/deliveries"))
    shown.append(await api.get("/metrics"))
    assert {reply.status for reply in shown} <= {200, 201}
    everything = b"".join(reply.content for reply in shown).decode() + "".join(capfd.readouterr())
    assert PASSWORD not in everything
    step = (await api.get("/api/v1/steps/job")).ok()
    assert step["endpoint"] == endpoint.url("/job").replace("http://", "http://me:***@")
    assert "me:***@" in step["cancel_url"]
    assert "me:***@" in step["compensate"]["endpoint"]
    assert "me:***@" in (await api.get("/api/v1/subscriptions/ops")).ok()["url"]


@pytest.mark.parametrize("masked", ["endpoint", "cancel_url", "compensate.endpoint"])
async def test_a_masked_password_cannot_be_put_back(api: Api, endpoint: StepEndpoint, masked: str) -> None:
    """Else a definition that is read, changed and put back would lose the password."""
    whole = definition(endpoint)
    (await api.request("PUT", "/api/v1/steps/job", json=whole)).ok(201)
    table, _, name = masked.rpartition(".")
    place = whole[table] if table else whole
    place[name] = place[name].replace(PASSWORD, "***")
    details = (await api.request("PUT", "/api/v1/steps/job", json=whole)).refused(422, "INVALID_STEP")
    assert [error["place"] for error in details["errors"]] == [masked]
    await api.start("job")
    assert (await endpoint.received("/job")).headers["Authorization"] == BASIC


async def test_a_masked_subscription_cannot_be_put_back(api: Api) -> None:
    for url in ("http://me:***@chat.test/", "https://***@chat.test"):
        body = {"url": url, "events": ["*"]}
        reply = await api.request("PUT", "/api/v1/subscriptions/ops", json=body)
        assert [error["place"] for error in reply.refused(422, "INVALID_SUBSCRIPTION")["errors"]] == ["url"]
