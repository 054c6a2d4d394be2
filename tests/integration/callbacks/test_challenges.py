"""A vendor that verifies a URL, as Slack does, gets its challenge back if it has signed it, and nothing changes."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson
import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.integration.callbacks.inbox import verdicts
from tests.integration.callbacks.vendor_calls import DONE, MAP, PING, SECRETS, VENDOR_TYPE, VendorCalls, accept, called
from tests.integration.hooking import HOOK, order, path_of, put_hook, waiting
from tests.running import Node, StartNode
from tests.vendors import SLACK, STRIPE
from tests.wire import Api

CHALLENGE = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"
VERIFICATION = {"token": "Jhj5dZrVaK7ZwHHjRyZWjbDl", "challenge": CHALLENGE, "type": "url_verification"}
"""As in Slack's public documentation of the event."""
WRITTEN_OUT = {
    "signature": {
        "scheme": "hmac",
        "secret": "setting:slack",
        "header": "X-Slack-Signature",
        "format": "v0={signature}",
        "timestamp_header": "X-Slack-Request-Timestamp",
        "signed": "v0:{timestamp}:{body}",
        "challenge": "headers['x-kind'] == 'hello' ? payload.nonce : null",
    },
    "map": MAP,
}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def node(start_node: StartNode, clock: MovableClock) -> Node:
    return await start_node(clock, secrets=SECRETS)


async def slack(api: Api, endpoint: StepEndpoint, clock: MovableClock, **accepts: Any) -> VendorCalls:
    return await called(api, endpoint, clock, SLACK, accept=accept(SLACK, **accepts))


@pytest.mark.parametrize("accepts", [{}, {"map": None}, {"answer": {"ignored": 204}}])
async def test_a_signed_challenge_is_answered_and_changes_nothing(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, accepts: dict[str, Any]
) -> None:
    calls = await slack(api, endpoint, clock, **accepts)
    reply = await calls.signed(VERIFICATION)
    assert reply.ok() == {
        "verdict": "ignored",
        "status": "active",
        "flow_id": calls.flow_id,
        "step_id": (await api.work(calls.flow_id))["step_id"],
        "recorded_at": None,
        "challenge": CHALLENGE,
    }
    await calls.unchanged()
    assert await verdicts(api, flow=calls.flow_id) == [("completion", "ignored", 200)]


async def test_a_challenge_that_is_not_signed_is_refused_and_not_repeated(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    calls = await slack(api, endpoint, clock)
    refused = [
        await calls.signed(VERIFICATION, secret=SLACK.other_secret),
        await calls.signed(VERIFICATION, age=301),
        await calls.signed(VERIFICATION, age=-301),
        await calls.plain(orjson.dumps(VERIFICATION)),
    ]
    for reply in refused:
        reply.refused(401, "INVALID_SIGNATURE")
        assert CHALLENGE not in reply.content.decode()
    await calls.unchanged()


async def test_the_url_of_finished_work_can_be_verified_again(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    calls = await slack(api, endpoint, clock)
    (await calls.signed(DONE)).ok()
    assert (await calls.signed(VERIFICATION)).ok()["challenge"] == CHALLENGE
    assert (await calls.signed(DONE)).ok()["verdict"] == "duplicate"


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "url_verification"},
        {"type": "url_verification", "challenge": {"a": CHALLENGE}},
        {"type": "url_verification", "challenge": None},
        {"type": "event_callback", "challenge": CHALLENGE},
        {"challenge": CHALLENGE},
        [CHALLENGE],
        CHALLENGE,
    ],
)
async def test_what_is_no_challenge_is_read_by_the_map_and_never_repeated(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, payload: Any
) -> None:
    calls = await slack(api, endpoint, clock)
    reply = await calls.signed(payload)
    reply.refused(422, "INVALID_PAYLOAD")
    assert CHALLENGE not in reply.content.decode()
    await calls.unchanged()


async def test_only_slack_has_one(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    calls = await called(api, endpoint, clock, STRIPE)
    (await calls.signed(VERIFICATION)).refused(422, "INVALID_PAYLOAD")


@pytest.mark.both_paths
@pytest.mark.parametrize("challenge", ["é\U0001f600", '"}\r\n', ""])
async def test_a_challenge_is_any_text(api: Api, endpoint: StepEndpoint, clock: MovableClock, challenge: str) -> None:
    """Also in a body that looks like a StepResult, which takes the short way."""
    calls = await called(api, endpoint, clock, SLACK)
    for more in ({}, {"success": True}):
        reply = await calls.signed({**VERIFICATION, "challenge": challenge, **more})
        assert reply.ok()["challenge"] == challenge


async def test_no_receipt_is_repeated(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    calls = await slack(api, endpoint, clock)
    reply = await calls.signed({**VERIFICATION, "challenge": calls.url})
    assert "[redacted]" in reply.ok()["challenge"]
    assert calls.received.token.partition(".")[2] not in reply.content.decode()


async def test_another_vendor_may_have_one(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    calls = await called(api, endpoint, clock, SLACK, accept=WRITTEN_OUT)
    assert (await calls.signed({"nonce": "abc"}, headers={"X-Kind": "hello"})).ok()["challenge"] == "abc"
    assert "challenge" not in (await calls.signed(PING, headers={"X-Kind": "event"})).ok()
    assert (await calls.signed(DONE)).ok()["verdict"] == "accepted"


async def test_a_hook_answers_it_as_well(
    api: Api, clock: MovableClock, session: aiohttp.ClientSession, node: Node
) -> None:
    hook_map = {"ignore": "false", "outputs": {"confirmed": "payload.ok"}}
    await put_hook(api, accept={**accept(SLACK), "map": hook_map, "answer": {"ignored": 204}})
    flow_id = await order(api)
    before = await waiting(api, flow_id)

    async def post(secret: str) -> Any:
        body = orjson.dumps(VERIFICATION)
        headers = {**VENDOR_TYPE, **SLACK.sign(secret, body, clock() // 1000)}
        return await api.request("POST", path_of("order:1"), data=body, headers=headers)

    (await post(SLACK.other_secret)).refused(401, "INVALID_SIGNATURE")
    assert (await post(SLACK.secret)).ok() == {
        "flow_id": flow_id,
        "step_id": HOOK,
        "delivered": False,
        "duplicate": False,
        "ignored": True,
        "challenge": CHALLENGE,
    }
    assert await api.work(flow_id) == before
    found = await verdicts(api, flow=flow_id)
    assert found == [("hook", "ignored", 200), ("hook", "INVALID_SIGNATURE", 401)]
