"""What a real process writes: structured, with ids, and never a token or a secret, whatever happens."""

from __future__ import annotations

import asyncio

import aiohttp
import orjson
import pytest

from counterfoil.testing import Answer, Received, StepEndpoint
from tests.acceptance.conftest import NewEngine
from tests.rawhttp import post_bytes, raw_connection
from tests.wire import JSON, Api

ADMIN = "an-admin-secret-0123456789"
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PASSWORD = "the-password-of-the-database"


async def a_busy_day(api: Api, endpoint: StepEndpoint) -> list[Received]:
    """Accepted, repeated, conflicting, malformed, too large, cancelled, retried, cut, forged, unsigned."""
    endpoint.answer("/flaky", Answer(503), Answer(fault="cut"), Answer(body="no result"), Answer())
    endpoint.answer("/gone", Answer(404))
    for step_id, extra in {
        "job": {"cancel_url": endpoint.url("/cancel")},
        "flaky": {},
        "gone": {},
        "signed": {},
    }.items():
        await api.put_step(step_id, endpoint.url(f"/{step_id}"), **extra, require_signature=step_id == "signed")
    for goal in ("job", "job", "flaky", "gone", "signed"):
        await api.start(goal)
    first, second = await endpoint.received("/job"), await endpoint.received("/job", 2)
    third, signed = await endpoint.received("/flaky", 3), await endpoint.received("/signed")
    for received in (first, second):
        (await api.post(received.metadata["heartbeat_url"], {"progress": 0.5, "message": "half"})).ok()
        (await api.get(received.webhook_url)).ok()
        await api.request("POST", received.webhook_url, data=b"{", headers=JSON)
        await api.request("POST", received.webhook_url, data=b"x" * 2**21, headers=JSON)
        await api.request("POST", received.webhook_url, data=b"{}", headers={"Content-Type": "text/plain"})
        await api.request("DELETE", received.webhook_url)
        await api.get(received.webhook_url + "/nothing/here")
        await api.get(f"/elsewhere?token={received.token}")
        await api.post(received.webhook_url.replace("/webhook/", "//webhook//"), {"success": True})
        await api.post(received.webhook_url + "%20", {"success": True})
    await api.succeed(first)
    for result in ({"success": True}, {"success": False, "error": first.token}):
        assert (await api.complete(first, result)).status == 400
    (await api.complete(third, {"success": False, "error": f"my token is {third.token}"})).ok()
    (await api.post(f"/api/v1/flows/{second.metadata['flow_id']}/cancel")).ok()
    await endpoint.received("/cancel")
    (await api.complete(second, {"success": True})).refused(400, "WORK_CANCELLED")
    (await api.complete(signed, {"success": True})).refused(401, "INVALID_SIGNATURE")
    await raw(api.url, f"GET {first.webhook_url} HTTP/9.9\r\n\r\n")
    await raw(api.url, f"POST /webhook/a/b/{first.token} HTTP/1.1\r\nHost: x\r\nContent-Length: no\r\n\r\n")
    await raw(api.url, f"NONSENSE {first.token}\r\n\r\n")
    return [first, second, third, signed]


async def raw(url: str, text: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    assert b"Traceback" not in answer
    writer.close()
    await writer.wait_closed()


@pytest.fixture
def secret_settings(store_settings: dict[str, str]) -> dict[str, str]:
    """A database on a server has a password in its URL, which that of the tests does not ask for."""
    return {name: url.replace("postgres@", f"postgres:{PASSWORD}@") for name, url in store_settings.items()}


@pytest.mark.parametrize("log_format", ["json", "pretty"])
async def test_no_secret_is_written(
    new_engine: NewEngine,
    secret_settings: dict[str, str],
    endpoint: StepEndpoint,
    session: aiohttp.ClientSession,
    log_format: str,
) -> None:
    """At the most talkative level, with the access log on, killed at the end and started again."""
    engine = new_engine(
        **secret_settings,
        log_level="debug",
        log_format=log_format,
        access_log="true",
        api_keys=f"me:admin:{ADMIN}",
        signing_secret=SIGNING,
    )
    await engine.start()
    api = Api(session, engine.url, {"Authorization": f"Bearer {ADMIN}"})
    received = await a_busy_day(api, endpoint)
    await engine.kill()
    await engine.start()
    assert await engine.stop() == 0
    written = engine.log.read_text()
    assert "/webhook/" in written
    assert all(each.metadata["flow_id"] in written for each in received)
    secrets = [ADMIN, PASSWORD, SIGNING, SIGNING.removeprefix("whsec_")]
    for each in received:
        signature = each.token.rsplit(".", 1)[1]
        secrets += [each.token, signature, signature[:20], signature[-20:]]
    assert not [secret for secret in secrets if secret in written]
    assert "Traceback" not in written


async def test_lines_are_json_without_a_terminal(
    new_engine: NewEngine, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """Not a terminal: one JSON object a line, with a time, a level and an event."""
    engine = new_engine(log_format="auto", log_level="debug")
    await engine.start()
    api = Api(session, engine.url)
    endpoint.answer("/job", Answer(503), Answer())
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    await endpoint.received("/job", 2)
    await engine.stop()
    lines = [line for line in engine.output().splitlines() if "listening on" not in line or line.startswith("{")]
    documents = [orjson.loads(line) for line in lines]
    assert documents
    assert all({"event", "level", "timestamp"} <= set(document) for document in documents)
    of_flow = [document for document in documents if document.get("flow_id") == flow_id]
    assert of_flow
    assert any({"step_id", "work_id", "attempt"} <= set(document) for document in of_flow)


async def test_the_access_log_knows_every_request(
    new_engine: NewEngine, endpoint: StepEndpoint, session: aiohttp.ClientSession
) -> None:
    """Accepted and refused completions, reads and starts alike: one line each, the token blanked out."""
    engine = new_engine(access_log="true")
    await engine.start()
    api = Api(session, engine.url)
    await api.put_step("job", endpoint.url("/job"))
    flow_id = await api.start("job")
    received = await endpoint.received("/job")
    async with raw_connection(engine.url) as connection:
        for content, status in ((b'{"success": true}', 200), (b'{"success": true}', 400), (b"{", 422)):
            connection.send(b"".join(post_bytes(received.webhook_url, content)))
            assert (await connection.answer()).status == status
    assert await engine.stop() == 0
    written = engine.output()
    lines = [line for line in written.splitlines() if f"/webhook/{flow_id}/job/" in line]
    assert len(lines) == 3, lines
    for line, status in zip(lines, (200, 400, 422), strict=True):
        assert str(status) in line
    assert received.token not in written
