"""Three vendors from the start of a flow to its end, with payloads written after their public documentation."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
import pytest

from counterfoil.testing import Answer, MovableClock, Received, StepEndpoint
from tests.integration.callbacks.vendor_calls import SECRETS
from tests.integration.hooking import path_of, waiting
from tests.running import Connect, Node, StartNode
from tests.vendors import GITHUB, STANDARD, STRIPE
from tests.wire import Api, Reply

pytestmark = pytest.mark.both_paths

AUDIO = {"audio_url": {"role": "required", "type": "string"}, "text": {"role": "output", "type": "string"}}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def node(start_node: StartNode, clock: MovableClock) -> Node:
    return await start_node(clock, secrets=SECRETS)


@pytest.fixture
def api(node: Node, connect: Connect) -> Api:
    return connect(node)


async def test_a_transcription_service(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    """A worker hands the job over with the webhook URL; the service tells its progress, is busy once, then done."""

    async def submit(received: Received) -> Answer:
        assert received.arguments["audio_url"].startswith("https://")
        return Answer(202, body={})

    endpoint.answer("/transcribe", submit)
    await api.put_step(
        "transcribe",
        endpoint.url("/transcribe"),
        attributes=AUDIO,
        accept={
            "signature": {"preset": "standard-webhooks", "secret": "setting:standard-webhooks"},
            "map": {
                "ignore": "payload.type == 'transcript.progress'",
                "success": "payload.type == 'transcript.completed'",
                "outputs": {"text": "payload.data.text"},
                "error": "payload.data.error.message",
                "retriable": "payload.data.error.code in ['overloaded', 'timeout']",
            },
            "answer": {"accepted": 204, "ignored": 204},
        },
    )
    flow_id = await api.start("transcribe", init={"audio_url": "https://files.example/a.mp3"})
    job = await endpoint.received("/transcribe")

    async def service(kind: str, data: dict[str, Any]) -> Reply:
        event = {"type": kind, "timestamp": "2026-11-18T12:00:00Z", "data": {"id": "tr_1", **data}}
        body = orjson.dumps(event)
        headers = STANDARD.sign(STANDARD.secret, body, clock() // 1000)
        return await api.request(
            "POST", job.webhook_url, data=body, headers={"Content-Type": "application/json", **headers}
        )

    assert (await service("transcript.progress", {"percent": 40})).status == 204
    overloaded = {"error": {"code": "overloaded", "message": "no capacity"}}
    assert (await service("transcript.failed", overloaded)).status == 204
    await endpoint.received("/transcribe", 2)
    assert (await service("transcript.completed", {"text": "good morning", "words": 2})).status == 204
    assert (await service("transcript.completed", {"text": "good morning", "words": 2})).ok()["verdict"] == "duplicate"
    result = await api.final(flow_id)
    assert (result["status"], result["outputs"]) == ("completed", {"text": "good morning"})
    attempts = (await api.get(f"/api/v1/work/{(await api.work(flow_id))['work_id']}")).ok()["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["not_completed", "succeeded"]


def payment_event(kind: str, status: str, flow_id: str, **more: Any) -> dict[str, Any]:
    """An event of a payment provider about a payment intent."""
    intent = {
        "id": "pi_3Mt",
        "object": "payment_intent",
        "amount": 2000,
        "amount_received": 2000 if status == "succeeded" else 0,
        "currency": "eur",
        "status": status,
        "last_payment_error": None,
        "metadata": {"flow": flow_id},
        **more,
    }
    return {
        "id": f"evt_{uuid.uuid4().hex[:12]}",
        "object": "event",
        "api_version": "2026-01-28",
        "created": 1_763_000_000,
        "livemode": False,
        "pending_webhooks": 1,
        "type": kind,
        "data": {"object": intent},
    }


@pytest.mark.parametrize("paid", [True, False])
async def test_a_payment_provider(api: Api, endpoint: StepEndpoint, clock: MovableClock, paid: bool) -> None:
    """One URL for all payments: a hook whose token is the order, which the provider knows from its configuration."""
    await api.request(
        "PUT",
        "/api/v1/steps/paid",
        json={
            "kind": "hook",
            "hook": {"token": "payment:{order_id}"},
            "attributes": {
                "order_id": {"role": "required", "type": "string"},
                "payment_id": {"role": "output", "type": "string"},
                "amount": {"role": "output", "type": "number"},
            },
            "accept": {
                "signature": {"preset": "stripe", "secret": "setting:stripe"},
                "map": {
                    "ignore": "!(payload.type in ['payment_intent.succeeded', 'payment_intent.payment_failed'])",
                    "success": "payload.data.object.status == 'succeeded'",
                    "outputs": {
                        "payment_id": "payload.data.object.id",
                        "amount": "payload.data.object.amount_received",
                    },
                    "error": "payload.data.object.last_payment_error.message",
                },
            },
        },
    )
    flow_id = await api.start("paid", init={"order_id": "7"})
    await waiting(api, flow_id)

    async def provider(event: dict[str, Any]) -> Reply:
        body = orjson.dumps(event, option=orjson.OPT_INDENT_2)
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "Stripe/1.0 (+https://stripe.com/docs/webhooks)",
            **STRIPE.sign(STRIPE.secret, body, clock() // 1000),
        }
        return await api.request("POST", path_of("payment:7"), data=body, headers=headers)

    created = payment_event("payment_intent.created", "requires_payment_method", flow_id)
    assert (await provider(created)).ok()["ignored"] is True
    if paid:
        assert (await provider(payment_event("payment_intent.succeeded", "succeeded", flow_id))).ok()["delivered"]
        assert (await api.final(flow_id))["outputs"] == {"payment_id": "pi_3Mt", "amount": 2000}
    else:
        error = {"type": "card_error", "code": "card_declined", "message": "Your card was declined."}
        failed = payment_event(
            "payment_intent.payment_failed", "requires_payment_method", flow_id, last_payment_error=error
        )
        assert (await provider(failed)).ok()["delivered"]
        result = await api.final(flow_id)
        assert result["status"] == "failed"
        assert (await api.work(flow_id))["error"]["message"] == "Your card was declined."


def run_event(action: str, conclusion: str | None) -> dict[str, Any]:
    """What a code host sends about a run of a workflow."""
    return {
        "action": action,
        "workflow_run": {
            "id": 30433642,
            "name": "Build",
            "head_branch": "main",
            "head_sha": "acb5820ced9479c074f688cc328bf03f341a511d",
            "run_number": 562,
            "event": "push",
            "status": action,
            "conclusion": conclusion,
            "html_url": "https://code.example/octocat/hello/actions/runs/30433642",
            "run_attempt": 1,
        },
        "repository": {"id": 1296269, "full_name": "octocat/hello", "private": False},
        "sender": {"login": "octocat", "id": 1},
    }


@pytest.mark.parametrize(("conclusion", "status"), [("success", "completed"), ("failure", "failed")])
async def test_a_code_host(api: Api, endpoint: StepEndpoint, clock: MovableClock, conclusion: str, status: str) -> None:
    """A build is started, and its webhook tells of it: a ping first, then every change of the run."""
    endpoint.answer("/build", Answer(201, body={}))
    await api.put_step(
        "build",
        endpoint.url("/build"),
        attributes={"branch": {"role": "required", "type": "string"}, "commit": {"role": "output", "type": "string"}},
        accept={
            "signature": {"preset": "github", "secret": "setting:github"},
            "map": {
                "ignore": "headers['x-github-event'] != 'workflow_run' || payload.action != 'completed'",
                "success": "payload.workflow_run.conclusion == 'success'",
                "outputs": {"commit": "payload.workflow_run.head_sha"},
                "error": "'run ended with ' + payload.workflow_run.conclusion + ': ' + payload.workflow_run.html_url",
            },
        },
    )
    flow_id = await api.start("build", init={"branch": "main"})
    build = await endpoint.received("/build")

    async def host(event: str, payload: dict[str, Any]) -> Reply:
        body = orjson.dumps(payload)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/044aadd",
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": str(uuid.uuid4()),
            "X-Hub-Signature": "sha1=" + "0" * 40,
            **GITHUB.sign(GITHUB.secret, body, 0),
        }
        return await api.request("POST", build.webhook_url, data=body, headers=headers)

    ping = {"zen": "Keep it logically awesome.", "hook_id": 1, "hook": {"type": "Repository", "active": True}}
    assert (await host("ping", ping)).ok()["verdict"] == "ignored"
    assert (await host("workflow_run", run_event("requested", None))).ok()["verdict"] == "ignored"
    assert (await host("workflow_run", run_event("in_progress", None))).ok()["verdict"] == "ignored"
    assert (await host("workflow_run", run_event("completed", conclusion))).ok()["verdict"] == "accepted"
    assert (await host("workflow_run", run_event("completed", conclusion))).ok()["verdict"] == "duplicate"
    result = await api.final(flow_id)
    assert result["status"] == status
    if conclusion == "success":
        assert result["outputs"] == {"commit": "acb5820ced9479c074f688cc328bf03f341a511d"}
    else:
        assert "run ended with failure: https://code.example/" in (await api.work(flow_id))["error"]["message"]
