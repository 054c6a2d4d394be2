"""``accept`` on async steps: a vendor's own JSON with its own signature completes them."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from counterfoil.testing import MovableClock, StepEndpoint
from tests.integration.callbacks.vendor_calls import (
    ATTRIBUTES,
    DONE,
    MAP,
    PING,
    SECRETS,
    VENDOR_TYPE,
    accept,
    called,
)
from tests.integration.scenario import PATH, STEP, dispatched
from tests.running import Connect, Node, StartNode
from tests.vendors import GITHUB, SLACK, STANDARD, STRIPE, VENDORS, Vendor
from tests.wire import Api, signature_headers

pytestmark = pytest.mark.both_paths

SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
every_vendor = pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.preset)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
async def node(start_node: StartNode, clock: MovableClock) -> Node:
    return await start_node(clock, secrets=SECRETS, signing_secret=SIGNING)


@pytest.fixture
async def api(node: Node, connect: Connect) -> Api:
    return connect(node)


# -- signatures ------------------------------------------------------------------------------------


@every_vendor
async def test_a_signed_callback_completes_the_step(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, vendor: Vendor
) -> None:
    call = await called(api, endpoint, clock, vendor)
    answer = (await call.signed(DONE)).ok()
    assert (answer["verdict"], answer["status"]) == ("accepted", "succeeded")
    assert (await api.final(call.flow_id))["outputs"] == {"text": "hello"}


@every_vendor
async def test_a_wrong_or_missing_signature_changes_nothing(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, vendor: Vendor
) -> None:
    """401, and the vendor's own callback is still taken."""
    call = await called(api, endpoint, clock, vendor)
    body = orjson.dumps(DONE)
    (await call.signed(DONE, secret=vendor.other_secret)).refused(401, "INVALID_SIGNATURE")
    (await call.plain(body)).refused(401, "INVALID_SIGNATURE")
    for name, value in vendor.sign(vendor.secret, body, clock() // 1000).items():
        (await call.plain(body, **{name: "0" + value})).refused(401, "INVALID_SIGNATURE")
    (await call.plain(b"not json")).refused(401, "INVALID_SIGNATURE")
    if vendor.has_time:
        (await call.signed(DONE, age=302)).refused(401, "INVALID_SIGNATURE")
        (await call.signed(DONE, age=-302)).refused(401, "INVALID_SIGNATURE")
    await call.unchanged()
    (await call.signed(DONE)).ok()


async def test_a_recorded_message_cannot_be_replayed_later(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    """Within the tolerance the same message is a duplicate; after it, it is refused."""
    call = await called(api, endpoint, clock, STRIPE)
    body = orjson.dumps(DONE)
    headers = STRIPE.sign(STRIPE.secret, body, clock() // 1000)
    assert (await call.plain(body, **headers)).ok()["verdict"] == "accepted"
    assert (await call.plain(body, **headers)).ok()["verdict"] == "duplicate"
    clock.advance(minutes=6)
    (await call.plain(body, **headers)).refused(401, "INVALID_SIGNATURE")


@every_vendor
async def test_both_secrets_count_while_one_is_replaced(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, clock: MovableClock, vendor: Vendor
) -> None:
    api = connect(await start_node(clock, secrets={vendor.preset: [vendor.other_secret, vendor.secret]}))
    for secret in (vendor.secret, vendor.other_secret):
        call = await called(api, endpoint, clock, vendor)
        (await call.signed(DONE, secret=secret)).ok()


async def test_a_body_that_looks_like_a_report_of_a_worker_is_signed_all_the_same(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    """The short way for plain completions does not lead past the signature."""
    call = await called(api, endpoint, clock, STRIPE)
    report = {"success": True, "outputs": {"text": "forged"}}
    (await api.complete(call.received, report)).refused(401, "INVALID_SIGNATURE")
    (await call.signed(report)).refused(422, "INVALID_PAYLOAD")
    await call.unchanged()
    plain = await called(api, endpoint, clock, STRIPE, accept={"signature": accept(STRIPE)["signature"]})
    (await api.complete(plain.received, report)).refused(401, "INVALID_SIGNATURE")
    assert (await plain.signed({"success": True, "outputs": {"text": "right"}})).ok()["status"] == "succeeded"


async def test_the_receipt_may_be_in_a_header(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    call = await called(api, endpoint, clock, SLACK)
    metadata = call.received.metadata
    body = orjson.dumps(DONE)
    headers = {**VENDOR_TYPE, "Counterfoil-Receipt": call.received.token}
    path = f"/webhook/{metadata['flow_id']}/{metadata['step_id']}"
    (await api.request("POST", path, data=body, headers=headers)).refused(401, "INVALID_SIGNATURE")
    headers |= SLACK.sign(SLACK.secret, body, clock() // 1000)
    assert (await api.request("POST", path, data=body, headers=headers)).ok()["verdict"] == "accepted"


async def test_the_signature_is_over_the_body_before_it_was_compressed(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    body = orjson.dumps(DONE)
    headers = {"Content-Encoding": "gzip", **STRIPE.sign(STRIPE.secret, body, clock() // 1000)}
    assert (await call.plain(gzip.compress(body), **headers)).ok()["verdict"] == "accepted"


async def test_form_encoded_bodies_are_not_json(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    """A code host may be configured to send ``payload=...``."""
    call = await called(api, endpoint, clock, GITHUB)
    body = b"payload=%7B%22type%22%3A%22ping%22%7D"
    form = {"Content-Type": "application/x-www-form-urlencoded", **GITHUB.sign(GITHUB.secret, body, 0)}
    reply = await call.plain(body, **form)
    reply.refused(415, "UNSUPPORTED_MEDIA_TYPE")
    assert "application/json" in reply.body["error"]["message"]
    await call.unchanged()


async def test_a_map_without_a_signature(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    """Then the receipt in the URL is the only credential; with require_signature, so is the engine's own secret."""
    call = await called(api, endpoint, clock, STRIPE, accept={"map": MAP})
    assert (await call.plain(orjson.dumps(DONE))).ok()["status"] == "succeeded"
    strict = await called(api, endpoint, clock, STRIPE, accept={"map": MAP}, require_signature=True)
    body = orjson.dumps(DONE)
    (await strict.plain(body)).refused(401, "INVALID_SIGNATURE")
    headers = signature_headers(SIGNING, body, at=clock() / 1000)
    assert (await strict.plain(body, **headers)).ok()["status"] == "succeeded"


# -- what a payload means ---------------------------------------------------------------------------


async def test_an_ignored_callback_changes_nothing(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    call = await called(api, endpoint, clock, GITHUB)
    answer = (await call.signed(PING)).ok()
    assert (answer["verdict"], answer["status"], answer["recorded_at"]) == ("ignored", "active", None)
    await call.unchanged()
    (await call.signed(DONE)).ok()
    assert (await call.signed(PING)).ok()["verdict"] == "ignored", "also after the outcome"


async def test_a_failure_of_the_vendor_fails_the_step(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    payload = {"type": "job", "status": "failed", "error": {"message": "card declined", "code": "declined"}}
    assert (await call.signed(payload)).ok()["status"] == "failed"
    final = await api.final(call.flow_id)
    assert (final["status"], "card declined" in orjson.dumps(final["error"]).decode()) == ("failed", True)


async def test_a_failure_that_is_retriable_is_tried_again(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    payload = {"type": "job", "status": "failed", "error": {"message": "busy", "code": "busy"}}
    assert (await call.signed(payload)).ok()["status"] == "not_completed"
    again = await endpoint.received(PATH, 2)
    assert again.metadata["attempt"] == 2
    assert (await call.signed(DONE)).ok()["status"] == "succeeded"


@pytest.mark.either_store
@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({}, "accept.map.ignore"),
        ({"type": "job"}, "accept.map.success"),
        ({"type": "job", "status": "completed", "result": {}}, "accept.map.outputs.text"),
        ({"type": "job", "status": "failed"}, "accept.map.error"),
        ([], "accept.map.ignore"),
        (b"{", "body"),
        (b"", "body"),
    ],
)
async def test_a_payload_that_the_map_cannot_read(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, payload: Any, place: str
) -> None:
    """422 with the place; the item goes on waiting."""
    call = await called(api, endpoint, clock, STANDARD)
    [error] = (await call.signed(payload)).refused(422, "INVALID_PAYLOAD")["errors"]
    assert error["place"] == place
    await call.unchanged()
    (await call.signed(DONE)).ok()


async def test_outputs_of_a_wrong_type_fail_the_step_as_those_of_workers_do(
    api: Api, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    assert (await call.signed({**DONE, "result": {"text": 5}})).ok()["status"] == "failed"
    assert (await api.work(call.flow_id))["error"]["code"] == "INVALID_OUTPUT"


async def test_headers_can_be_read(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    reads = {"ignore": "headers['x-github-event'] == 'ping'", "outputs": {"text": "headers['x-github-delivery']"}}
    call = await called(api, endpoint, clock, GITHUB, accept=accept(GITHUB, map=reads))
    assert (await call.signed({}, headers={"X-GitHub-Event": "ping"})).ok()["verdict"] == "ignored"
    headers = {"X-GitHub-Event": "push", "X-GitHub-Delivery": "72d3162e"}
    assert (await call.signed({}, headers=headers)).ok()["verdict"] == "accepted"
    assert (await api.final(call.flow_id))["outputs"] == {"text": "72d3162e"}


# -- answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("statuses", [(200, 200, 200), (202, 208, 299), (204, 205, 204), (201, 200, 202)])
async def test_the_vendor_gets_the_statuses_that_it_requires(
    api: Api, endpoint: StepEndpoint, clock: MovableClock, statuses: tuple[int, int, int]
) -> None:
    accepted, duplicate, ignored = statuses
    answer = {"accepted": accepted, "duplicate": duplicate, "ignored": ignored}
    call = await called(api, endpoint, clock, STRIPE, accept=accept(STRIPE, answer=answer))
    replies = [await call.signed(payload) for payload in (PING, DONE, DONE)]
    assert [reply.status for reply in replies] == [ignored, accepted, duplicate]
    for reply, verdict in zip(replies, ("ignored", "accepted", "duplicate"), strict=True):
        assert reply.content == b"" if reply.status in (204, 205) else reply.body["verdict"] == verdict
    report = {"success": True, "outputs": {"text": "hello"}}
    plain = await called(
        api, endpoint, clock, STRIPE, accept={"signature": accept(STRIPE)["signature"], "answer": answer}
    )
    assert [(await plain.signed(report)).status for _ in range(2)] == [accepted, duplicate]


async def test_another_result_is_a_conflict(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    (await call.signed(DONE)).ok()
    other = {**DONE, "result": {"text": "another"}}
    assert (await call.signed(other)).refused(400, "CONFLICTING_RESULT")["same_result"] is False
    unmapped = {**DONE, "id": "evt_2"}
    assert (await call.signed(unmapped)).ok()["verdict"] == "duplicate", "only what the map reads is the result"


async def test_cancelled_work(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    (await api.post(f"/api/v1/flows/{call.flow_id}/cancel")).ok()
    (await call.signed(DONE)).refused(400, "WORK_CANCELLED")


async def test_heartbeats_are_as_before(api: Api, endpoint: StepEndpoint, clock: MovableClock) -> None:
    call = await called(api, endpoint, clock, STRIPE)
    (await api.post(call.received.metadata["heartbeat_url"], {"progress": 0.5})).ok()
    assert (await api.work(call.flow_id))["progress"] == 0.5


async def test_steps_without_accept_are_as_before(api: Api, endpoint: StepEndpoint) -> None:
    _, received = await dispatched(api, endpoint)
    (await api.complete(received, DONE)).refused(422, "INVALID_RESULT")
    await api.succeed(received)
    (await api.complete(received, {"success": True})).refused(400, "ALREADY_SUCCEEDED")


# -- secrets ----------------------------------------------------------------------------------------


async def put(api: Api, endpoint: StepEndpoint, **signature: Any) -> Any:
    definition = {"endpoint": endpoint.url(PATH), "accept": {"signature": signature, "map": MAP}}
    return await api.request("PUT", f"/api/v1/steps/{STEP}", json=definition)


async def test_an_unknown_secret_is_refused_with_the_names_that_there_are(api: Api, endpoint: StepEndpoint) -> None:
    reply = await put(api, endpoint, preset="stripe", secret="setting:strpie")
    [error] = reply.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "accept.signature.secret"
    assert "no secret strpie; configured: github, slack, standard-webhooks, stripe" in error["message"]


async def test_a_literal_secret_is_refused_and_not_repeated(api: Api, endpoint: StepEndpoint) -> None:
    reply = await put(api, endpoint, preset="stripe", secret=STRIPE.secret)
    [error] = reply.refused(422, "INVALID_STEP")["errors"]
    assert error["place"] == "accept.signature.secret"
    assert STRIPE.secret not in reply.content.decode()
    (await api.get(f"/api/v1/steps/{STEP}")).refused(404, "UNKNOWN_STEP")


async def test_a_secret_that_the_scheme_cannot_use(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint
) -> None:
    api = connect(await start_node(secrets={"it": ["no base64 !"]}))
    [error] = (await put(api, endpoint, preset="standard-webhooks", secret="setting:it")).refused(422, "INVALID_STEP")[
        "errors"
    ]
    assert "no base64" not in error["message"]
    assert (await put(api, endpoint, preset="stripe", secret="setting:it")).status == 201


async def test_a_secret_that_was_removed_meanwhile(
    start_node: StartNode, connect: Connect, endpoint: StepEndpoint, clock: MovableClock
) -> None:
    """The engine starts, refuses what it cannot check, and takes it when the secret is back."""
    first = await start_node(clock, secrets=SECRETS)
    call = await called(connect(first), endpoint, clock, STRIPE)
    path = call.url.removeprefix(first.url)
    await first.stop()
    second = await start_node(clock, secrets={"github": ["x"]})
    call.api = connect(second)
    call.url = second.url + path
    reply = await call.signed(DONE)
    reply.refused(401, "INVALID_SIGNATURE")
    assert reply.body["error"]["message"] == "the engine has no secret stripe, so no signature can be checked"
    await second.stop()
    third = await start_node(clock, secrets=SECRETS)
    call.api = connect(third)
    call.url = third.url + path
    assert (await call.signed(DONE)).ok()["verdict"] == "accepted"


async def test_what_is_shown_of_a_step_can_be_put_back(api: Api, endpoint: StepEndpoint) -> None:
    await api.put_step(STEP, endpoint.url(PATH), accept=accept(STRIPE), attributes=ATTRIBUTES)
    shown = (await api.get(f"/api/v1/steps/{STEP}")).ok()
    assert shown["accept"]["signature"]["secret"] == "setting:stripe"
    assert shown["accept"]["map"] == MAP
    again = {name: shown[name] for name in ("endpoint", "accept", "attributes")}
    assert (await api.request("PUT", f"/api/v1/steps/{STEP}", json=again)).status == 200
