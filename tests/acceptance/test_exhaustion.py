"""An engine that lacks descriptors itself: that is no attempt of its work, and readiness and the log tell."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from counterfoil.testing import StepEndpoint
from tests.acceptance.conftest import ClientOf, NewEngine
from tests.acceptance.processes import EngineProcess, run_command
from tests.acceptance.starving import Standby, no_descriptors, standby
from tests.eventually import eventually
from tests.wire import Api

ONCE = {"max_retries": 0, "init_backoff_ms": 50, "max_backoff_ms": 50}


async def start(asking: Standby, step: str) -> str:
    answer = await asking.ask("POST", "/api/v1/flows", orjson.dumps({"goals": [step]}))
    assert answer.status == 201, answer
    return str(answer.body["flow_id"])


async def events(asking: Standby, flow_id: str, kind: str) -> list[dict[str, Any]]:
    answer = await asking.ask("GET", f"/api/v1/flows/{flow_id}/events")
    assert answer.status == 200
    return [event for event in answer.body["events"] if event["type"] == kind]


async def is_clean(engine: EngineProcess) -> None:
    assert await engine.stop() == 0
    code, output, errors = await run_command("doctor", "--store", engine.store_url)
    assert code == 0, output + errors


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_attempt_that_cannot_be_sent_is_held_back(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, host: str
) -> None:
    """It is sent when descriptors are there again: the same attempt, though none may follow it."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job").replace("127.0.0.1", host), work=ONCE)
    async with standby(engine.url) as asking:
        with no_descriptors(engine):
            flow_id = await start(asking, "job")
            await eventually(lambda: "descriptors_exhausted" in engine.output())
            answer = await asking.ask("GET", "/readyz")
            assert (answer.status, answer.body["error"]["code"]) == (503, "UNAVAILABLE")
            assert answer.body["error"]["details"]["failed"] == "descriptors"
            assert not await events(asking, flow_id, "work_not_completed")
            assert not endpoint.requests("/job")
        received = await endpoint.received("/job")
    assert received.metadata["attempt"] == 1
    await api.succeed(received, a=1)
    assert (await api.final(flow_id))["outputs"] == {"a": 1}
    await eventually(lambda: ready(api))
    assert "resources_available" in engine.output()
    await is_clean(engine)


async def ready(api: Api) -> bool:
    return (await api.get("/readyz")).status == 200


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_attempt_that_cannot_be_sent_for_long_uses_up_no_retry(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint, kind: str
) -> None:
    """The item is given back, again and again; its number stays, and the journal rebuilds the state."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"), kind=kind, work={**ONCE, "ack_timeout_ms": 400})
    async with standby(engine.url) as asking:
        with no_descriptors(engine):
            flow_id = await start(asking, "job")

            async def given_back() -> bool:
                return len(await events(asking, flow_id, "work_not_completed")) >= 3

            await eventually(given_back, within=15)
            [first, *_] = await events(asking, flow_id, "work_not_completed")
            assert first["data"]["error"]["code"] == "NOT_SENT"
            assert "file descriptors" in first["data"]["error"]["message"]
        received = await endpoint.received("/job")
        assert received.metadata["attempt"] == 1
        assert {event["attempt"] for event in await events(asking, flow_id, "work_dispatched")} == {1}
    if kind == "async":
        await api.succeed(received, a=1)
    assert (await api.final(flow_id))["status"] == "completed"
    document = (await api.get(f"/api/v1/work/{(await api.work(flow_id))['work_id']}")).ok()
    assert {attempt["attempt"] for attempt in document["attempts"]} == {1}
    await is_clean(engine)


async def test_what_cannot_be_sent_is_given_back_by_a_stop(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """The next start sends it as the first attempt: nothing of it was ever out."""
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"), work=ONCE)
    async with standby(engine.url) as asking:
        with no_descriptors(engine):
            flow_id = await start(asking, "job")
            await eventually(lambda: '"where": "dispatch"' in engine.output())
            await engine.stop()  # with whatever code: the event loop itself wants descriptors to be closed
    await engine.start()
    received = await endpoint.received("/job")
    assert received.metadata["attempt"] == 1
    api = client_of(engine)
    await api.succeed(received, a=1)
    assert (await api.final(flow_id))["status"] == "completed"
    await is_clean(engine)


async def test_an_approval_is_not_used_up_by_an_attempt_that_was_not_sent(
    engine: EngineProcess, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """Reviewers are asked once."""
    api = client_of(engine)
    work = {**ONCE, "ack_timeout_ms": 400}
    await api.put_step("job", endpoint.url("/job"), work=work, control={"approval": {"approvals": 1}})
    flow_id = await api.start("job")
    await api.until_work(flow_id, "held")
    [approval] = (await api.get("/api/v1/approvals", status="pending")).ok()["approvals"]
    async with standby(engine.url) as asking:
        with no_descriptors(engine):
            answer = await asking.ask("POST", f"/api/v1/approvals/{approval['approval_id']}/approve", b"{}")
            assert answer.status == 200, answer

            async def given_back() -> bool:
                return len(await events(asking, flow_id, "work_not_completed")) >= 2

            await eventually(given_back, within=15)
        received = await endpoint.received("/job")
        assert len(await events(asking, flow_id, "approval_requested")) == 1
    await api.succeed(received, a=1)
    assert (await api.final(flow_id))["status"] == "completed"
    await is_clean(engine)


async def test_messages_that_cannot_be_sent_are_not_given_up(
    new_engine: NewEngine, client_of: ClientOf, endpoint: StepEndpoint
) -> None:
    """A subscriber is told as if nothing had been the matter."""
    engine = new_engine()
    await engine.start()
    api = client_of(engine)
    await api.put_step("job", endpoint.url("/job"))
    elsewhere = endpoint.url("/told").replace("127.0.0.1", "localhost")  # no connection is open to there
    subscription = {"url": elsewhere, "events": ["flow.completed"]}
    reply = await api.request("PUT", "/api/v1/subscriptions/me", json=subscription)
    assert reply.status in (200, 201), reply.content
    flow_id = await api.start("job")
    received = await endpoint.received("/job")
    async with standby(engine.url) as asking:
        with no_descriptors(engine):
            path = received.webhook_url.removeprefix(engine.url)
            assert (await asking.ask("POST", path, b'{"success": true}')).status == 200
            await eventually(lambda: '"where": "dispatch"' in engine.output())
        await endpoint.received("/told")
    assert (await api.flow(flow_id))["status"] == "completed"
    await is_clean(engine)


@pytest.mark.sqlite_only
async def test_callers_that_cannot_be_accepted_do_not_keep_the_engine_busy(engine: EngineProcess) -> None:
    """The loop does not spin on its listening socket, and goes on accepting when it can."""
    host, port = "127.0.0.1", engine.port
    with no_descriptors(engine):
        callers = [socket.create_connection((host, port)) for _ in range(20)]
        await eventually(lambda: "descriptors_exhausted" in engine.output())
        before = busy_seconds(engine)
        for caller in callers:
            caller.close()
        await eventually(lambda: engine.output().count("descriptors_exhausted") >= 2, within=15)
        assert busy_seconds(engine) - before < 2.0
    async with standby(engine.url, 1) as asking:
        assert (await asking.ask("GET", "/healthz")).status == 200
    assert "Traceback" not in engine.output()


def busy_seconds(engine: EngineProcess) -> float:
    """CPU time of the process."""
    fields = Path(f"/proc/{engine.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
