"""Section 2: what a step endpoint receives, field by field and header by header."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time

import pytest

import counterfoil
from counterfoil.testing import Answer, StepEndpoint
from tests.integration.scenario import PATH, STEP, dispatched, run_sync
from tests.running import Connect, StartNode
from tests.wire import Api, moment, seconds_from_now

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RETRY_CONTEXT = {
    "gate_count",
    "completion_count",
    "prior_completion_status",
    "prior_output_available",
    "prior_output",
    "prior_completion_at",
    "first_attempt_at",
    "last_attempt_at",
    "last_decision",
    "idempotency_key",
}


async def test_the_body(api: Api, endpoint: StepEndpoint) -> None:
    flow_id, received = await dispatched(
        api, endpoint, start={"init": {"a": 1, "b": [True, None, "é"]}}, work={"max_retries": 4, "deadline_ms": 90_000}
    )
    assert received.method == "POST"
    assert set(received.body) == {"arguments", "metadata"}
    assert received.arguments == {"a": 1, "b": [True, None, "é"]}
    metadata = received.metadata
    assert (metadata["flow_id"], metadata["step_id"]) == (flow_id, STEP)
    assert metadata["webhook_url"] == f"{api.url}/webhook/{flow_id}/{STEP}/{metadata['receipt_token']}"
    assert metadata["heartbeat_url"] == metadata["webhook_url"] + "/heartbeat"
    assert (metadata["attempt"], metadata["max_attempts"]) == (1, 5)
    assert isinstance(metadata["idempotency_key"], str)
    assert 80 < seconds_from_now(metadata["deadline_at"]) <= 90.5
    assert (await api.work(flow_id))["deadline_at"] == metadata["deadline_at"]


async def test_the_headers(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint)
    headers = received.headers
    assert headers["Content-Type"].split(";")[0] == "application/json"
    assert headers["User-Agent"] == f"counterfoil/{counterfoil.__version__}"
    assert headers["Idempotency-Key"].strip('"') == received.metadata["idempotency_key"]
    traceparent = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", headers["traceparent"])
    assert traceparent
    assert set(traceparent[1]) != {"0"}
    assert set(traceparent[2]) != {"0"}
    assert not {"webhook-id", "webhook-timestamp", "webhook-signature"} & {name.lower() for name in headers}
    assert not any(received.token in value for value in headers.values())


async def test_the_trace_is_that_of_the_flow(api: Api, endpoint: StepEndpoint) -> None:
    """Attempts of one work item share a trace and have spans of their own; another flow has another trace."""
    _, first = await dispatched(api, endpoint)
    (await api.complete(first, {"success": False, "retriable": True})).ok()
    second = await endpoint.received(PATH, 2)
    _, other = await dispatched(api, endpoint)
    ids = [each.headers["traceparent"].split("-") for each in (first, second, other)]
    assert ids[0][1] == ids[1][1] != ids[2][1]
    assert len({each[2] for each in ids}) == 3


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_the_retry_context_of_the_first_attempt(api: Api, endpoint: StepEndpoint, kind: str) -> None:
    """All ten fields, and those of a first call are fully determined."""
    await api.put_step(STEP, endpoint.url(PATH), kind=kind)
    await api.start(STEP)
    received = await endpoint.received(PATH)
    context = received.metadata["retry_context"]
    assert set(context) == RETRY_CONTEXT
    assert context["first_attempt_at"] == context["last_attempt_at"]
    moment(context["first_attempt_at"])
    assert {name: context[name] for name in RETRY_CONTEXT - {"first_attempt_at", "last_attempt_at"}} == {
        "gate_count": 1,
        "completion_count": 0,
        "prior_completion_status": "none",
        "prior_output_available": False,
        "prior_output": None,
        "prior_completion_at": None,
        "last_decision": "allow",
        "idempotency_key": received.metadata["idempotency_key"],
    }


async def test_the_retry_context_of_a_retry(api: Api, endpoint: StepEndpoint) -> None:
    _, first = await dispatched(api, endpoint)
    (await api.complete(first, {"success": False, "retriable": True})).ok()
    second = await endpoint.received(PATH, 2)
    before, context = first.metadata["retry_context"], second.metadata["retry_context"]
    assert set(context) == RETRY_CONTEXT
    assert (context["gate_count"], context["completion_count"]) == (2, 0)
    assert context["prior_completion_status"] == "gated_not_completed"
    assert (context["prior_output_available"], context["prior_output"]) == (False, None)
    assert context["last_decision"] == "allow"
    assert context["first_attempt_at"] == before["first_attempt_at"]
    assert context["idempotency_key"] == first.metadata["idempotency_key"]


async def test_a_sync_step_gets_no_webhook(api: Api, endpoint: StepEndpoint) -> None:
    """The response is the result: no webhook_url, no heartbeat_url, no deadline."""
    endpoint.answer(PATH, Answer(body={"success": True}))
    flow_id = await run_sync(api, endpoint)
    metadata = (await endpoint.received(PATH)).metadata
    for name in ("webhook_url", "heartbeat_url", "deadline_at"):
        assert metadata.get(name) is None, name
    assert (metadata["flow_id"], metadata["step_id"], metadata["attempt"]) == (flow_id, STEP, 1)
    assert metadata["idempotency_key"]


async def test_flow_metadata_is_merged_and_overrides_nothing(api: Api, endpoint: StepEndpoint) -> None:
    own = {
        "flow_id": "forged",
        "step_id": "forged",
        "receipt_token": "forged",
        "webhook_url": "http://forged.example/",
        "heartbeat_url": "http://forged.example/",
        "attempt": 99,
        "max_attempts": 99,
        "idempotency_key": "forged",
        "deadline_at": "forged",
        "retry_context": "forged",
    }
    start = {"metadata": {"tenant": "acme", "nested": {"deep": [1]}, **own}}
    flow_id, received = await dispatched(api, endpoint, start=start)
    metadata = received.metadata
    assert (metadata["tenant"], metadata["nested"]) == ("acme", {"deep": [1]})
    assert (metadata["flow_id"], metadata["step_id"], metadata["attempt"]) == (flow_id, STEP, 1)
    assert not [name for name, value in own.items() if metadata[name] == value]
    assert (await api.flow(flow_id))["metadata"] == start["metadata"]


async def test_flow_metadata_cannot_give_a_sync_step_a_webhook_of_the_engine(api: Api, endpoint: StepEndpoint) -> None:
    """What the engine does not send for a sync step is not sent under its name by the caller either."""
    endpoint.answer(PATH, Answer(body={"success": True}))
    await api.put_step(STEP, endpoint.url(PATH), kind="sync")
    await api.start(STEP, metadata={"webhook_url": "http://forged.example/", "deadline_at": "never"})
    metadata = (await endpoint.received(PATH)).metadata
    assert metadata.get("webhook_url") is None
    assert metadata.get("deadline_at") is None


async def test_the_webhook_base_url_is_a_setting(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(webhook_base_url="https://hooks.example.com/counterfoil/"))
    flow_id, received = await dispatched(api, endpoint)
    prefix = f"https://hooks.example.com/counterfoil/webhook/{flow_id}/{STEP}/"
    assert received.webhook_url == prefix + received.token
    assert received.metadata["heartbeat_url"] == received.webhook_url + "/heartbeat"


async def test_ids_that_need_care_in_a_url_work(api: Api, endpoint: StepEndpoint) -> None:
    """Whatever ids the engine accepts, the URL that it hands out leads back to the work."""
    await api.put_step("a.b~c:d-e_f", endpoint.url(PATH))
    flow_id = await api.start("a.b~c:d-e_f", flow_id="run:2026-11-16T10~a.b")
    received = await endpoint.received(PATH)
    await api.succeed(received, ok=True)
    assert (await api.final(flow_id))["outputs"] == {"ok": True}


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_dispatches_are_signed_when_a_secret_is_set(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, kind: str
) -> None:
    api = connect(await start_node(signing_secret=SECRET))
    await api.put_step(STEP, endpoint.url(PATH), kind=kind)
    await api.start(STEP, init={"text": "é"})
    received = await endpoint.received(PATH)
    message_id, timestamp = received.headers["webhook-id"], received.headers["webhook-timestamp"]
    assert message_id
    assert abs(int(timestamp) - time.time()) < 10
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    mac = hmac.new(key, f"{message_id}.{timestamp}.".encode() + received.content, hashlib.sha256).digest()
    assert f"v1,{base64.b64encode(mac).decode()}" in received.headers["webhook-signature"].split(" ")
    assert received.content.decode().count("whsec_") == 0


async def test_the_idempotency_key(api: Api, endpoint: StepEndpoint) -> None:
    """The same in every attempt of an item; another flow, and other arguments, have another."""
    _, first = await dispatched(api, endpoint, start={"init": {"a": 1}})
    (await api.complete(first, {"success": False, "retriable": True})).ok()
    second = await endpoint.received(PATH, 2)
    _, other = await dispatched(api, endpoint, start={"init": {"a": 1}})
    keys = [each.headers["Idempotency-Key"] for each in (first, second, other)]
    assert keys[0] == keys[1] != keys[2]


async def test_unlimited_retries_have_no_last_attempt(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint, work={"max_retries": -1})
    assert received.metadata["max_attempts"] is None
